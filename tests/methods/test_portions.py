"""Passes without gradients take many small examples at once, and few large ones."""

import pytest
import torch

from metasp import trees
from metasp.learner.outputs import model_outputs
from metasp.methods.base import over_task
from tests.methods.factories import digits


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((1, 8, 8), 500),
        ((3, 84, 84), 500),  # the largest of any stored result
        ((3, 105, 105), 500),
        ((3, 106, 106), 497),
        ((3, 224, 224), 111),
        ((3, 4000, 4000), 1),
        ((), 500),
    ],
)
def test_as_many_as_have_so_many_numbers(shape, rows):
    assert trees.at_once(torch.zeros(1).expand(9, *shape)) == rows
    several = {"a": torch.zeros(1).expand(9, *shape), "b": (torch.zeros(1).expand(9, *shape),)}
    numbers = 2 * torch.Size(shape).numel()
    assert trees.at_once(several) == max(1, min(500, 2**24 // numbers))


@pytest.mark.parametrize(("numbers", "rows"), [(64 * 7, 7), (64 * 7 + 63, 7), (1, 1)])
def test_the_same_outputs_in_smaller_portions(numbers, rows, monkeypatch):
    trainer = digits("er", limit_per_class=10)
    learner, examples = trainer.learner, trainer.tasks[0].train
    seen = list[int]()
    learner.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    inputs = examples.take(torch.arange(len(examples))).inputs

    def both():
        seen.clear()
        one = over_task(learner, examples, lambda batch: learner.outputs(batch.inputs))
        half = len(seen)
        other = model_outputs(learner, inputs)
        return one, other, seen[:half], seen[half:]

    whole = both()
    assert whole[2] == whole[3] == [20]
    monkeypatch.setattr(trees, "NUMBERS_AT_ONCE", numbers)
    parted = both()
    sizes = [len(part) for part in torch.arange(20).split(rows)]
    assert parted[2] == parted[3] == sizes
    for before, after in zip(whole[:2], parted[:2]):
        torch.testing.assert_close(after, before)
