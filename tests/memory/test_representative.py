"""Herding and k-means on features: against slow versions, class by class and over a stream."""

import numpy as np
import pytest
import torch

from metasp.events import StepTaken, TaskFinished
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.memory.herding import herding_order, kmeans_order
from metasp.types import Batch, Streams
from tests.methods.factories import digits


def herd_by_hand(features, ids, count):
    """The greedy rule as its sentence says it, candidate by candidate, with the
    same tolerance for ties."""
    rows = features.double().numpy()
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    chosen: list[int] = []
    for k in range(1, count + 1):
        gaps = {}
        for row in set(range(len(rows))) - set(chosen):
            mean = rows[[*chosen, row]].sum(0) / k
            gaps[row] = float(((rows.mean(0) - mean) ** 2).sum()) * k * k
        equal = [row for row, gap in gaps.items() if gap <= min(gaps.values()) + 1e-9]
        chosen.append(min(equal, key=lambda row: int(ids[row])))
    return chosen


@pytest.mark.parametrize("seed", range(4))
def test_herding_is_the_greedy_rule(seed):
    draw = Streams(seed)["features"]
    features = torch.rand(40, 7, generator=draw) * 10
    ids = torch.randperm(40, generator=draw)
    found = herding_order(features, ids, 17, draw)
    assert found.tolist() == herd_by_hand(features, ids, 17)


def test_ties_are_decided_by_id_wherever_the_rows_lie():
    """Six different pictures in four copies each, in an order that is not that of the ids; zeros
    among them."""
    draw = Streams(3)["features"]
    features = torch.rand(6, 5, generator=draw).repeat(4, 1)
    features[[2, 8, 14, 20]] = 0
    for _ in range(5):
        order = torch.randperm(24, generator=draw)
        ids = 100 + torch.randperm(24, generator=draw)
        found = herding_order(features[order], ids, 24, draw)
        assert found.tolist() == herd_by_hand(features[order], ids, 24)


def test_kmeans_takes_the_nearest_to_each_centre_the_largest_cluster_first():
    draw = Streams(1)["features"]
    directions = torch.eye(4)
    group = torch.tensor([0] * 12 + [1] * 9 + [2] * 20 + [3] * 6)
    features = directions[group] + 0.02 * torch.rand(len(group), 4, generator=draw)
    found = kmeans_order(features, torch.arange(len(group)), 4, draw)
    assert group[found].tolist() == [2, 0, 1, 3]
    unit = features / features.norm(dim=1, keepdim=True)
    for row in found.tolist():
        own = torch.nonzero(group == group[row]).flatten()
        gaps = (unit[own] - unit[own].mean(0)).norm(dim=1)
        assert row == int(own[gaps.argmin()])


def stream(name, capacity, tasks, points, memory=None, **given):
    """Offer tasks of two new classes with 30 rows each; gives the memory and what it held when."""
    chosen = SELECTIONS[name]
    memory = memory or Memory(capacity, chosen.columns)
    history = []
    for task in tasks:
        ids = 100 * task + torch.arange(60)
        labels = 2 * task + torch.arange(60) % 2
        offer = Offer(
            labels, ids, task, 5, points=lambda rows, ids=ids: points[ids[rows]],
            **{key: value(ids) for key, value in given.items()},
        )  # fmt: skip
        placed = chosen.decide(memory, offer, Streams(task)["selection"])
        memory.apply(placed, Batch(ids[:, None].float(), labels, ids), task)
        history.append({label: held_in_order(memory, label) for label in labels.unique().tolist()})
    return memory, history


def held_in_order(memory, label):
    """The ids of a class from the lowest rank to the highest."""
    slots = torch.nonzero((memory.labels == label) & (memory.ids >= 0)).flatten()
    return memory.ids[slots[memory["rank"][slots].argsort()]].tolist()


@pytest.fixture
def points():
    return torch.rand(1000, 6, generator=Streams(2)["points"])


def test_shrinking_a_share_keeps_the_best_prefix(points):
    memory, history = stream("herding", 24, range(3), points)
    for task, first in enumerate(history):
        for label, ids in first.items():
            assert held_in_order(memory, label) == ids[:4]
            own = 100 * task + torch.arange(60)[torch.arange(60) % 2 == label % 2]
            by_hand = herd_by_hand(points[own], own, len(ids))
            assert ids == own[by_hand].tolist()
    assert memory.labels.bincount().tolist() == [4] * 6


