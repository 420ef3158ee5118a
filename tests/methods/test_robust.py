"""MetaSP against wrong labels: its weights, and what it keeps."""

import numpy as np
import pytest
import torch
from torch import nn

from metasp.data import load_benchmark
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.methods import robust
from metasp.methods.context import Weighed, measured
from metasp.methods.label_model import Judged
from metasp.methods.network_copies import features_seen, head_of
from metasp.methods.robust import CERTAIN
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.from_spec import complete
from metasp.types import Batch
from tests.methods.factories import digits, small, train

NOISY = {"label_noise": 0.6, "label_noise_kind": "one-sided", "imbalance": 0.5}


def test_each_look_counts_alike_and_none_more_than_a_bound():
    trainer = digits("metasp-robust", limit_per_class=6)
    train(trainer, 1)
    weigh, learner = trainer.learner.weigh, trainer.learner
    ids = learner.current.ids
    weigh.begin_task(learner)
    assert weigh.judged(learner, ids) is None
    looks = []
    for factor in (1.0, 0.3):
        for parameter in learner.model.parameters():
            parameter.data *= factor
        before = weigh.stats.means(ids, "odds").nan_to_num() * len(looks)
        weigh.look(learner)
        looks.append(weigh.stats.means(ids, "odds") * (len(looks) + 1) - before)
    assert float(torch.stack(looks).abs().max()) <= CERTAIN + 1e-9
    mean = torch.stack(looks).mean(0)
    torch.testing.assert_close(weigh.judged(learner, ids), mean.sigmoid())


def test_the_head_is_found_by_its_name_or_as_the_last_linear_layer():
    body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert head_of(body) is body[2]
    with features_seen(body) as seen:
        body(torch.ones(5, 3))
    assert seen[0].shape == (5, 4)
    assert head_of(nn.Sequential(nn.ReLU())) is None


def weighed_like(trainer, right):
    """The weights of a batch of 8 new and 8 replayed examples with these chances to be right."""
    learner = trainer.learner
    learner.arrived = 8
    even = torch.full((16,), 1 / 16)
    return learner.weigh.weighted(learner, Weighed(torch.zeros(16), even), right).weights


def test_new_examples_share_what_they_had_by_their_chance_to_be_right():
    trainer = digits("metasp-robust")
    right = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0])
    weights = weighed_like(trainer, right)
    assert weights[8:].tolist() == [1 / 16] * 8
    torch.testing.assert_close(weights[:8], right / right.sum() / 2)
    assert weighed_like(trainer, torch.zeros(8))[:8].tolist() == [0.0] * 8
    assert weighed_like(trainer, torch.tensor([0.3])).tolist() == [1 / 16] * 16  # a lone new one


def test_with_all_odds_equal_the_update_is_that_of_er_to_the_bit(monkeypatch):
    def same(features, labels, reference):
        odds = torch.full((len(labels),), -0.3, dtype=torch.float64)
        return Judged(odds, (-odds).sigmoid(), labels)

    monkeypatch.setattr(robust, "judge_labels", same)
    one = digits("metasp-robust", selection="class-balanced", epochs=3)
    other = digits("er", selection="class-balanced", epochs=3)
    for trainer in (one, other):
        train(trainer, 24)
    for ours, theirs in zip(one.learner.model.parameters(), other.learner.model.parameters()):
        assert torch.equal(ours, theirs)


