"""Means per id: right, and independent of order, batching, merging and storing."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from metasp.errors import UserError
from metasp.influence.ledger import Ledger


def measurements(n=400, ids=37, seed=0):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-18, 6, (3, n))
    return rng.integers(0, ids, n) * 10**12 - 5, rng.standard_normal((3, n)) * scales


def entered(ids, values, order, size):
    ledger = Ledger()
    for start in range(0, len(order), size):
        part = order[start : start + size]
        ledger.add(ids[part], *values[:, part])
    return ledger


def equal(a, b):
    a, b = a.state(), b.state()
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_means_are_right():
    ids, values = measurements()
    columns = entered(ids, values, np.arange(len(ids)), 64).arrays()
    assert columns["id"].tolist() == sorted(set(ids.tolist()))
    for i, name in enumerate(columns["id"]):
        mine = ids == name
        assert columns["count"][i] == mine.sum()
        for q, quantity in enumerate(("stability", "plasticity", "fused")):
            exact = sum(Fraction(v) for v in values[q, mine].tolist()) / int(mine.sum())
            error = abs(Fraction(float(columns[quantity][i])) - exact)
            assert error <= abs(exact) * Fraction(1, 2**50)


@pytest.mark.parametrize("seed", range(5))
def test_order_and_batches_do_not_matter(seed):
    ids, values = measurements(seed=seed)
    rng = np.random.default_rng(seed)
    first = entered(ids, values, np.arange(len(ids)), 64)
    other = entered(ids, values, rng.permutation(len(ids)), int(rng.integers(1, 100)))
    assert equal(first, other)
    for a, b in zip(first.arrays().values(), other.arrays().values()):
        assert np.array_equal(a, b)


def test_merging_is_entering():
    ids, values = measurements()
    order = np.arange(len(ids))
    whole = entered(ids, values, order, 64)
    a, b = entered(ids, values, order[:100], 7), entered(ids, values, order[100:], 9)
    b.merge(a)
    assert equal(whole, b)


def test_stored_and_loaded_it_continues():
    ids, values = measurements()
    order = np.arange(len(ids))
    half = entered(ids, values, order[:200], 64)
    again = Ledger.from_state(load(save(half.state())))
    again.add(ids[200:], *values[:, 200:])
    assert equal(again, entered(ids, values, order, 64))
    tensors = {k: torch.from_numpy(v) for k, v in half.state().items()}
    assert equal(Ledger.from_state(tensors), half)


def test_tensors_with_graph_and_rows():
    ledger = Ledger()
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    ledger.add(torch.tensor([4, 2]), x, x * 2, -x)
    ledger.add([4], [3.0], [4.0], [-5.0])
    assert len(ledger) == 2
    rows = ledger.rows()
    assert (rows[0].id, rows[0].stability, rows[0].count) == (2, 2.0, 1)
    assert (rows[1].stability, rows[1].plasticity, rows[1].fused) == (2.0, 3.0, -3.0)
    means = ledger.means([4, 99])
    assert means[0].tolist() == [2.0, 3.0, -3.0]
    assert np.isnan(means[1]).all()


def test_empty():
    assert Ledger().rows() == []
    assert equal(Ledger.from_state(Ledger().state()), Ledger())


def test_mistakes():
    with pytest.raises(UserError, match="example 7 is not finite"):
        Ledger().add([3, 7], [0.0, np.nan], [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(UserError, match="one id"):
        Ledger().add([3], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0])
    with pytest.raises(UserError, match="other shapes"):
        Ledger.from_state({"ids": [1], "sums": [[0]], "counts": [1]})
