"""Retraining without an example, against a plain loop, and the report that uses it."""

import pytest
import torch
import torch.nn.functional as F

from metasp.errors import UserError
from metasp.paper.truth import Descent, agreements, leave_one_out, render, truth_report
from tests.influence.test_core import LOSS, problem


def plain(model, train, goal, descent, without):
    """Train a copy without one example, the slow way."""
    import copy

    model = copy.deepcopy(model)
    weights = torch.full((len(train[0]),), 1.0 / len(train[0]), dtype=torch.float64)
    if without is not None:
        weights[without] = 0.0
    for _ in range(descent.steps):
        model.zero_grad()
        (weights * LOSS(model(train[0]), train[1])).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= descent.lr * p.grad
    return F.cross_entropy(model(goal[0]), goal[1]).item()


def test_leave_one_out_is_retraining():
    model, train, goal, _ = problem("mlp", n=9)
    descent = Descent(lr=0.3, steps=12)
    before = [p.clone() for p in model.parameters()]
    found = leave_one_out(model, LOSS, train, goal, descent, chunk=4)
    reference = plain(model, train, goal, descent, None)
    wanted = [9 * (reference - plain(model, train, goal, descent, i)) for i in range(9)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))
    some = leave_one_out(model, LOSS, train, goal, descent, examples=[7, 2])
    torch.testing.assert_close(some, found[[7, 2]])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_what_is_frozen_is_not_retrained():
    model, train, goal, _ = problem("mlp", n=9)
    next(model.parameters()).requires_grad_(False)
    descent = Descent(lr=0.3, steps=12)
    found = leave_one_out(model, LOSS, train, goal, descent)
    reference = plain(model, train, goal, descent, None)
    wanted = [9 * (reference - plain(model, train, goal, descent, i)) for i in range(9)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_report():
    model, train, goal, _ = problem("mlp", n=30, goal=40)
    before = [p.clone() for p in model.parameters()]
    report = truth_report(model, LOSS, train, goal, Descent(lr=0.2, steps=25), damping=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    by_name = {a.method: a for a in report.agreements}
    # Following every step is the derivative of what retraining measures, so it must be close.
    assert by_name["MetaSP from the start"].rank_correlation > 0.97
    assert {"MetaSP", "exact Hessian", "Larsen", "Luketina", "Neumann"} <= set(by_name)
    assert len(render(report)) == 2 + len(report.agreements)


def test_agreements():
    truth = torch.tensor([1.0, -2.0, 3.0, -4.0])
    rows = agreements(truth, {"same": truth * 2, "reverse": -truth})
    assert (rows[0].rank_correlation, rows[0].sign_agreement) == (pytest.approx(1.0), 1.0)
    assert (rows[1].rank_correlation, rows[1].sign_agreement) == (pytest.approx(-1.0), 0.0)


def test_bad_descent():
    with pytest.raises(UserError, match="positive lr"):
        Descent(lr=0.0)
