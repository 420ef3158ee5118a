"""Means per id: right, and the same bits however the run is cut into batches or stored."""

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
            assert error <= Fraction(np.abs(values[q, mine]).max()) * Fraction(1, 2**50)


@pytest.mark.parametrize("size", [1, 7, 64, 400])
def test_batches_do_not_matter(size):
    """An id that comes twice in a batch is entered twice, in its order."""
    ids, values = measurements()
    order = np.arange(len(ids))
    sums: dict[int, float] = {}
    for name, value in zip(ids.tolist(), values[0].tolist()):
        sums[name] = sums.get(name, 0.0) + value
    state = entered(ids, values, order, size).state()
    assert state["sums"][:, 0].tolist() == [sums[name] for name in sorted(sums)]


def test_merging_adds_the_sums():
    ids, values = measurements()
    order = np.arange(len(ids))
    a, b = entered(ids, values, order[:100], 7), entered(ids, values, order[100:], 9)
    parts = [{row.id: row for row in part.rows()} for part in (a, b)]
    b.merge(a)
    for row in b.rows():
        known = [part[row.id] for part in parts if row.id in part]
        assert row.count == sum(part.count for part in known)
        total = sum(part.fused * part.count for part in known)
        scale = max(abs(part.fused) for part in known)
        assert row.fused == pytest.approx(total / row.count, abs=1e-12 * scale)


def test_a_ledger_in_digits_is_still_read():
    """As it was stored before: six signed digits of base 2**32, from 2**-128 up."""
    values = [[-1.5, 2.0**-120, 3e5], [-(2.0**-100), 0.1, -123456.789]]

    def digits(value):
        rest, found = int(Fraction(value) * 2**128), []
        for _ in range(5):
            found.append(rest & (2**32 - 1))
            rest >>= 32
        return [*found, rest]

    sums = np.array([[digits(value) for value in row] for row in values])
    old = {"ids": np.array([3, 8]), "sums": sums, "counts": np.array([1, 1])}
    assert Ledger.from_state(old).means([3, 8]).tolist() == values


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
