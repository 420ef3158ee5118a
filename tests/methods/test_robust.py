"""MetaSP against wrong labels: its influence, its mixture, its weights, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.benchmarks import load_benchmark
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.methods.features import features_seen, head_of
from metasp.methods.goal import class_means, fresh_head_influence
from metasp.methods.learner import Weighed
from metasp.methods.mixture import Mixture
from metasp.methods.robust import answer_margins, follow
from metasp.types import Batch
from tests.methods.worlds import digits, small, train

NOISY = {"label_noise": 0.6, "label_noise_kind": "one-sided", "imbalance": 0.5}


def through_a_head_of_zeros(feature, goals):
    """The drop of the goal's mean loss, both classes alike, by a step of a two-class head of zeros
    on one example, as a gradient of that loss for the size of the step; labels are 0 and 1."""
    middle = (goals[0].mean(0) + goals[1].mean(0)) / 2
    head = torch.zeros(2, len(feature), dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy((head @ (feature - middle))[None], torch.tensor([0]))
    (slope,) = torch.autograd.grad(loss, head)
    size = torch.zeros((), dtype=torch.float64, requires_grad=True)
    moved = -size * slope
    parts = [
        F.cross_entropy((goal - middle) @ moved.T, torch.full((len(goal),), label))
        for label, goal in enumerate(goals)
    ]
    (change,) = torch.autograd.grad((parts[0] + parts[1]) / 2, size)
    return -float(change)


def test_the_influence_is_that_of_the_first_step_of_a_head_of_zeros():
    """Eight times the drop is the difference of the squared distances to the two means."""
    draw = torch.Generator().manual_seed(0)
    goals = [torch.randn(6, 5, generator=draw, dtype=torch.float64) + 2 * k for k in range(3)]
    labels = torch.arange(18) // 6
    means, known = class_means(torch.cat(goals), labels)
    assert known.all()
    features = torch.randn(9, 5, generator=draw, dtype=torch.float64) + 1
    given = torch.arange(9) % 3
    found = fresh_head_influence(features, given, means, known)
    for feature, label, ours in zip(features, given.tolist(), found.tolist()):
        by_rival = []
        for rival in {0, 1, 2} - {label}:
            drop = through_a_head_of_zeros(feature, [goals[label], goals[rival]])
            scale = sum(float((feature - means[k]).square().sum()) for k in (label, rival))
            by_rival.append(8 * drop / scale)
        assert ours == pytest.approx(min(by_rival), abs=1e-10)


def test_a_rival_of_the_past_counts_less():
    means, features = torch.eye(3), torch.tensor([[0.6, 0.0, 0.5]])
    known, old = torch.ones(3, dtype=torch.bool), torch.tensor([False, False, True])
    label = torch.tensor([0])
    plain = fresh_head_influence(features, label, means, known)
    eased = fresh_head_influence(features, label, means, known, old)
    assert float(eased) == pytest.approx(float(plain) + 0.2)


def test_nobody_is_judged_without_someone_who_stands_for_the_class_and_a_rival():
    means, features = torch.eye(3), torch.eye(3)
    known = torch.tensor([True, True, False])
    found = fresh_head_influence(features, torch.tensor([0, 0, 2]), means, known)
    assert found[:2].tolist() == pytest.approx([1.0, -1.0])
    assert bool(found[2].isnan())
    alone = torch.tensor([True, False, False])
    assert fresh_head_influence(features, torch.tensor([0, 1, 5]), means, alone).isnan().all()


def test_a_mixture_finds_the_share_of_wrong_labels_of_each_class():
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(4000) % 2
    wrong = torch.rand(4000, generator=draw) < torch.tensor([0.1, 0.6])[labels]
    values = torch.where(wrong, -0.7, 0.9) + 0.3 * torch.randn(4000, generator=draw)
    mixture = Mixture.fit(values, labels, 2)
    assert mixture.shares.tolist() == pytest.approx([0.1, 0.6], abs=0.03)
    assert (mixture.right, mixture.wrong) == pytest.approx((0.9, -0.7), abs=0.05)
    chance = mixture.probability(values, labels)
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        inside = (chance >= low) & (chance <= high)
        share = float((~wrong)[inside].double().mean())
        assert share == pytest.approx(float(chance[inside].mean()), abs=0.12)


def test_a_clean_class_is_found_almost_clean():
    values = 1 + 0.2 * torch.randn(500, generator=torch.Generator().manual_seed(2))
    mixture = Mixture.fit(values, torch.zeros(500, dtype=torch.long), 1)
    assert float(mixture.shares[0]) < 0.02
    assert (
        float((mixture.probability(values, torch.zeros(500).long()) > 0.9).double().mean()) > 0.97
    )


def test_a_running_value_goes_half_the_way_and_what_is_not_known_moves_nothing():
    running = torch.tensor([torch.nan, 1.0, 2.0, torch.nan])
    running = running[:, None].clone()
    follow(running, torch.tensor([0, 1, 2]), 0, torch.tensor([0.5, 0.0, torch.nan]))
    assert running[:3, 0].tolist() == [0.5, 0.5, 2.0]
    assert bool(running[3, 0].isnan())


def test_the_margin_of_an_answer_is_between_minus_one_and_one():
    outputs = torch.tensor([[10.0, -10.0, 0.0], [0.0, 0.0, 0.0]])
    assert answer_margins(outputs, torch.tensor([0, 1])).tolist() == pytest.approx([1, 0], abs=1e-3)
    assert answer_margins(outputs, torch.tensor([1, 1]))[0] == pytest.approx(-1, abs=1e-3)


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
    return learner.weigh._weighted(learner, Weighed(torch.zeros(16), even), right).weights


def test_new_examples_share_what_they_had_by_their_chance_to_be_right():
    trainer = digits("metasp-robust")
    right = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0])
    weights = weighed_like(trainer, right)
    assert weights[8:].tolist() == [1 / 16] * 8
    torch.testing.assert_close(weights[:8], right / right.sum() / 2)
    assert weighed_like(trainer, torch.zeros(8))[:8].tolist() == [0.0] * 8


def test_with_all_chances_equal_the_update_is_that_of_er_to_the_bit(monkeypatch):
    monkeypatch.setattr(
        Mixture, "probability", lambda self, values, _: torch.full((len(values),), 0.8).double()
    )
    one = digits("metasp-robust", selection="class-balanced", epochs=3)
    other = digits("er", selection="class-balanced", epochs=3)
    for trainer in (one, other):
        train(trainer, 24)
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


def test_nothing_of_the_test_data_or_of_later_tasks_stands_in_the_goal():
    trainer = digits("metasp-robust", **NOISY, trusted=2, epochs=3)
    seen: list[int] = []
    learner = trainer.learner
    plain = learner.plain

    def watched(raw):
        seen.extend(raw.ids.tolist())
        return plain(raw)

    learner.plain = watched
    for event in trainer.run():
        if type(event).__name__ == "StepTaken" and event.task == 0:
            allowed = trainer.tasks[0]
            mine = {*allowed.train.ids.tolist(), *allowed.trusted.ids.tolist()}
            assert set(seen) <= mine
            seen.clear()
        elif type(event).__name__ == "StepTaken":
            break
        else:
            seen.clear()  # testing looks at test data


def test_judged_keeps_what_is_right_and_never_leaves_a_class_without_anyone():
    memory, draw = Memory(12), torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 10 + [1] * 10 + [2] * 10)
    right = torch.tensor([0.95] * 5 + [0.1] * 5 + [0.95] * 10 + [0.2] * 9 + [0.4])
    loss = torch.arange(30).float()
    offer = Offer(labels, torch.arange(30), 0, 3, right=right, task_loss=loss)
    batch = Batch(torch.zeros(30, 1), labels, torch.arange(30))
    memory.apply(SELECTIONS["judged"].decide(memory, offer, draw), batch, 0)
    held = memory.ids[memory.occupied].tolist()
    assert not set(range(5, 10)) & set(held)
    assert 29 in held
    assert memory.labels[memory.occupied].bincount().tolist()[:2] == [5, 5]
