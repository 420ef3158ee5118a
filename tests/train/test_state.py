"""What a part keeps and does not store is noticed: a restored trainer has every attribute of one
that was never stopped."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from metasp.example_stats import ExampleStats
from metasp.methods import METHODS, Method, Recipe
from metasp.stateful import Stateful
from metasp.types import Batch
from tests.methods.factories import digits, finish

# What belongs to a step under way or is said anew before it is used; what a part was made with.
PASSING = {
    "AERABS": {"losses"},
    "DER": {"outputs"},
    "Ridge": {"learned"},  # comes back in other pieces
    "StreamingLDA": {"learned"},
    "TrainingStats": {"_waiting", "_numbers"},
}
ONE_EPOCH = ("slda", "ridge")
OTHERS = ("learner", "optimizer", "model", "make", "detector")


def unlike(a, b, at=""):
    """The places below which two parts differ."""
    if isinstance(a, Tensor):
        same = isinstance(b, Tensor) and a.shape == b.shape and torch.equal(
            a.nan_to_num(nan=-7), b.nan_to_num(nan=-7)
        )  # fmt: skip
        return [] if same else [at]
    if isinstance(a, torch.Generator):
        return [] if torch.equal(a.get_state(), b.get_state()) else [at]
    if isinstance(a, Batch | tuple | list) and not isinstance(a, str):
        if type(a) is not type(b) or len(a) != len(b):
            return [at]
        return [p for n, (x, y) in enumerate(zip(a, b)) for p in unlike(x, y, f"{at}[{n}]")]
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            return [at]
        return [place for key in a for place in unlike(a[key], b[key], f"{at}[{key}]")]
    if isinstance(a, ExampleStats):  # whose rows may come back in another order
        return unlike(a.state_dict(), b.state_dict(), at)
    if type(a).__module__.startswith("metasp") and hasattr(a, "__dict__"):
        skipped = {*OTHERS, *PASSING.get(type(a).__name__, ())}
        names = vars(a).keys() - skipped
        return [p for name in names for p in unlike(getattr(a, name), getattr(b, name, None),
                                                    f"{at}.{name}")]  # fmt: skip
    return [] if callable(a) or a == b or (a != a and b != b) else [at]


def parts_of(trainer):
    """All that a trainer collects, but the network and the optimizer."""
    parts = {
        name: part for name, part in trainer.parts().items() if name not in ("model", "engine")
    }
    return {**parts, **{name: getattr(trainer, name) for name in trainer.stored}}


def stopped(method, **changes):
    """A trainer in the midst of its second task, with the last state that it gave."""
    trainer = digits(method, epochs=3, limit_per_class=8, **changes)
    for event in trainer.run():
        at = trainer.position
        late = at.task == 1 and at.step and (at.epoch or method in ONE_EPOCH)
        if type(event).__name__ == "StepTaken" and late:
            return trainer
    raise AssertionError("it never got there")


RUNS = [
    *((method, {}) for method in METHODS),
    ("derpp", {"influence": "metasp", "settings": {"reuse": 2, "scope": "head"}}),
    ("er-ace", {"influence": "robust", "label_noise": 0.2}),
    ("loss-filter", {"settings": {"per_class": True}}),
    ("er", {"validation": 0.2, "observe": 1}),
]


@pytest.mark.parametrize(("method", "changes"), RUNS)
def test_a_restored_trainer_has_every_attribute_of_one_that_was_never_stopped(method, changes):
    whole = stopped(method, **changes)
    tensors, position = whole.state()
    again = digits(method, epochs=3, limit_per_class=8, **changes)
    again.restore({name: tensor.clone() for name, tensor in tensors.items()}, position)
    theirs = parts_of(again)
    assert [place for name, part in parts_of(whole).items()
            for place in unlike(part, theirs[name], name)] == []  # fmt: skip
    assert again.position == whole.position


class Counting(Stateful):
    stored = ("count", "rows", "rows_ids", "seen", "last", "weights", "missing")

    def __init__(self):
        self.count, self.seen, self.weights = 0, [0], {}
        self.rows, self.rows_ids, self.last, self.missing = None, None, None, None


def test_named_attributes_are_stored_restored_and_forgotten():
    part = Counting()
    part.count, part.seen, part.weights = 3, [4, 5], {"a": torch.ones(2)}
    part.rows, part.rows_ids = torch.arange(6.0).reshape(3, 2), torch.tensor([7, 8, 9])
    part.last = Batch((torch.ones(2, 3), torch.zeros(2)), torch.arange(2), torch.tensor([8, 1]))
    again = Counting()
    again.missing = torch.ones(1)
    again.load_state_dict(part.state_dict())
    assert unlike(vars(part), vars(again)) == []
    again.forget(torch.tensor([8]))
    assert again.rows.tolist() == [[0, 1], [4, 5]]
    assert again.rows_ids.tolist() == [7, 9]
    assert again.last.ids.tolist() == [1]
    assert again.last.inputs[1].tolist() == [0]
    assert isinstance(nn.Linear(1, 1).state_dict(), Mapping)


class Epochs(Method):
    """Counts what it is told of the epochs."""

    stored = ("told",)

    def __init__(self, learner, settings):
        super().__init__(learner, settings)
        self.told = []

    def begin_epoch(self, task, epoch):
        self.told.append(10 * task.index + epoch)

    def step(self, new, phase):
        return self.learner.update(self.learner.with_replay(new))


def test_every_epoch_begins_once_also_across_a_restart(monkeypatch):
    monkeypatch.setitem(METHODS, "epochs", Recipe(Epochs))
    small = {"epochs": 2, "limit_per_class": 4, "tasks": 2, "rehearse_last": 1}
    for stop in range(1, 9):
        trainer = digits("epochs", **small)
        for event in trainer.run():
            stop -= type(event).__name__ == "StepTaken"
            if not stop:
                break
        tensors, position = trainer.state()
        again = digits("epochs", **small)
        again.restore({name: tensor.clone() for name, tensor in tensors.items()}, position)
        finish(again)
        assert again.method.told == [0, 1, 10, 11]
