"""How likely labels are right: against drawn truths, scipy's densities and a slow fit."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from metasp.methods.label_model import (
    CALM,
    Reference,
    Seen,
    agreement,
    head_influence,
    judge_labels,
    principal_axes,
)

ONE_SIDED = [[0.4, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
EVEN = [[0.7, 0.15, 0.15], [0.15, 0.7, 0.15], [0.15, 0.15, 0.7]]
CLEAN = np.eye(3).tolist()


def drawn(carried, each, apart=4.0, seed=0, width=None):
    """Features around a corner per class, true classes, and labels that a class carries with the
    chances of its row."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(each)), each)
    width = width or len(each)
    features = apart * np.eye(len(each), width)[truth] + rng.normal(size=(len(truth), width))
    labels = np.array([rng.choice(len(each), p=carried[t]) for t in truth])
    return torch.tensor(features), truth, torch.tensor(labels)


def verified(each, apart=4.0, seed=9, width=3):
    features, truth, _ = drawn(CLEAN, each, apart, seed, width)
    return Reference(features, torch.tensor(truth), torch.ones(len(truth), dtype=torch.bool))


NOBODY = verified([0, 0, 0])


@pytest.mark.parametrize("carried", [ONE_SIDED, EVEN], ids=["one-sided", "even"])
@pytest.mark.parametrize("each", [[300, 300, 300], [300, 100, 300]], ids=["even", "majority"])
def test_wrong_labels_are_found_and_counted(carried, each):
    features, truth, labels = drawn(carried, each)
    wrong = truth != labels.numpy()
    judged = judge_labels(features, labels, NOBODY)
    assert roc_auc_score(wrong, -judged.odds) > 0.99
    assert int((judged.odds < 0).sum()) == pytest.approx(wrong.sum(), rel=0.1)
    assert (judged.looks_like.numpy() == truth).mean() > 0.97
    torch.testing.assert_close(judged.wrong, (-CALM * judged.odds).sigmoid())


def test_two_classes_of_many_features_are_told_apart_though_most_directions_say_nothing():
    features, truth, labels = drawn([[0.6, 0.4], [0.4, 0.6]], [300, 300], 6.0, width=64)
    wrong = truth != labels.numpy()
    judged = judge_labels(features, labels, verified([0, 0], width=64))
    assert roc_auc_score(wrong, -judged.odds) > 0.98
    assert int((judged.odds < 0).sum()) == pytest.approx(wrong.sum(), rel=0.1)


def test_clean_labels_stay_as_they_are_and_nothing_is_said_where_features_say_nothing():
    """Each row is left out of its class: of 64 features some agree with it by chance."""
    clean, _, labels = drawn(CLEAN, [200, 200, 200], 4.0, 1, width=64)
    nobody = verified([0, 0, 0], width=64)
    assert float((judge_labels(clean, labels, nobody).wrong > 0.5).double().mean()) < 0.01
    noise = torch.randn(600, 64, generator=torch.Generator().manual_seed(0))
    assert bool(judge_labels(noise, labels, nobody).odds.isnan().all())
    expected = []
    for row in range(60):
        rest = torch.arange(60) != row
        means = torch.stack([clean[::10][rest & (labels[::10] == c)].mean(0) for c in range(3)])
        expected.append(int(torch.cdist(clean[::10][[row]], means).argmin()) == labels[::10][row])
    start = F.one_hot(labels[::10], 3).double()
    agrees = (float(np.mean(expected)) - 1 / 3) / (2 / 3)
    assert agreement(clean[::10], start) == pytest.approx(agrees)


def test_verified_examples_help_where_most_of_a_label_is_wrong():
    gains = []
    for seed in range(5):
        features, truth, labels = drawn(ONE_SIDED, [200, 60, 200], 1.5, seed)
        wrong = truth != labels.numpy()
        areas = [
            roc_auc_score(wrong, -judge_labels(features, labels, reference).odds)
            for reference in (NOBODY, verified([10, 10, 10], 1.5, seed + 50))
        ]
        gains.append(areas[1] - areas[0])
    assert np.mean(gains) > 0.02