def test_what_is_forgotten_leaves_no_place_in_the_order_and_the_rest_keeps_its(points):
    memory, history = stream("herding", 24, range(1), points)
    before = history[0][0]
    memory.forget(torch.tensor(before[2:5]))
    assert held_in_order(memory, 0) == before[:2] + before[5:]
    assert (memory["rank"][memory.empty] == -1).all()
    stream("herding", 24, [1], points, memory)
    assert held_in_order(memory, 0) == (before[:2] + before[5:])[:6]


def test_pinned_examples_stay_and_others_come_by_rank(points):
    memory, history = stream("herding", 24, range(1), points)
    last = history[0][1][-2:]
    memory.update(
        torch.nonzero(torch.isin(memory.ids, torch.tensor(last))).flatten(),
        pinned=torch.ones(2, dtype=torch.bool),
    )
    stream("herding", 24, [1, 2], points, memory)
    assert sorted(held_in_order(memory, 1)) == sorted(history[0][1][:2] + last)


@pytest.mark.parametrize("name", ["herding-low-loss", "kmeans-features-low-loss"])
def test_within_the_lower_half_of_each_class_by_loss(name, points):
    loss = torch.rand(1000, generator=Streams(4)["loss"])
    memory, _ = stream(name, 16, range(2), points, final_loss=lambda ids: lambda: loss[ids])
    for label in range(4):
        own = 100 * (label // 2) + torch.arange(60)[torch.arange(60) % 2 == label % 2]
        median = loss[own].median()
        assert all(loss[i] <= median for i in held_in_order(memory, label))


def test_herding_within_a_filter_aims_at_the_mean_of_what_it_lets_in(points):
    influence = torch.rand(1000, generator=Streams(5)["influence"]).double()
    influence[::7] = torch.nan
    _, history = stream(
        "herding-low-influence", 20, range(1), points, influence=lambda ids: influence[ids]
    )
    own = torch.arange(0, 60, 2)
    low = own[~(influence[own] > influence[own].nanmedian())]
    assert history[0][0] == low[herd_by_hand(points[low], low, 10)].tolist()


def test_a_share_larger_than_what_the_filter_lets_in_is_filled_from_the_rest(points):
    influence = torch.arange(1000.0).double()
    memory, history = stream(
        "herding-low-influence", 50, range(1), points, influence=lambda ids: influence[ids]
    )
    assert len(memory) == 50
    assert max(history[0][0][:15]) < min(history[0][0][15:])


def test_classes_that_come_back_share_the_memory_by_task(points):
    memory = Memory(12, SELECTIONS["herding"].columns)
    labels = torch.arange(60) % 2
    for task in range(3):
        ids = 100 * task + torch.arange(60)
        offer = Offer(
            labels, ids, task, 3, points=lambda rows, ids=ids: points[ids[rows]],
            shared_classes=True,
        )  # fmt: skip
        placed = SELECTIONS["herding"].decide(memory, offer, Streams(0)["selection"])
        memory.apply(placed, Batch(ids[:, None].float(), labels, ids), task)
    assert memory.tasks.bincount().tolist() == [4, 4, 4]
    assert memory.labels.bincount().tolist() == [6, 6]


def test_online_it_holds_a_share_of_the_task_at_hand_and_ends_as_herding_does():
    """Old classes give up what was chosen last; the task's end leaves the herding of a model that
    learned the same way, whatever was kept meanwhile."""
    trainer = digits("er", selection="herding-online", limit_per_class=20, memory=24)
    learner, memory = trainer.learner, trainer.learner.memory
    first: dict[int, list[int]] = {}
    for event in trainer.run():
        if isinstance(event, StepTaken) and event.task == 1 and event.epoch == 1:
            old, new = (trainer.tasks[t].classes for t in (0, 1))
            for label in old:
                assert held_in_order(memory, label) == first[label][:6]
            for label in new:
                assert len(held_in_order(memory, label)) == 6
            assert (memory["rank"][memory.tasks == 1] == -1).all()
        if isinstance(event, TaskFinished) and event.task == 0:
            first = {label: held_in_order(memory, label) for label in trainer.tasks[0].classes}
        if isinstance(event, TaskFinished) and event.task == 1:
            break
    task = trainer.tasks[1].train
    with torch.no_grad():
        rows = task.take(torch.arange(len(task)))
        features = learner.model.eval().features(learner.transform(rows.inputs))
    for label in trainer.tasks[1].classes:
        own = torch.nonzero(task.labels == label).flatten()
        by_hand = herd_by_hand(features[own], task.ids[own], 6)
        assert held_in_order(memory, label) == task.ids[own][by_hand].tolist()
