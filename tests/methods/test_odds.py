"""How likely labels are right, by what the network said: against drawn truths and a slow fit."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from metasp.methods import odds
from metasp.methods.odds import judge_labels

NOBODY = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


def drawn(carried: list[list[float]], each: list[int], apart: float = 4.0, seed: int = 0):
    """Outputs around a corner per class, true classes, and labels that a class carries with the
    chances of its row."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(each)), each)
    outputs = apart * np.eye(len(each))[truth] + rng.normal(size=(len(truth), len(each)))
    labels = np.array([rng.choice(len(each), p=carried[t]) for t in truth])
    return torch.tensor(outputs), truth, torch.tensor(labels)


def area(odds: torch.Tensor, wrong: np.ndarray) -> float:
    bad, good = odds.numpy()[wrong], odds.numpy()[~wrong]
    return float((bad[:, None] < good).mean() + (bad[:, None] == good).mean() / 2)


ONE_SIDED = [[0.4, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
EVEN = [[0.7, 0.15, 0.15], [0.15, 0.7, 0.15], [0.15, 0.15, 0.7]]


@pytest.mark.parametrize("carried", [ONE_SIDED, EVEN], ids=["one-sided", "even"])
def test_wrong_labels_are_found_and_counted(carried):
    outputs, truth, labels = drawn(carried, [300, 300, 300])
    wrong = truth != labels.numpy()
    found = judge_labels(outputs, labels, *NOBODY)
    assert area(found.odds, wrong) > 0.99
    assert float(found.wrong.sum()) == pytest.approx(wrong.sum(), rel=0.1)
    assert wrong[(found.odds < 0).numpy()].mean() > 0.9


def test_wrong_labels_are_found_where_they_are_most_of_what_carries_a_label():
    outputs, truth, labels = drawn(ONE_SIDED, [300, 100, 300])
    wrong = truth != labels.numpy()
    assert wrong[labels.numpy() == 1].mean() > 0.6
    found = judge_labels(outputs, labels, *NOBODY)
    assert area(found.odds, wrong) > 0.99
    assert float(found.wrong.sum()) == pytest.approx(wrong.sum(), rel=0.1)


def test_hardly_any_of_clean_labels_is_expected_to_be_wrong():
    outputs, _, labels = drawn(np.eye(3).tolist(), [200, 200, 200])
    assert float(judge_labels(outputs, labels, *NOBODY).wrong.sum()) < 6


def test_verified_examples_help_where_most_of_a_label_is_wrong():
    """Two thirds of what carries label 1 are of class 0; five draws."""
    carried = [[0.4, 0.6, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    gains = []
    for seed in range(5):
        outputs, truth, labels = drawn(carried, [200, 60, 200], 1.5, seed)
        sure, sure_labels, _ = drawn(np.eye(3).tolist(), [10, 10, 10], 1.5, seed + 50)
        wrong = truth != labels.numpy()
        alone = area(judge_labels(outputs, labels, *NOBODY).odds, wrong)
        helped = area(judge_labels(outputs, labels, sure, torch.tensor(sure_labels)).odds, wrong)
        gains.append(helped - alone)
    assert min(gains) > 0.005


def slow_nearness(rows, weights):
    """Log densities of all rows around the three weighted centres, with one spread for all."""
    centres = [np.average(rows, axis=0, weights=weights[:, c]) for c in range(3)]
    parts = [
        weights[i, c] * np.outer(rows[i] - centres[c], rows[i] - centres[c])
        for i in range(len(rows))
        for c in range(3)
    ]
    spread = sum(parts) / len(rows)
    spread = 0.98 * spread + 0.02 * np.trace(spread) / 3 * np.eye(3)
    return np.stack([multivariate_normal.logpdf(rows, c, spread) for c in centres], axis=1)


def slow_odds(rows, labels, sure, chances):
    for _ in range(4):
        logs = slow_nearness(rows, np.concatenate([chances, sure]))[: len(labels)]
        carried = np.full((3, 3), 0.1) + 0.5 * len(labels) / 3 * np.eye(3)
        for label, row in zip(labels, chances):
            carried[:, label] += row
        logs += np.log(carried / carried.sum())[:, labels].T
        chances = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    own = chances[np.arange(len(labels)), labels]
    return np.log(own) - np.log(1 - own)


def test_it_is_the_fit_of_normal_densities_round_by_round():
    """The same rounds with scipy's densities, from both starts."""
    outputs, _, labels = drawn(EVEN, [20, 30, 25], apart=2.0)
    given, sure_labels, _ = drawn(np.eye(3).tolist(), [2, 0, 3], seed=1)
    rows = np.concatenate([outputs.numpy(), given.numpy()])
    rows = rows - rows.mean(1, keepdims=True)
    sure, y = np.eye(3)[sure_labels], labels.numpy()
    believed = np.where(np.eye(3)[y] == 1, 0.9, 0.05)
    nearest = slow_nearness(rows, np.concatenate([believed, sure]))[: len(y)].argmax(1)
    found = judge_labels(outputs, labels, given, torch.tensor(sure_labels))
    assert found.odds.numpy() == pytest.approx(slow_odds(rows, y, sure, believed), abs=1e-6)
    counted = slow_odds(rows, y, sure, 0.6 * np.eye(3)[nearest] + 0.4 * believed)
    assert found.wrong.numpy() == pytest.approx(1 / (1 + np.exp(counted)), abs=1e-6)


def test_what_was_never_met_is_unknown_and_leaves_the_others_alone():
    outputs, _, labels = drawn(EVEN, [40, 40, 40])
    found = judge_labels(outputs, labels, *NOBODY)
    more = torch.cat([outputs, torch.full((1, 3), torch.nan)])
    longer = judge_labels(more, torch.cat([labels, torch.tensor([2])]), *NOBODY)
    for before, after in zip(found, longer):
        assert torch.equal(after[:-1], before)
        assert after[-1].isnan()


def test_one_class_alone_and_outputs_that_are_all_alike_are_no_reason_to_fail():
    alone = judge_labels(torch.randn(5, 3), torch.full((5,), 2), *NOBODY)
    assert all(values.isnan().all() for values in alone)
    alike = judge_labels(torch.zeros(6, 3), torch.tensor([0, 0, 0, 1, 1, 1]), *NOBODY)
    assert alike.odds.isfinite().all()
    assert torch.allclose(alike.odds, alike.odds[0])


def test_a_fit_of_too_many_classes_is_not_made(monkeypatch):
    """The work of a round is that of a product of the rows and a solution for all classes."""
    outputs, labels = (
        torch.randn(60, 3, generator=torch.Generator().manual_seed(0)),
        torch.arange(60) % 3,
    )
    monkeypatch.setattr(odds, "MOST_WORK", (60 + 3) * 3**2)
    assert all(values.isfinite().all() for values in judge_labels(outputs, labels, *NOBODY))
    monkeypatch.setattr(odds, "MOST_WORK", (60 + 3) * 3**2 - 1)
    assert all(values.isnan().all() for values in judge_labels(outputs, labels, *NOBODY))
