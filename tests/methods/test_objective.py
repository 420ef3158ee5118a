"""An update of several loss terms: one row per term, its share in the sum, and influence on it."""

import pytest
import torch
import torch.nn.functional as F

from metasp.methods.context import Objective
from metasp.methods.weighting import InfluenceWeights, as_mean, validation_sets
from tests.methods.factories import digits, finish, weights
from tests.methods.test_metasp import net, small_learner

LR = 0.3


def two_terms(outputs, targets):
    """Cross-entropy, or for rows of kind 1 the squared distance to the numbers stored in them."""
    entropy = F.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
    distance = (outputs - targets[:, 2:]).square().mean(1)
    return torch.where(targets[:, 1] == 1, distance, entropy)


def goal(labels):
    return torch.cat([labels[:, None].double(), torch.zeros(len(labels), 4).double()], dim=1)


def mixed(learner, batch, new=6):
    """The first rows by their label, the others by stored outputs, with unequal shares."""
    draw = torch.Generator().manual_seed(1)
    targets = goal(batch.labels)
    targets[new:, 1] = 1
    targets[new:, 2:] = torch.randn(batch.size - new, 3, generator=draw, dtype=torch.float64)
    shares = torch.full((batch.size,), 1 / new, dtype=torch.float64)
    shares[new:] = 0.5 / (batch.size - new)
    weighable = torch.arange(batch.size) < new
    return Objective(two_terms, targets, shares, weighable, goal)


def small():
    model = net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=LR))
    return learner, learner.current.take(torch.arange(10))


def test_an_unweighted_update_descends_the_sum_of_share_times_loss():
    learner, batch = small()
    objective = mixed(learner, batch)
    model = learner.model
    expected = (objective.shares * two_terms(model(batch.inputs), objective.targets)).sum()
    grads = torch.autograd.grad(expected, list(model.parameters()))
    aims = [p.detach() - LR * g for p, g in zip(model.parameters(), grads)]
    said = model(batch.inputs).detach()
    step = learner.update(batch, objective=objective)
    assert step.loss == pytest.approx(expected.item(), abs=1e-12)
    torch.testing.assert_close(step.outputs, said)
    for parameter, aim in zip(model.parameters(), aims):
        torch.testing.assert_close(parameter.detach(), aim, rtol=0, atol=1e-12)


def test_influence_of_a_row_is_the_slope_of_the_goal_for_the_weight_of_its_own_loss():
    """A gradient through the step on Σ (shareᵢ + Eᵢ)·lossᵢ, in float64."""
    learner, batch = small()
    objective, model = mixed(learner, batch), learner.model
    old, new = validation_sets(learner, 5, 7)
    measure = InfluenceWeights().measure
    losses, found = measure(learner, batch, objective, (old, new))
    names = [name for name, _ in model.named_parameters()]
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]
    change = torch.zeros(batch.size, dtype=torch.float64, requires_grad=True)
    direct = two_terms(model(batch.inputs), objective.targets)
    torch.testing.assert_close(losses, direct, rtol=0, atol=1e-12)

    def at(params, x):
        return torch.func.functional_call(model, dict(zip(names, params)), (x,))

    total = (
        (objective.shares + change) * two_terms(at(theta, batch.inputs), objective.targets)
    ).sum()
    grads = torch.autograd.grad(total, theta, create_graph=True)
    moved = [p - LR * g for p, g in zip(theta, grads)]
    for goal_batch, ours in ((old, found.stability), (new, found.plasticity)):
        loss = F.cross_entropy(at(moved, goal_batch.inputs), goal_batch.labels)
        (slope,) = torch.autograd.grad(loss, change, retain_graph=True)
        torch.testing.assert_close(ours, slope[objective.weighable], rtol=0, atol=1e-10)


def test_influence_moves_the_weights_of_weighable_rows_alone():
    learner, batch = small()
    objective = mixed(learner, batch)
    weighed = InfluenceWeights(strength=5.0)(learner, batch, objective)
    fixed = ~objective.weighable
    assert torch.equal(weighed.weights[fixed], objective.shares[fixed])
    assert not torch.allclose(weighed.weights[~fixed], objective.shares[~fixed], atol=1e-4)
    torch.testing.assert_close(weighed.weights[~fixed].sum(), objective.shares[~fixed].sum())
    assert set(learner.influence_stats.ids.tolist()) == set(batch.ids[:6].tolist())


def test_one_term_with_equal_shares_has_the_weights_of_a_mean():
    weights = []
    for shares in (None, torch.full((10,), 0.1, dtype=torch.float64)):
        learner, batch = small()
        if shares is None:
            objective = Objective(learner.loss_fn, batch.labels)
        else:
            objective = Objective(two_terms, goal(batch.labels), shares, goal=goal)
        weights.append(InfluenceWeights()(learner, batch, objective).weights)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-12)


def test_as_a_mean_it_is_the_same_sum():
    learner, batch = small()
    objective = mixed(learner, batch)
    outputs = learner.model(batch.inputs)
    mean = as_mean(objective, batch.size)
    total = (objective.shares * objective.loss_fn(outputs, objective.targets)).sum()
    torch.testing.assert_close(mean.loss_fn(outputs, mean.targets).mean(), total)


@pytest.mark.parametrize("method", ["er-ace", "der", "derpp", "icarl"])
def test_methods_of_several_terms_can_be_observed_and_weighed(method):
    """Masked outputs and unknown targets leave every influence finite; looking changes no bit."""
    alone, observed, weighed = (digits(method, limit_per_class=8, observe=n) for n in (0, 1, 0))
    weighed.learner.weigh = InfluenceWeights()
    told = [finish(trainer) for trainer in (alone, observed, weighed)]
    for events in told[1:]:
        steps = [words for _, words in events if "'gamma'" in words]
        assert steps
        assert not any("'fallback': 1.0" in words for words in steps)
    assert torch.equal(weights(observed), weights(alone))
    assert not torch.equal(weights(weighed), weights(alone))
