"""How likely a label is wrong: influence through a fresh head, how it is read, and what follows."""

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score

from metasp.methods import label_model as doubt
from metasp.methods.label_model import (
    Goal,
    Means,
    Reading,
    Seen,
    area_between,
    better_part,
    can_tell,
    chance_wrong,
    class_means,
    fresh_head_influence,
    least_gain,
    log_odds,
    read_influence,
    standardised,
    swapped_gains,
)


def goal_of(features, labels):
    return Goal(Seen(features, torch.zeros(len(labels), 3)), labels, torch.zeros_like(labels))


def through_a_head_of_zeros(feature, goals):
    """The drop of the goal's mean loss, both classes alike, by a step of a two-class head of zeros
    on one example, as a gradient of that loss for the size of the step; labels are 0 and 1."""
    middle = (goals[0].mean(0) + goals[1].mean(0)) / 2
    head = torch.zeros(2, len(feature), dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy((head @ (feature - middle))[None], torch.tensor([0]))
    (slope,) = torch.autograd.grad(loss, head)
    size = torch.zeros((), dtype=torch.float64, requires_grad=True)
    moved = -size * slope
    parts = [
        F.cross_entropy((goal - middle) @ moved.T, torch.full((len(goal),), label))
        for label, goal in enumerate(goals)
    ]
    (change,) = torch.autograd.grad((parts[0] + parts[1]) / 2, size)
    return -float(change)


def test_the_influence_is_that_of_the_first_step_of_a_head_of_zeros():
    """Eight times the drop is the difference of the squared distances to the two means."""
    draw = torch.Generator().manual_seed(0)
    goals = [torch.randn(6, 5, generator=draw, dtype=torch.float64) + 2 * k for k in range(3)]
    labels = torch.arange(18) // 6
    means = class_means(goal_of(torch.cat(goals), labels))
    assert means.known.all()
    features = torch.randn(9, 5, generator=draw, dtype=torch.float64) + 1
    given = torch.arange(9) % 3
    found = fresh_head_influence(features, given, means, means.known)
    for feature, label, ours in zip(features, given.tolist(), found.tolist()):
        by_rival = []
        for rival in {0, 1, 2} - {label}:
            drop = through_a_head_of_zeros(feature, [goals[label], goals[rival]])
            scale = sum(float((feature - means.features[k]).square().sum()) for k in (label, rival))
            by_rival.append(8 * drop / scale)
        assert ours == pytest.approx(min(by_rival), abs=1e-10)


def test_nobody_is_judged_without_someone_who_stands_for_the_class_and_a_rival():
    features = torch.eye(3)
    means = Means(torch.eye(3), torch.tensor([1, 1, 0]))
    found = fresh_head_influence(features, torch.tensor([0, 0, 2]), means, means.known)
    assert found[:2].tolist() == pytest.approx([1.0, -1.0])
    assert bool(found[2].isnan())
    alone = Means(torch.eye(3), torch.tensor([1, 0, 0]))
    labels = torch.tensor([0, 1, 5])
    assert fresh_head_influence(features, labels, alone, alone.known).isnan().all()


def slow_calibration(goal, among):
    """Influences under right and under swapped labels, every mean computed anew without the one."""
    right, swapped = [], []
    for row in range(len(goal.labels)):
        rest = torch.arange(len(goal.labels)) != row
        means = class_means(goal_of(goal.seen.features[rest], goal.labels[rest]))
        distance = torch.cdist(goal.seen.features[[row]], means.features).square()
        for label in among:
            found = float(least_gain(distance, torch.tensor([label]), means.known))
            (right if label == int(goal.labels[row]) else swapped).append(found)
    return torch.tensor(right), torch.tensor(swapped)


def test_influences_are_read_off_the_goal_each_example_left_out_of_its_mean():
    draw = torch.Generator().manual_seed(3)
    labels = torch.arange(24) % 3
    features = torch.randn(24, 6, generator=draw, dtype=torch.float64) + labels[:, None]
    goal = goal_of(features, labels)
    means = class_means(goal)
    ours = read_influence(goal, means, means.known)
    slowly = log_odds(*slow_calibration(goal, [0, 1, 2]))
    assert ours == pytest.approx(slowly, rel=1e-6, nan_ok=True)


def test_the_reading_is_a_logistic_regression_with_an_expectation():
    """Against torch's own minimiser of the same sum of squares and losses."""
    draw = torch.Generator().manual_seed(4)
    right = 0.5 + 0.4 * torch.randn(60, generator=draw, dtype=torch.float64)
    wrong = -0.3 + 0.4 * torch.randn(90, generator=draw, dtype=torch.float64)
    found = torch.tensor([6.0, 0.0], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([found], max_iter=500, tolerance_grad=1e-12)

    def loss():
        search.zero_grad()
        total = F.softplus(-(found[0] * right + found[1])).sum()
        total = total + F.softplus(found[0] * wrong + found[1]).sum() * 2 / 3
        total = total + ((found[0] - 6) / 3) ** 2 / 2 + found[1] ** 2 / 2
        total.backward()
        return total

    search.step(loss)
    reading = log_odds(right, wrong)
    assert reading[:2] == pytest.approx(found.tolist(), rel=1e-5)
    truth, values = torch.arange(150) < 60, torch.cat([right, wrong])
    assert reading.area == pytest.approx(roc_auc_score(truth, values))
    nothing = torch.zeros(0)
    assert log_odds(nothing, nothing)[:2] == (6.0, 0.0)


def test_the_area_counts_equals_half_and_is_not_known_of_few():
    many, other = torch.tensor([1.0, 2.0]).repeat(25), torch.tensor([1.0, 0.0, 2.0])
    assert area_between(many, other) == pytest.approx((0.5 + 1 + 0 + 1 + 1 + 0.5) / 6)
    assert math.isnan(area_between(many[1:], other))
    assert math.isnan(area_between(many, other[:0]))


@pytest.mark.parametrize(
    ("area", "classes", "wrong", "told"),
    [
        (0.7, 2, [0.1, 0.2], False),  # swapped labels are often missed
        (0.8, 2, [0.9, torch.nan, 0.1], True),
        (0.8, 3, [0.9, torch.nan, 0.1], False),  # of more classes they are easier to find
        (0.92, 3, [0.9, torch.nan, 0.1], True),
        (0.92, 3, [0.9, torch.nan, 0.8], False),  # nearly all labels look wrong
        (0.92, 2, [0.9, torch.nan, 0.8], False),
        (0.96, 3, [0.9, torch.nan, 0.8], True),
        (torch.nan, 3, [0.9, 0.8], True),  # too few are known to say
        (0.92, 3, [torch.nan], True),  # nothing was judged, and nothing will be dropped
    ],
)
def test_influences_tell_labels_if_they_seldom_miss_swapped_ones(area, classes, wrong, told):
    assert can_tell(Reading(6.0, 0.0, area), torch.tensor(wrong), classes) is told


def test_chances_are_calibrated_and_find_the_share_of_wrong_labels_of_each_class():
    """Two normal curves of variance 1 at ±1 have a log odds of twice the value."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(20_000) % 2
    wrong = torch.rand(20_000, generator=draw) < torch.tensor([0.1, 0.6])[labels]
    values = torch.where(wrong, -1.0, 1.0) + torch.randn(20_000, generator=draw)
    chance = chance_wrong(2 * values.double(), labels)
    for label, share in ((0, 0.1), (1, 0.6)):
        assert float(chance[labels == label].mean()) == pytest.approx(share, abs=0.02)
    for low in torch.arange(0, 1, 0.1).tolist():
        inside = (chance >= low) & (chance < low + 0.1)
        share = float(wrong[inside].double().mean())
        assert share == pytest.approx(float(chance[inside].mean()), abs=0.06)


def test_what_is_not_known_stays_unknown_and_speaks_for_nobody():
    evidence = torch.tensor([4.0, torch.nan, -4.0], dtype=torch.float64)
    found = chance_wrong(evidence, torch.zeros(3, dtype=torch.long))
    without = chance_wrong(evidence[[0, 2]], torch.zeros(2, dtype=torch.long))
    assert bool(found[1].isnan())
    assert found[[0, 2]].tolist() == without.tolist()


def test_a_class_whose_labels_are_nearly_all_wrong_keeps_its_few_right_ones():
    evidence = torch.tensor([-8.0] * 95 + [8.0] * 5, dtype=torch.float64)
    found = chance_wrong(evidence, torch.zeros(100, dtype=torch.long))
    assert float(found[:95].min()) > 0.9
    assert float(found[95:].max()) < 0.1


def test_many_classes_are_compared_with_the_nearest_rival_alone(monkeypatch):
    draw = torch.Generator().manual_seed(3)
    distance = torch.rand(40, 30, generator=draw, dtype=torch.float64)
    labels, among = torch.randint(30, (40,), generator=draw), torch.rand(30, generator=draw) < 0.7
    each = swapped_gains(distance, labels, among)
    monkeypatch.setattr(doubt, "MANY", 0)
    torch.testing.assert_close(swapped_gains(distance, labels, among), each, rtol=1e-12, atol=0)
    assert len(each) > 700


def test_through_a_head_of_zeros_all_parameters_have_the_influence_of_the_head():
    """The rest of the network has no gradient then, of an example's loss or of the goal's."""
    draw = torch.Generator().manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    network.double()
    torch.nn.init.zeros_(network[2].weight)
    torch.nn.init.zeros_(network[2].bias)
    inputs = torch.randn(8, 4, generator=draw, dtype=torch.float64)
    loss = F.cross_entropy(network(inputs), torch.arange(8) % 3)
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    assert not slopes[0].any()
    assert not slopes[1].any()
    assert slopes[2].any()
    assert slopes[3].any()


def by_hand(evidence, margins, labels, wrong, strict):
    """Which rows are in the better part of their class, in plain Python."""
    kept = [True] * len(labels)
    for label in set(labels):
        own = [row for row, given in enumerate(labels) if given == label]

        def over_spread(values, own=own):
            mean = sum(values[row] for row in own) / len(own)
            spread = (sum((values[row] - mean) ** 2 for row in own) / len(own)) ** 0.5
            return {row: (values[row] - mean) / spread for row in own}

        by_evidence, by_margin = over_spread(evidence), over_spread(margins)
        share = sum(wrong[row] for row in own) / len(own)
        part = max(0.15, min(0.5, 0.8 * (1 - share)))
        doubt = min(1, share / strict)
        count = round((1 - doubt + doubt * part) * len(own))
        best = sorted(own, key=lambda row: -(by_evidence[row] + by_margin[row]))
        for row in best[count:]:
            kept[row] = False
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_the_better_part_of_a_class_is_that_computed_by_hand(seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (200,), generator=draw)
    evidence, margins = torch.randn(2, 200, generator=draw, dtype=torch.float64)
    shares = torch.tensor([0.0, 0.02, 0.3, 0.9], dtype=torch.float64)
    wrong = shares[labels]
    kept = better_part(evidence, margins, labels, wrong, strict=0.05)
    assert kept.tolist() == by_hand(*(v.tolist() for v in (evidence, margins, labels, wrong)), 0.05)
    parts = [float(kept[labels == label].double().mean()) for label in range(4)]
    assert parts == pytest.approx([1.0, 0.8, 0.5, 0.15], abs=0.02)


def test_equals_are_kept_together_and_all_where_the_evidence_says_nothing():
    labels, wrong = torch.zeros(6, dtype=torch.long), torch.full((6,), 0.4, dtype=torch.float64)
    margins = torch.arange(6.0, dtype=torch.float64)
    same = torch.full((6,), 2.0, dtype=torch.float64)
    assert better_part(same, margins, labels, wrong, 0.05).all()
    tied = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    unknown = torch.full((6,), torch.nan, dtype=torch.float64)
    kept = better_part(tied, unknown, labels, wrong, 0.05)
    assert kept.tolist() == [True] * 4 + [False] * 2
    assert standardised(unknown).tolist() == [0.0] * 6
