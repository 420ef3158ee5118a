"""Analytic heads: streaming LDA and ridge, left out, forgotten and refitted."""

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from metasp import ContinualLearner
from metasp.methods.analytic import Learned

HEADS = {"slda": {}, "ridge": {"random_features": 20}}
heads = pytest.mark.parametrize("name", HEADS)


def data(count=90, seed=0):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return torch.randn(count, 6, generator=draw) + 1.5 * torch.eye(3, 6)[y], y


def learner(name, x, y, ids=None, **settings):
    found = ContinualLearner(torch.nn.Linear(6, 3), name, **HEADS[name], **settings)
    found.learn((x, y), ids=ids, progress=False)
    return found


def scores(method, x):
    weights, bias = method.weights_and_bias()
    return method.entering(x) @ weights + bias


def method_of(found):
    return found._session.trainer.method


def test_slda_is_the_discriminant_analysis_of_scikit_learn():
    x, y = data()
    method = method_of(learner("slda", x, y))
    classes = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-9).fit(x.double(), y)
    expected = torch.as_tensor(classes.decision_function(x.double()))
    ours = scores(method, x)
    ours, expected = (said - said.mean(1, keepdim=True) for said in (ours, expected))
    torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-2)


def test_ridge_is_that_of_scikit_learn_at_the_penalty_of_cross_validation():
    x, y = data()
    method = method_of(learner("ridge", x, y))
    rows, targets = method.entering(x), torch.eye(3, dtype=torch.float64)[y]
    scores(method, x)

    def validation(penalty):
        hat = rows @ torch.linalg.solve(rows.T @ rows + penalty * torch.eye(20), rows.T)
        return float((targets - hat @ targets).square().sum() / (90 - hat.trace()) ** 2)

    best = min((10.0**k for k in torch.arange(-6, 9, 0.5).tolist()), key=validation)
    assert method.penalty == pytest.approx(best)
    expected = Ridge(best, fit_intercept=False).fit(rows, targets).predict(rows)
    torch.testing.assert_close(scores(method, x), torch.as_tensor(expected))


@heads
def test_leaving_out_and_forgetting_are_refitting_without_the_example(name):
    x, y = data()
    whole = method_of(learner(name, x, y))
    scores(whole, x)
    left_out = whole.leave_one_out(whole.entering(x), y, torch.ones(90, dtype=torch.float64))
    for gone in (0, 7):
        rest = torch.arange(90) != gone
        refitted = method_of(learner(name, x[rest], y[rest]))
        refitted.widen([2])
        refitted.penalty = whole.penalty
        if name == "ridge":
            refitted.projection = whole.projection
            matrix = refitted.entering(x[rest])
            refitted.gram = matrix.T @ matrix
            refitted.moments = matrix.T @ torch.eye(3, dtype=torch.float64)[y[rest]]
        else:
            matrix = refitted.gram - refitted.class_means() @ refitted.moments.T
        solved = refitted.gram if name == "ridge" else matrix
        refitted.inverse = torch.linalg.inv(
            solved + whole.penalty * torch.eye(len(solved), dtype=torch.float64)
        )
        expected = scores(refitted, x)
        torch.testing.assert_close(left_out[gone], expected[gone], rtol=1e-8, atol=1e-8)
        other = learner(name, x, y)
        forgetful = method_of(other)
        scores(forgetful, x)
        other.forget([gone])
        torch.testing.assert_close(scores(forgetful, x), expected, rtol=1e-8, atol=1e-8)
        assert gone not in Learned.join(forgetful.learned).ids.tolist()


@heads
def test_a_stream_without_tasks_and_one_with_them_end_alike(name):
    x, y = data()
    one = learner(name, x, y)
    two = ContinualLearner(torch.nn.Linear(6, 3), name, **HEADS[name])
    for start in range(0, 90, 10):
        two.observe((x[start : start + 10], y[start : start + 10]))
    assert torch.equal(one.predict(x), two.predict(x))
    expected = scores(method_of(one), x)
    torch.testing.assert_close(scores(method_of(two), x), expected, rtol=1e-4, atol=1e-4)


@heads
def test_weights_by_leaving_out_find_wrong_labels_and_verified_examples_count_more(name):
    x, y = data(300)
    wrong = torch.arange(300) % 10 < 3
    given = torch.where(wrong, (y + 1) % 3, y)
    x = x + 3 * torch.eye(3, 6)[y]
    found = learner(name, x, given, weigh_labels=True)
    learned = Learned.join(method_of(found).learned)
    weights = learned.weights[learned.ids.argsort()]
    assert float(weights[wrong].mean()) < 0.35
    assert float(weights[~wrong].mean()) > 0.8
    worst = found.suspects().to_pylist()[:60]
    assert sum(bool(wrong[row["id"]]) for row in worst) > 50


@heads
def test_a_verified_example_counts_as_often_as_its_weight(name):
    x, y = data()
    often = x[:3].repeat(9, 1), y[:3].repeat(9)
    one = ContinualLearner(torch.nn.Linear(6, 3), name, **HEADS[name], verified_weight=10.0)
    one.learn((x, y), trusted=(x[:3], y[:3]), progress=False)
    other = learner(name, torch.cat([x, x[:3], often[0]]), torch.cat([y, y[:3], often[1]]))
    for part in ("gram", "moments", "totals"):
        ours, expected = (getattr(method_of(head), part) for head in (one, other))
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-5)
