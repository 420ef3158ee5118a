"""How examples fared: the means of loss, margin and weight over the updates of a task."""

import torch
import torch.nn.functional as F

from metasp.methods.tally import MOST_WAITING, Tally, Update, are_classes, margins
from tests.methods.factories import digits


def test_means_are_those_of_all_entries_and_strangers_do_not_count():
    nan = torch.nan
    tally = Tally(torch.tensor([30, 10, 20]))
    first = torch.tensor([[1.0, 2, nan], [9, 9, 9], [3, 4, 0.5]])
    tally.add(torch.tensor([10, 99, 30]), first, torch.tensor([7, 8, 9]))
    tally.add(torch.tensor([10, 10]), torch.tensor([[5.0, 0, 1], [0, 1, nan]]))
    assert tally.means(torch.tensor([10, 30]), "loss").tolist() == [2.0, 3.0]
    assert tally.means(torch.tensor([10, 30]), "margin").tolist() == [1.0, 4.0]
    assert tally.means(torch.tensor([30, 10]), "weight").tolist() == [0.5, 1.0]
    assert tally.means(torch.tensor([20, 99, 5]), "loss").isnan().all()
    assert tally.predicted.tolist() == [7, -1, 9]
    kept = Tally.from_state(tally.without(torch.tensor([30])).state())
    assert kept.means(torch.tensor([10]), "loss").tolist() == [2.0]
    assert kept.means(torch.tensor([30]), "loss").isnan().all()
    assert kept.predicted.tolist() == [7, -1]


def test_updates_that_wait_count_as_if_each_had_been_entered_at_once():
    """Also where an example comes twice in a batch, a head grows, and labels are not classes."""
    draw = torch.Generator().manual_seed(0)
    together, apart = Tally(torch.arange(40)), Tally(torch.arange(40))
    for turn in range(3 * MOST_WAITING // 2):
        ids = torch.randint(50, (7,), generator=draw)
        losses, weights = torch.rand(2, 7, generator=draw)
        labels = torch.randint(3, (7,), generator=draw)
        outputs = torch.randn(7, 3 + turn // 40, generator=draw) if turn % 50 else None
        even = torch.full((7,), 1 / 7)
        together.note(Update(ids, losses, weights, even, labels, outputs))
        margin, predicted = torch.full((7,), torch.nan), None
        if outputs is not None:
            margin, predicted = margins(outputs, labels), outputs.argmax(1)
        values = torch.stack([losses, margin, weights / even], dim=1)
        for row in range(7):
            one = slice(row, row + 1)
            apart.add(ids[one], values[one], None if predicted is None else predicted[one])
        if turn == 70:
            together = Tally.from_state(together.state())
    for name, values in apart.state().items():
        assert torch.equal(together.state()[name], values) or name == "running", name


def test_what_the_model_said_is_kept_of_the_classes_and_examples_that_are_asked_for():
    """The means are those of all updates, of verified examples too, also across a restart; after
    one is forgotten nothing of it is left, and an open task keeps none."""
    draw = torch.Generator().manual_seed(0)
    tally = Tally(torch.tensor([3, 1, 2]), classes=(4, 1), verified=torch.tensor([9, 7]))
    seen: dict[int, list[torch.Tensor]] = {}
    for turn in range(MOST_WAITING + 10):
        ids = torch.randint(12, (5,), generator=draw)
        outputs = torch.randn(5, 6, generator=draw)
        even, labels = torch.full((5,), 0.2), torch.ones(5, dtype=torch.long)
        tally.note(Update(ids, torch.rand(5), even, even, labels, outputs))
        for name, row in zip(ids.tolist(), outputs):
            seen.setdefault(name, []).append(row[[1, 4]])
        if turn == 30:
            tally = Tally.from_state(tally.state())
    for name in (1, 2, 3, 7, 9):
        mean = torch.stack(seen[name]).mean(0)
        assert torch.allclose(tally.said.means(torch.tensor([name]))[0], mean, atol=1e-5)
    assert tally.said.means(torch.tensor([0, 11])).isnan().all()
    less = tally.without(torch.tensor([9, 3]))
    assert (less.ids.tolist(), less.said.ids.tolist()) == ([1, 2], [1, 2, 7])
    kept = torch.tensor([1, 2, 7])
    assert torch.equal(less.said.means(kept), tally.said.means(kept))
    assert not len(tally.following(torch.tensor([1])).said.ids)


def test_what_the_model_said_is_bounded_and_may_be_missing_in_an_old_state(monkeypatch):
    monkeypatch.setattr("metasp.methods.tally.MOST_SAID", 9)
    assert len(Tally(torch.arange(3), classes=(0, 1, 2)).said.ids) == 3
    assert not len(Tally(torch.arange(4), classes=(0, 1, 2)).said.ids)
    state = Tally(torch.arange(3), classes=(0, 1, 2)).state()
    old = {name: values for name, values in state.items() if "said" not in name}
    del old["classes"]
    restored = Tally.from_state(old)
    assert not len(restored.said.ids)
    assert restored.ids.tolist() == [0, 1, 2]


def test_an_empty_tally_takes_and_gives_nothing():
    tally = Tally(torch.zeros(0, dtype=torch.long))
    tally.add(torch.tensor([1]), torch.ones(1, 3), torch.tensor([0]))
    assert tally.means(torch.tensor([1]), "loss").isnan().all()


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
            tally = trainer.learner.tally
    rows = torch.searchsorted(tally.ids, task.train.ids)
    assert (tally.counts[rows, 0] >= 2).all()
    loss = F.cross_entropy(outputs, batch.labels, reduction="none")
    found = tally.means(task.train.ids, "loss")
    normalised = any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    torch.testing.assert_close(found.float(), loss, atol=1.0 if normalised else 1e-4, rtol=0.2)
    assert (tally.means(task.train.ids, "weight") == 1).all()