def slow_density(rows, weights, alike):
    """Log densities of all rows around the weighted centres, with one covariance for all."""
    centres = [np.average(rows, axis=0, weights=weights[:, c]) for c in range(3)]
    covariance = np.zeros((3, 3))
    for row, parts in zip(rows, weights):
        for centre, part in zip(centres, parts):
            covariance += part * np.outer(row - centre, row - centre)
    covariance /= weights.sum()
    covariance = (1 - alike) * covariance + alike * np.trace(covariance) / 3 * np.eye(3)
    return np.stack([multivariate_normal.logpdf(rows, c, covariance) for c in centres], axis=1)


def slow_odds(rows, labels, reference):
    size, true = len(labels), np.eye(3)[reference.labels.numpy()]
    start = np.eye(3)[labels] * (true.sum(0) == 0)
    logs = slow_density(rows, np.concatenate([start, true]), 0.8)[:size]
    for _ in range(4):
        chances = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
        mistaken = np.full((3, 3), 0.1) + 0.5 * size / 3 * np.eye(3)
        for label, row in zip(labels, chances):
            mistaken[:, label] += row
        logs = slow_density(rows, np.concatenate([chances, true]), 0.1)[:size]
        logs = logs + np.log(mistaken / mistaken.sum())[:, labels].T
    chances = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    own = chances[np.arange(size), labels]
    return np.log(own) - np.log(1 - own)


def test_it_is_the_fit_of_normal_densities_round_by_round():
    features, _, labels = drawn(EVEN, [20, 30, 25], apart=2.0)
    reference = verified([2, 0, 3], seed=1)
    rows = torch.cat([features, reference.features]).numpy()
    expected = slow_odds(rows - rows.mean(0), labels.numpy(), reference)
    judged = judge_labels(features, labels, reference)
    assert judged.odds.numpy() == pytest.approx(expected, abs=1e-6)


def test_many_features_are_cut_to_their_principal_axes():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 90, generator=draw).double() * torch.linspace(3, 0.1, 90).square()
    ours = principal_axes(rows)
    expected = PCA(64).fit_transform(rows.numpy())
    assert ours.shape == (300, 64)
    near = np.square(expected[:, :40]).sum()
    assert float(ours.square().sum()) == pytest.approx(np.square(expected).sum(), rel=1e-3)
    assert float(ours.square().sum()) > near


def test_what_was_never_met_is_unknown_and_leaves_the_others_alone():
    features, _, labels = drawn(EVEN, [40, 40, 40])
    judged = judge_labels(features, labels, NOBODY)
    more = torch.cat([features, torch.full((1, 3), torch.nan)])
    longer = judge_labels(more, torch.cat([labels, torch.tensor([2])]), NOBODY)
    for before, after in zip(judged, longer):
        assert torch.equal(after[:-1], before)
    assert bool(longer.odds[-1].isnan())


def test_one_class_alone_and_features_that_are_all_alike_are_no_reason_to_fail():
    alone = judge_labels(torch.randn(5, 3), torch.full((5,), 2), NOBODY)
    assert bool(alone.odds.isnan().all())
    few = judge_labels(torch.zeros(6, 3), torch.tensor([0, 0, 0, 1, 1, 1]), NOBODY)
    assert bool((few.odds > 0).all())
    many = judge_labels(torch.zeros(60, 3), torch.arange(60) // 30, NOBODY)
    assert bool(many.odds.isnan().all())


def test_the_influence_through_the_head_is_that_of_a_step_of_it():
    draw = torch.Generator().manual_seed(3)
    head = torch.nn.Linear(4, 3).double()
    x, goal_x = torch.randn(2, 6, 4, generator=draw, dtype=torch.float64)
    y, goal_y = torch.arange(6) % 3, torch.arange(6) // 2

    def slope(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(head.parameters()))])

    goal = slope(F.cross_entropy(head(goal_x), goal_y))
    expected = [-float(goal @ slope(F.cross_entropy(head(x[[i]]), y[[i]]))) for i in range(6)]
    with torch.no_grad():
        seen = [Seen(rows, head(rows)) for rows in (x, goal_x)]
    assert head_influence(seen[0], y, seen[1], goal_y).tolist() == pytest.approx(expected)
    assert head_influence(seen[0], y, seen[1], goal_y[:0]).tolist() == [0.0] * 6