def noise_alone(folder, method):
    """A trainer on inputs that say nothing about their labels."""
    draw = np.random.default_rng(0)
    inputs, labels = draw.normal(size=(600, 20)).astype(np.float32), draw.integers(0, 10, 600)
    np.savez(folder / "noise.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    given = {"benchmark": f"arrays:{folder / 'noise.npz'}", "tasks": 1, "backbone": "mlp"}
    shared = {"epochs": 4, "batch_size": 50, "selection": "class-balanced", "threads": 1}
    spec = RunSpec.from_dict({**given, **shared, "method": method})
    benchmark = load_benchmark(spec)
    return build_trainer(complete(spec, benchmark), benchmark)


def test_where_features_cannot_tell_labels_all_are_learned_as_by_er(tmp_path):
    one, other = (noise_alone(tmp_path, method) for method in ("metasp-robust", "er"))
    for trainer in (one, other):
        for _ in trainer.run():
            pass
    for ours, theirs in zip(one.learner.model.parameters(), other.learner.model.parameters()):
        assert torch.equal(ours, theirs)


def noisy_run(**changes):
    """A trainer on the digits after two tasks of which most labels of a class are wrong."""
    values = {**NOISY, "limit_per_class": 100, "memory": 40, "epochs": 6, "width": 8, **changes}
    trainer = digits("metasp-robust", **values)
    benchmark = load_benchmark(small("metasp-robust", **values))
    scores = {}
    for event in trainer.run():
        if type(event).__name__ == "TaskFinished":
            scores.update(zip(event.scores["id"], event.scores["score"]))
            if event.task == 1:
                break
    return trainer, scores, set(benchmark.flipped["id"])


def test_with_verified_examples_it_finds_and_keeps_out_the_wrong_majority():
    trainer, scores, wrong = noisy_run(trusted=5)
    amiss = [value for key, value in scores.items() if key in wrong and value is not None]
    fine = [value for key, value in scores.items() if key not in wrong and value is not None]
    assert len(amiss) > 50
    assert sum(value < 0 for value in amiss) / len(amiss) > 0.8
    assert sum(value > 0 for value in fine) / len(fine) > 0.8
    memory = trainer.learner.memory
    held = memory.ids[memory.occupied].tolist()
    assert sum(i in wrong for i in held) <= 0.1 * len(held)


def offered(right, loss=None):
    """Ten examples of each of three classes, whose features are their numbers, and a memory of 12
    after it chose among them."""
    memory, draw = Memory(12, SELECTIONS["judged"].columns), torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 10 + [1] * 10 + [2] * 10)
    features = torch.randn(30, 4, generator=draw)
    offer = Offer(
        labels,
        torch.arange(30),
        0,
        3,
        right=torch.tensor(right),
        task_loss=loss,
        points=lambda rows: features[rows],
    )
    batch = Batch(torch.zeros(30, 1), labels, torch.arange(30))
    memory.apply(SELECTIONS["judged"].decide(memory, offer, draw), batch, 0)
    return memory, features


def test_judged_keeps_what_is_right_and_never_leaves_a_class_without_anyone():
    memory, _ = offered([0.95] * 5 + [0.1] * 5 + [0.95] * 10 + [0.2] * 9 + [0.4])
    held = memory.ids[memory.occupied].tolist()
    assert not set(range(5, 10)) & set(held)
    assert 29 in held
    assert memory.labels[memory.occupied].bincount().tolist() == [5, 5, 2]


def test_judged_herds_among_what_is_likely_and_of_low_loss():
    """Of class 1 half the labels are wrong, so the loss of the rest must be in the lowest quarter,
    before others fill its share."""
    loss = torch.arange(30).float()
    memory, features = offered([0.9] * 10 + [0.9] * 5 + [0.0] * 5 + [0.6] * 5 + [0.9] * 5, loss)
    held = memory.ids[memory.occupied].tolist()
    assert memory.labels[memory.occupied].bincount().tolist() == [4, 4, 4]
    assert {10, 11} <= set(held)  # the lower quarter of the five that are allowed
    assert not set(range(15, 20)) & set(held)
    assert 25 in held  # the only likely one of class 2 whose loss is below 25.6, its 62.5% quantile
    own = [i for i in held if i < 10]
    mean = features[:10].div(features[:10].norm(dim=1, keepdim=True)).mean(0)
    first = min(range(10), key=lambda i: float((features[i] / features[i].norm() - mean).norm()))
    assert first in own  # herding takes what is nearest to the mean of its class


def test_it_records_the_influence_of_all_examples_of_a_task_that_has_a_past():
    trainer = digits("metasp-robust", trusted=2, epochs=2)
    learner = trainer.learner
    for event in trainer.run():
        if type(event).__name__ == "StepTaken":
            measured_ids = set(learner.influence_stats.ids.tolist())
            looked = event.task and event.epoch  # as labels are judged from the second epoch on
            assert measured_ids == (set(learner.current.ids.tolist()) if looked else set())
            if looked:
                break
    learner.influence_stats = measured()
    learner.weigh.look(learner)
    head, memory = head_of(learner.model), learner.memory
    rows = torch.arange(3)
    batches = [memory.read(memory.occupied[memory.pinned[memory.occupied]])]
    tasks = memory.tasks[memory.occupied[memory.pinned[memory.occupied]]]
    batches.append(learner.current.take(rows))
    learner.model.eval()
    goal, some = (learner.losses(learner.unaugmented(batch)) for batch in batches)

    def gradient(loss):
        found = torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
        return torch.cat([part.flatten() for part in found])

    old, new = gradient(goal[tasks == 0].mean()), gradient(goal[tasks == 1].mean())
    expected = [[-float(old @ gradient(loss)), -float(new @ gradient(loss))] for loss in some]
    found = learner.influence_stats.means(learner.current.ids[rows])[:, :2]
    assert found.tolist() == [pytest.approx(pair, rel=1e-3, abs=1e-6) for pair in expected]
