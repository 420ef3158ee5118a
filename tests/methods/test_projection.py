"""GEM's and A-GEM's projections against slow, general answers."""

from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from metasp.methods.gem import agreeing, agreeing_with_all, dual_weights


def vectors(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nearest_feasible(gradient, past):
    """min ½‖x − g‖² with past·x ≥ 0, by a general solver."""
    g, rows = gradient.numpy(), past.numpy()
    found = minimize(
        lambda x: 0.5 * ((x - g) ** 2).sum(),
        np.zeros_like(g),
        jac=lambda x: x - g,
        constraints={"type": "ineq", "fun": lambda x: rows @ x, "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.success
    return torch.from_numpy(found.x)


def by_enumeration(quadratic, linear, margin):
    """argmin ½v'Pv + linear'v over v ≥ margin, by trying every set of variables at the bound."""
    size, best = len(linear), (np.inf, None)
    for free in chain.from_iterable(combinations(range(size), k) for k in range(size + 1)):
        free = list(free)
        fixed = [i for i in range(size) if i not in free]
        v = np.full(size, margin)
        if free:
            rest = -linear[free] - quadratic[np.ix_(free, fixed)] @ v[fixed]
            v[free] = np.linalg.solve(quadratic[np.ix_(free, free)], rest)
        value = 0.5 * v @ quadratic @ v + linear @ v
        if (v >= margin - 1e-12).all() and value < best[0]:
            best = (value, v)
    return best[1]


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(3, 8))
def test_gem_gives_the_nearest_vector_that_satisfies_every_constraint(seed, tasks, size):
    gradient, past = vectors(seed, size), vectors(seed + 1, tasks, size)
    found = agreeing_with_all(gradient, past, margin=0.0, ridge=0.0)
    assert (past @ found).min() > -1e-9
    torch.testing.assert_close(found, nearest_feasible(gradient, past), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(5))
def test_gem_survives_dependent_gradients(seed, dtype):
    gradient, base = vectors(seed, 6), vectors(seed + 100, 2, 6)
    base[0] -= gradient  # so that there is a conflict to undo
    rows = [base[0], 2 * base[0], base[1], base[0] + base[1], 0 * base[0], 1e-3 * base[1]]
    past = torch.stack(rows)
    found = agreeing_with_all(gradient.to(dtype), past.to(dtype), margin=0.0, ridge=0.0).double()
    assert found.isfinite().all()
    assert (past @ found).min() > (-1e-8 if dtype == torch.float64 else -1e-3)
    near = 1e-5 if dtype == torch.float64 else 2e-3
    torch.testing.assert_close(found, nearest_feasible(gradient, past), atol=near, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize("seed", range(4))
def test_the_dual_with_margin_and_ridge_is_solved_at_any_scale(seed, scale):
    past = scale * vectors(seed, 4, 9)
    inner = past @ (scale * vectors(seed + 1, 9))
    found = dual_weights(past @ past.T, inner, margin=0.5, ridge=1e-3).numpy()
    quadratic = (past @ past.T).numpy() + 1e-3 * np.eye(4)
    expected = by_enumeration(quadratic, inner.numpy(), 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_a_margin_leaves_the_constraints_satisfied_up_to_the_ridge():
    for seed in range(20):
        gradient, past = vectors(seed, 12), vectors(seed + 50, 3, 12)
        if (past @ gradient).min() >= 0:
            continue
        found = agreeing_with_all(gradient, past, margin=0.5, ridge=1e-3)
        weights = dual_weights(past @ past.T, past @ gradient, 0.5, 1e-3)
        assert (past @ found >= -1e-3 * weights - 1e-9).all()


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_agem_equals_its_closed_form_and_is_the_nearest(seed):
    gradient, reference = vectors(seed, 5), vectors(seed + 1, 5)
    found = agreeing(gradient, reference)
    inner = float(gradient @ reference)
    closed = gradient - min(inner, 0) / float(reference @ reference) * reference
    torch.testing.assert_close(found, closed)
    torch.testing.assert_close(
        found, nearest_feasible(gradient, reference[None]), atol=2e-5, rtol=1e-4
    )
