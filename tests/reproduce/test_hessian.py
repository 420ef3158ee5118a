"""Hessian influence against a dense Hessian, and the identities between the approximations."""

import os
from pathlib import Path

import pytest
import torch
from reproduce.approximation import (
    count_signs,
    influence_check,
    paper_counts,
    render,
)
from reproduce.hessian import (
    curvature,
    exact,
    larsen,
    luketina,
    neumann,
    solve,
)
from torch.autograd.functional import hessian

from metasp.errors import UserError
from metasp.influence import example_influence
from tests.influence.test_core import LOSS, problem


@pytest.fixture
def dense():
    """A small problem with its Hessian and gradients written out."""
    model, train, goal, _ = problem("mlp", n=12)
    found = curvature(model, LOSS, train)
    matrix = hessian(lambda t: found.losses(t, train).mean(), found.theta)
    rows = torch.autograd.functional.jacobian(lambda t: found.losses(t, train), found.theta)
    v = torch.autograd.functional.jacobian(lambda t: found.losses(t, goal).mean(), found.theta)
    return model, train, goal, found, matrix, rows, v


def test_products(dense):
    _, _, _, found, matrix, rows, v = dense
    vectors = torch.randn(5, len(v), dtype=v.dtype)
    torch.testing.assert_close(found.hessian(vectors), vectors @ matrix)
    torch.testing.assert_close(found.examples(vectors), vectors @ rows.T)
    torch.testing.assert_close(found.outer(vectors), vectors @ (rows.T @ rows) / len(rows))


@pytest.mark.parametrize("damping", [0.5, 3.0])
def test_exact(dense, damping):
    _, _, goal, found, matrix, rows, v = dense
    eye = torch.eye(len(v), dtype=v.dtype)
    wanted = -rows @ torch.linalg.solve(matrix + damping * eye, v)
    torch.testing.assert_close(exact(found, found.gradient(goal), damping), wanted)
    solved = solve(found.hessian, v[None], damping)[0]
    torch.testing.assert_close(-rows @ solved, wanted)
    outer = rows.T @ rows / len(rows) + damping * eye
    torch.testing.assert_close(larsen(found, v, damping), -rows @ torch.linalg.solve(outer, v))
    torch.testing.assert_close(luketina(found, v), -rows @ v)


def test_neumann_terms(dense):
    _, _, _, found, matrix, rows, v = dense
    eye = torch.eye(len(v), dtype=v.dtype)
    total = sum(torch.linalg.matrix_power(eye - 0.2 * matrix, k) for k in range(4)) * 0.2
    torch.testing.assert_close(neumann(found, v, 0.2, 4), -rows @ (total @ v))


def test_at_a_stationary_point_steps_are_the_series():
    model, (x, _), goal, _ = problem("mlp", n=12)
    # Soft targets equal to the predictions: the gradient of the training loss is exactly zero.
    targets = model(x).softmax(1).detach()
    train, test = (x, targets), (goal[0], torch.nn.functional.one_hot(goal[1], 4).double())
    found = curvature(model, LOSS, train)
    v = found.gradient(test)
    one = example_influence(model, LOSS, train, test, lr=0.3)
    torch.testing.assert_close(one, 0.3 * luketina(found, v))
    several = example_influence(model, LOSS, train, test, lr=0.3, steps=4)
    torch.testing.assert_close(several, neumann(found, v, 0.3, 4))


def test_negative_curvature_is_said():
    with pytest.raises(UserError, match="raise the damping"):
        solve(lambda v: -5.0 * v, torch.ones(1, 3), 1.0)


def test_counts():
    found, wanted = torch.tensor([-1.0, -1.0, 1.0, 1.0, 2.0]), torch.tensor([-1.0, 1, 1, -1, 1])
    counts = count_signs(found, wanted)
    assert (counts.true_positive, counts.true_negative) == (1, 2)
    assert (counts.false_positive, counts.false_negative) == (1, 1)
    assert (counts.agreeing, counts.examples) == (3, 5)


def test_paper_counts_are_shipped():
    paper = paper_counts()
    assert paper["MetaSP"].agreeing == 965
    assert all(c.examples == 1000 for c in paper.values())


def test_check_runs_on_small_data():
    x, y = torch.rand(60, 2, 2), torch.arange(60) % 3
    check = influence_check(
        x, y, x[:20], y[:20], seeds=(0, 1), steps=4, dampings=(3.0,), step_counts=(1, 4)
    )
    assert set(check.counts) == {"Larsen", "Luketina", "Neumann", "MetaSP"}
    assert all(len(c) == 2 and c[0].examples == 60 for c in check.counts.values())
    same = {p.method: p for p in check.dependence if p.steps == 4}
    metasp = [c.agreeing / 60 for c in check.counts["MetaSP"]]
    assert list(same["MetaSP"].agreement) == metasp
    text = "\n".join(render(check))
    assert "965" in text
    assert "ranking here" in text


@pytest.mark.slow
def test_fashion_mnist_agreement_is_near_the_published_one():
    pq = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    root = os.environ.get("METASP_DATA") or Path(__file__).parents[3] / "shared" / "data"
    folder = Path(root) / "fashion_mnist" / "data"
    if not folder.is_dir():
        pytest.skip("Fashion-MNIST is not here: set METASP_DATA to the data folder.")
    sets = []
    for split, n in (("train", 1000), ("test", 500)):
        rows = pq.read_table(next(folder.glob(f"{split}-*.parquet"))).slice(0, n).to_pylist()
        import io

        import numpy as np

        pixels = [np.asarray(image.open(io.BytesIO(r["image"]["bytes"]))) for r in rows]
        sets += [torch.tensor(np.stack(pixels)), torch.tensor([r["label"] for r in rows])]
    check = influence_check(*sets, dampings=(), step_counts=())
    agreeing = [c.agreeing for c in check.counts["MetaSP"]]
    assert sum(agreeing) / len(agreeing) >= 950
