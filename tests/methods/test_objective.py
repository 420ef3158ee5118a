"""An update of several loss terms: one pass, a share for each row, and influence on it."""

import pytest
import torch
import torch.nn.functional as F

from metasp.methods.losses import Objective, Term, distance_to
from metasp.methods.weighting import InfluenceWeights, validation_sets
from tests.methods.factories import digits, finish, weights
from tests.methods.test_metasp import net, small_learner

LR, NEW, BETA = 0.3, 6, 0.5


def small():
    model = net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=LR))
    return learner, learner.current.take(torch.arange(10))


def terms_of(batch):
    """The first rows by their label, the others by stored outputs, with unequal shares."""
    draw = torch.Generator().manual_seed(1)
    stored = torch.randn(batch.size - NEW, 3, generator=draw, dtype=torch.float64)
    new, old = batch.at(slice(NEW)), batch.at(slice(NEW, None))
    return [Term(new), Term(old, distance_to(stored), BETA, weighable=False)], stored


def by_hand(outputs, batch, stored):
    """The loss of each row, and its share of the sum."""
    entropy = F.cross_entropy(outputs[:NEW], batch.labels[:NEW], reduction="none")
    distance = (outputs[NEW:] - stored).square().mean(1)
    shares = torch.full((batch.size,), 1 / NEW, dtype=torch.float64)
    shares[NEW:] = BETA / (batch.size - NEW)
    return torch.cat([entropy, distance]), shares


def test_an_unweighted_update_descends_the_sum_of_share_times_loss():
    learner, batch = small()
    terms, stored = terms_of(batch)
    model = learner.model
    outputs = model(batch.inputs)
    losses, shares = by_hand(outputs, batch, stored)
    expected = (shares * losses).sum()
    grads = torch.autograd.grad(expected, list(model.parameters()))
    aims = [p.detach() - LR * g for p, g in zip(model.parameters(), grads)]
    step = learner.update(terms)
    assert step.loss == pytest.approx(expected.item(), abs=1e-7)
    torch.testing.assert_close(step.outputs, outputs.detach())
    for parameter, aim in zip(model.parameters(), aims):
        torch.testing.assert_close(parameter.detach(), aim, rtol=0, atol=1e-7)


def test_influence_of_a_row_is_the_slope_of_the_goal_for_the_weight_of_its_own_loss():
    """A gradient through the step on Σ (shareᵢ + Eᵢ)·lossᵢ, in float64."""
    learner, batch = small()
    terms, stored = terms_of(batch)
    objective, model = Objective(terms, learner.loss_fn), learner.model
    old, new = validation_sets(learner, 5, 7)
    losses, found = InfluenceWeights().measure(learner, objective, (old, new))
    names = [name for name, _ in model.named_parameters()]
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]
    change = torch.zeros(batch.size, dtype=torch.float64, requires_grad=True)
    direct, shares = by_hand(model(batch.inputs), batch, stored)
    torch.testing.assert_close(losses, direct, rtol=0, atol=1e-7)

    def at(params, x):
        return torch.func.functional_call(model, dict(zip(names, params)), (x,))

    each, _ = by_hand(at(theta, batch.inputs), batch, stored)
    grads = torch.autograd.grad(((shares + change) * each).sum(), theta, create_graph=True)
    moved = [p - LR * g for p, g in zip(theta, grads)]
    for goal_batch, ours in ((old, found.stability), (new, found.plasticity)):
        loss = F.cross_entropy(at(moved, goal_batch.inputs), goal_batch.labels)
        (slope,) = torch.autograd.grad(loss, change, retain_graph=True)
        torch.testing.assert_close(ours, slope[:NEW], rtol=0, atol=1e-7)


def test_influence_moves_the_weights_of_weighable_rows_alone():
    learner, batch = small()
    objective = Objective(terms_of(batch)[0], learner.loss_fn)
    weighed = InfluenceWeights(strength=5.0)(learner, objective)
    shares = objective.weights(weighed.losses)
    assert torch.equal(weighed.weights[NEW:], shares[NEW:])
    assert not torch.allclose(weighed.weights[:NEW], shares[:NEW], atol=1e-4)
    torch.testing.assert_close(weighed.weights[:NEW].sum(), shares[:NEW].sum())
    assert set(learner.influence_stats.ids.tolist()) == set(batch.ids[:NEW].tolist())


def test_terms_of_one_loss_and_equal_shares_have_the_weights_of_a_mean():
    weights = []
    for parts in (1, 2):
        learner, batch = small()
        halves = [batch.at(slice(5)), batch.at(slice(5, None))]
        terms = [Term(batch)] if parts == 1 else [Term(half, weight=0.5) for half in halves]
        objective = Objective(terms, learner.loss_fn)
        weights.append(InfluenceWeights()(learner, objective).weights)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-7)


def test_a_goal_of_its_own_is_what_influence_looks_at():
    learner, batch = small()
    plain, twice = (
        InfluenceWeights().measure(
            learner, Objective([Term(batch)], learner.loss_fn, goal), validation_sets(learner, 5, 7)
        )[1]
        for goal in (None, lambda outputs, labels: 2 * learner.loss_fn(outputs, labels))
    )
    learner.streams["validation"]
    assert twice.stability.isfinite().all()
    assert not torch.allclose(plain.stability, twice.stability)


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
