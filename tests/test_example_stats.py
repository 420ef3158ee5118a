"""Means per example id: right, and the same bits however updates are cut into batches or stored."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load, save

from metasp import ExampleStats
from metasp.errors import UserError
from metasp.example_stats import MOST_WAITING, TrainingStats, Update, are_classes, margins
from tests.methods.factories import digits

NAN = math.nan
NAMES = ("stability", "plasticity", "fused")


def measurements(n=400, ids=37, seed=0):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-18, 6, (3, n))
    values = rng.standard_normal((3, n)) * scales
    return torch.from_numpy(rng.integers(0, ids, n) * 10**12 - 5), torch.from_numpy(values)


def entered(ids, values, size, only=None):
    stats = ExampleStats(*NAMES, ids=only)
    for part in torch.split(torch.arange(len(ids)), size):
        stats.add(ids[part], **dict(zip(NAMES, values[:, part])))
    return stats


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("size", [1, 7, 64, 400])
@pytest.mark.parametrize("named", [False, True])
def test_means_are_right_and_batches_do_not_matter(size, named):
    """An id that comes twice in a batch is entered twice, in its order."""
    ids, values = measurements()
    stats = entered(ids, values, size, ids.unique() if named else None)
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for name, value in zip(ids.tolist(), values[1].tolist()):
        sums[name] = sums.get(name, 0.0) + value
        counts[name] = counts.get(name, 0) + 1
    table = stats.table()
    assert table["id"].tolist() == sorted(sums) == stats.ids.tolist()
    assert table["count"].tolist() == [counts[name] for name in sorted(sums)]
    means = [sums[name] / counts[name] for name in sorted(sums)]
    assert table["plasticity"].tolist() == means
    assert stats.means(stats.ids, "plasticity").tolist() == means
    assert stats.means(stats.ids)[:, 1].tolist() == means
    assert stats.counts(torch.tensor([4, *ids[:1].tolist()])).tolist() == [0, counts[int(ids[0])]]


def test_merging_adds_sums_and_forgetting_drops_rows():
    ids, values = measurements()
    both, second = entered(ids[:100], values[:, :100], 7), entered(ids[100:], values[:, 100:], 9)
    both.merge(second)
    whole = entered(ids, values, 50).table()
    assert torch.equal(both.table()["count"], whole["count"])
    sizes = values[2].abs().max()
    torch.testing.assert_close(both.table()["fused"], whole["fused"], rtol=0, atol=1e-13 * sizes)
    gone, rest = both.ids[::2], both.ids[1::2]
    kept = both.means(rest)
    both.forget(gone)
    assert torch.equal(both.ids, rest)
    assert torch.equal(both.means(rest), kept)
    assert both.means(gone).isnan().all()


def test_stored_and_loaded_it_continues():
    ids, values = measurements()
    again = ExampleStats(*NAMES)
    again.load_state_dict(load(save(entered(ids[:200], values[:, :200], 64).state_dict())))
    again.add(ids[200:], **dict(zip(NAMES, values[:, 200:])))
    assert equal(again, entered(ids, values, 64))


def test_tensors_with_graph_arrays_and_lists():
    stats = ExampleStats(*NAMES)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    stats.add(torch.tensor([4, 2]), stability=x, plasticity=x * 2, fused=-x)
    stats.add([4], stability=[3.0], plasticity=np.array([4.0]), fused=[NAN])
    assert len(stats) == 2
    assert stats.means([4, 99])[0].tolist() == [2.0, 3.0, -1.0]
    assert stats.means([4, 99])[1].isnan().all()
    empty = ExampleStats(*NAMES)
    assert empty.means([4]).isnan().all()
    assert empty.table()["id"].tolist() == []


def test_mistakes():
    stats = ExampleStats("loss")
    with pytest.raises(UserError, match="one id"):
        stats.add([3], loss=[0.0, 1.0])
    with pytest.raises(UserError, match="one number of loss, per"):
        stats.add([3], lost=[0.0])
    with pytest.raises(UserError, match="other shapes"):
        stats.load_state_dict({"ids": [1], "sums": [[0, 1]], "counts": [[1]]})
    with pytest.raises(UserError, match="cannot take those of stability"):
        stats.merge(ExampleStats("stability"))


def note(stats, ids, losses, labels, outputs=None):
    even = torch.full((len(ids),), 1 / len(ids))
    stats.note(Update(torch.tensor(ids), torch.tensor(losses), even, even, torch.tensor(labels),
                      None if outputs is None else torch.tensor(outputs)))  # fmt: skip


def test_training_stats_know_their_examples_alone_and_the_latest_prediction():
    stats = TrainingStats(torch.tensor([30, 10, 20]))
    note(stats, [10, 99, 30], [1.0, 9.0, NAN], [0, 0, 1], [[3.0, 1.0], [1.0, 1.0], [2.5, 0.5]])
    note(stats, [10, 10], [5.0, 0.0], [0, 1], [[0.0, 1.0], [4.0, 1.0]])
    ids = torch.tensor([10, 30, 20, 99])
    assert stats.examples.means(ids, "loss").tolist()[:1] == [2.0]
    assert stats.examples.means(ids, "loss")[1:].isnan().all()
    assert stats.examples.means(ids, "margin").tolist()[:2] == [(2 - 1 - 3) / 3, -2.0]
    assert stats.examples.last(ids, "predicted").tolist()[:2] == [0, 0]
    assert stats.examples.last(ids, "predicted")[2:].isnan().all()
    stats.follow(torch.tensor([10, 50]))
    assert stats.examples.ids.tolist() == [10, 50]
    assert stats.examples.means(ids, "loss").tolist()[0] == 2.0
    assert stats.examples.last(ids, "predicted")[0] == 0


def test_updates_that_wait_count_as_if_each_had_been_entered_at_once():
    """Also where an example comes twice in a batch, a head grows, and labels are not classes."""
    draw = torch.Generator().manual_seed(0)
    together, apart = TrainingStats(torch.arange(40)), TrainingStats(torch.arange(40))
    for turn in range(3 * MOST_WAITING // 2):
        ids = torch.randint(50, (7,), generator=draw)
        losses, weights = torch.rand(2, 7, generator=draw)
        labels = torch.randint(3, (7,), generator=draw)
        outputs = torch.randn(7, 3 + turn // 40, generator=draw) if turn % 50 else None
        columns = (ids, losses, weights, torch.full((7,), 1 / 7), labels)
        together.note(Update(*columns, outputs))
        for row in range(7):
            one = slice(row, row + 1)
            alone = None if outputs is None else outputs[one]
            apart.note(Update(*(column[one] for column in columns), alone))
            assert apart.examples
        if turn == 70:
            state = together.state_dict()
            together = TrainingStats()
            together.load_state_dict(state)
    found = together.state_dict()
    for name, values in apart.state_dict().items():
        assert torch.equal(found[name].nan_to_num(nan=-9), values.nan_to_num(nan=-9)), name


def test_mean_outputs_are_kept_of_the_classes_and_examples_that_are_asked_for():
    """Of verified examples too, also across a restart; after one is forgotten nothing of it is
    left, and an open task keeps none."""
    draw = torch.Generator().manual_seed(0)
    stats = TrainingStats(torch.tensor([3, 1, 2]), classes=(4, 1), verified=torch.tensor([9, 7]))
    seen: dict[int, list[torch.Tensor]] = {}
    for turn in range(MOST_WAITING + 10):
        ids = torch.randint(12, (5,), generator=draw)
        outputs = torch.randn(5, 6, generator=draw)
        even, labels = torch.full((5,), 0.2), torch.ones(5, dtype=torch.long)
        stats.note(Update(ids, torch.rand(5), even, even, labels, outputs))
        for name, row in zip(ids.tolist(), outputs):
            seen.setdefault(name, []).append(row[[1, 4]])
        if turn == 30:
            state = stats.state_dict()
            stats = TrainingStats()
            stats.load_state_dict(state)
    for name in (1, 2, 3, 7, 9):
        mean = torch.stack(seen[name]).mean(0)
        assert torch.allclose(stats.outputs.means([name])[0], mean, atol=1e-5)
    assert stats.outputs.means([0, 11]).isnan().all()
    before = stats.outputs.means([1, 2, 7])
    stats.forget(torch.tensor([9, 3]))
    assert (stats.examples.ids.tolist(), stats.outputs.ids.tolist()) == ([1, 2], [1, 2, 7])
    assert torch.equal(stats.outputs.means([1, 2, 7]), before)
    stats.follow(torch.tensor([1]))
    assert not len(stats.outputs)


def test_mean_outputs_are_bounded(monkeypatch):
    monkeypatch.setattr("metasp.example_stats.MOST_OUTPUTS", 9)
    assert len(TrainingStats(torch.arange(3), classes=(0, 1, 2)).outputs) == 3
    assert not len(TrainingStats(torch.arange(4), classes=(0, 1, 2)).outputs)


def test_a_margin_is_the_logit_of_the_label_less_the_largest_other():
    outputs = torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 1.0]])
    assert margins(outputs, torch.tensor([0, 2])).tolist() == [0.5, -3.0]
    assert are_classes(outputs, torch.tensor([0, 2]))
    assert not are_classes(outputs[:, 0], torch.tensor([0, 1]))
    assert not are_classes(outputs, torch.tensor([0.5, 1.5]))


def test_every_example_of_the_first_task_is_counted_in_every_epoch():
    """With a learning rate of zero the mean loss is the loss of the untrained model."""
    trainer = digits("er", epochs=2, lr=1e-12, augment=False, augment_memory=False)
    task, model = trainer.tasks[0], trainer.learner.model
    model.eval()
    batch = trainer.learner.unaugmented(task.train.take(torch.arange(len(task.train))))
    outputs = model(batch.inputs).detach()
    model.train()
    for event in trainer.run():
        if type(event).__name__ == "StepTaken" and (event.task, event.epoch) == (1, 0):
            break
        if type(event).__name__ == "StepTaken":
            stats = trainer.learner.training_stats.examples
    assert (stats.counts(task.train.ids) >= 2).all()
    loss = F.cross_entropy(outputs, batch.labels, reduction="none")
    found = stats.means(task.train.ids, "loss")
    normalised = any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    torch.testing.assert_close(found.float(), loss, atol=1.0 if normalised else 1e-4, rtol=0.2)
    assert (stats.means(task.train.ids, "weight") == 1).all()
