"""A memory of inputs that are several tensors."""

import numpy as np
import pytest
import torch

from metasp import trees
from metasp.errors import UserError
from metasp.memory import Memory
from metasp.store.forget import cleared, slot_columns
from metasp.types import Batch, Examples

NESTS = {
    "tensor": torch.arange(12.0).reshape(4, 3),
    "dict": {"a b": torch.arange(4), "it's": torch.arange(8).reshape(4, 2)},
    "tuple": (torch.arange(4), torch.arange(12.0).reshape(4, 3)),
    "nested": {"x": (torch.arange(4), {"0": torch.arange(4), "y[1]": torch.ones(4, 2)})},
    "many": tuple(torch.arange(4) + number for number in range(12)),
}


def batch(inputs, ids=(7, 8, 9, 10)):
    return Batch(inputs, torch.tensor([0, 1, 0, 1]), torch.tensor(ids))


@pytest.mark.parametrize("name", NESTS)
def test_columns_and_back(name):
    again = trees.from_columns("inputs", {"labels": torch.zeros(1), "inputs_seen": torch.zeros(1),
                                          **trees.to_columns("inputs", NESTS[name])})  # fmt: skip
    assert trees.same(again, NESTS[name])
    assert trees.size(again) == 4
    assert trees.from_columns("inputs", {"labels": torch.zeros(1)}) is None


@pytest.mark.parametrize("name", NESTS)
def test_written_read_cleared_and_restored(name):
    memory = Memory(6)
    memory.write(torch.tensor([5, 0, 2, 3]), batch(NESTS[name]), 0)
    back = memory.read(torch.tensor([5, 0, 2, 3]))
    assert trees.same(back.inputs, NESTS[name])
    again = Memory(6)
    again.load_state_dict({name: tensor.clone() for name, tensor in memory.state_dict().items()})
    assert trees.same(again.inputs, memory.inputs)
    again.forget(torch.tensor([8, 10]))
    assert again.ids.tolist() == [-1, -1, 9, -1, -1, 7]
    for leaf in trees.named_leaves(again.inputs).values():
        assert not leaf[[0, 1, 3, 4]].any()
    kept = again.read(torch.tensor([5, 2])).inputs
    assert trees.same(kept, trees.rows(NESTS[name], [0, 2]))
    assert trees.same(memory.read(torch.tensor([5, 0, 2, 3])).inputs, NESTS[name])
    held = again.examples()
    assert trees.same(held.take(torch.arange(2)).inputs, trees.rows(NESTS[name], [2, 0]))


@pytest.mark.parametrize("name", NESTS)
def test_an_example_is_erased_from_a_checkpoint(name):
    """Every array below memory/ has a row per slot, whatever inputs are."""
    memory = Memory(5)
    memory.write(torch.tensor([4, 1, 2, 0]), batch(NESTS[name]), 0)
    arrays = {f"memory/{key}": value.numpy() for key, value in memory.state_dict().items()}
    assert all(len(arrays[column]) == 5 for column in slot_columns(arrays))
    left = cleared(arrays, np.array([8]))
    again = Memory(5)
    again.load_state_dict({key[7:]: torch.from_numpy(left[key]) for key in left})
    assert again.ids.tolist() == [10, -1, 9, -1, 7]
    for leaf in trees.named_leaves(again.inputs).values():
        assert not leaf[1].any()
    kept = again.read(torch.tensor([4, 2, 0])).inputs
    assert trees.same(kept, trees.rows(NESTS[name], [0, 2, 3]))


def test_batches_and_examples_of_several_tensors():
    first, second = batch(NESTS["dict"]), batch(NESTS["dict"], (1, 2, 3, 4))
    both = Batch.join([first, second])
    assert both.size == 8
    assert both.inputs["it's"].shape == (8, 2)
    assert trees.same(both.at(slice(4, 8)).inputs, second.inputs)
    some = Examples.of(*first).only(torch.tensor([2, 0])).take(torch.tensor([1]))
    assert some.inputs["a b"].tolist() == [0]
    assert some.ids.tolist() == [7]
    with pytest.raises(UserError, match="gmed needs inputs that are one tensor"):
        trees.one_tensor(first.inputs, "gmed")
