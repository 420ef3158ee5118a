"""Examples held out of training end a phase, and the weights of the best epoch are kept."""

import pytest
import torch

from metasp.data import load_benchmark
from metasp.data.verified import held_out
from metasp.errors import UserError
from metasp.events import Noted, StepTaken, TaskFinished, Validated
from tests.methods.factories import digits, small, weights

# A rate at which the loss goes up and down, so that phases stop at different epochs.
RESTLESS = {
    "validation": 0.25,
    "patience": 2,
    "epochs": 12,
    "lr": 0.4,
    "tasks": 2,
    "backbone": "mlp",
    "width": 16,
    "augment": False,
}


LR = {"er": 0.7, "metasp-rehsel": 0.7, "icarl": 3.0, "joint": 0.7}


def walked(trainer):
    """All events, and the weights as they were at each Validated and TaskFinished."""
    events, seen = [], {}
    for event in trainer.run():
        events.append(event)
        if isinstance(event, Validated | TaskFinished):
            seen[len(events) - 1] = weights(trainer).clone()
    return events, seen


def by_hand(losses, patience):
    """The number of epochs taken and the best one, of a phase with these losses."""
    best = 0
    for epoch, loss in enumerate(losses):
        if loss < losses[best]:
            best = epoch
        elif epoch - best >= patience:
            return epoch + 1, best
    return len(losses), best


def test_the_weights_of_the_best_epoch_are_kept_and_the_task_ends_properly():
    trainer = digits("er", **RESTLESS)
    events, seen = walked(trainer)
    stopped = 0
    for task in (0, 1):
        looks = [i for i, e in enumerate(events) if isinstance(e, Validated) and e.task == task]
        losses = [events[i].loss for i in looks]
        count, best = by_hand(losses, 2)
        assert count == len(losses)
        assert [events[i].epoch for i in looks] == list(range(count))
        stopped += count < 12
        (end,) = (i for i, e in enumerate(events) if isinstance(e, TaskFinished) and e.task == task)
        assert torch.equal(seen[end], seen[looks[best]])
        assert best == count - 1 or not torch.equal(seen[end], seen[looks[-1]])
        notes = [e.text for e in events if isinstance(e, Noted) and e.task == task]
        if count < 12:
            assert notes == [
                f"stopped after {count} of 12 epochs (rehearse); the loss on held-out examples was "
                f"lowest after epoch {best + 1} ({losses[best]:.4g}), whose weights are kept."
            ]
        assert {int(t) for t in events[end].memory["task"]} == set(range(task + 1))
    assert stopped  # else nothing was tried


def test_the_loss_is_that_of_the_held_out_examples():
    trainer = digits("er", **{**RESTLESS, "epochs": 1})
    for event in trainer.run():
        if isinstance(event, Validated):
            held = trainer.tasks[event.task].validation
            batch = trainer.learner.unaugmented(held.take(torch.arange(len(held))))
            trainer.learner.model.eval()
            loss = trainer.learner.losses(batch).double().mean()
            trainer.learner.model.train()
            assert event.loss == pytest.approx(float(loss.detach()), rel=1e-6)
            assert event.lowest


def test_each_phase_is_stopped_by_itself():
    """Epochs without rehearsal that are stopped do not keep the others from happening."""
    trainer = digits("metasp", **{**RESTLESS, "settings": {"influence_last": 2}})
    events = list(trainer.run())
    steps = [e for e in events if isinstance(e, StepTaken) and e.task == 1]
    plain = {e.epoch for e in steps if e.kind == "finetune"}
    assert len(plain) < 10
    assert {e.epoch for e in steps if e.kind == "influence"} == {10, 11}


def test_a_seeded_share_of_each_class_is_held_out_and_nothing_that_is_verified():
    def tasks(**changes):
        return load_benchmark(small("er", trusted=2, limit_per_class=20, **changes)).tasks

    plain, held, again, other = (
        tasks(), tasks(validation=0.3), tasks(validation=0.3), tasks(validation=0.3, seed=5)
    )  # fmt: skip
    for before, task, same, third in zip(plain, held, again, other):
        ids = [set(part.ids.tolist()) for part in (task.train, task.validation, task.trusted)]
        assert ids[2] == set(before.trusted.ids.tolist())
        assert ids[0] | ids[1] == set(before.train.ids.tolist())
        assert not ids[0] & ids[1]
        assert torch.equal(task.validation.ids, same.validation.ids)
        assert not torch.equal(task.validation.ids, third.validation.ids)
        for label in task.classes:
            count = int((before.train.labels == label).sum())
            assert int((task.validation.labels == label).sum()) == round(0.3 * count)
        assert torch.equal(task.test.rows, before.test.rows)
        assert ids[1] <= set(task.ids.tolist())
        gone = task.validation.ids[:2]
        assert not torch.isin(gone, task.without(gone).validation.ids).any()


def test_a_share_that_empties_a_class_is_refused():
    generator = torch.Generator().manual_seed(0)
    first, second = held_out(torch.tensor([0, 0, 1, 1]), 0.1, generator).tolist()
    assert first in (0, 1)
    assert second in (2, 3)
    with pytest.raises(UserError, match="leaves nothing of the 1 examples of class 7"):
        held_out(torch.tensor([0, 0, 0, 7]), 0.1, generator)
    with pytest.raises(UserError, match=r"task 1: .*class 0"):
        digits("er", limit_per_class=1, validation=0.5)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="gdumb follows a schedule of its own"):
        digits("gdumb", validation=0.2)
    with pytest.raises(UserError, match="give --validation too"):
        digits("er", patience=5)
