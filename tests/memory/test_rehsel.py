from dataclasses import replace

import pytest
import torch
from sklearn.cluster import KMeans

from metasp import ExampleStats
from metasp.memory import SELECTIONS, Memory, Offer
from metasp.memory.herding import cluster_means, kmeans
from metasp.memory.rehsel import rehsel_as_written
from metasp.types import Batch, Streams
from tests.methods.factories import digits, train


def blobs(centres=6, each=20, spread=0.05):
    """Well separated groups in the plane, with the group of each row."""
    stream = Streams(0)["blobs"]
    middle = torch.stack([torch.arange(centres) * 10.0, torch.zeros(centres)], 1)
    group = torch.arange(centres).repeat_interleave(each)
    points = middle[group] + spread * torch.randn(len(group), 2, generator=stream)
    return points, group


def decide(name, memory, points, influence, task=0, labels=None, ids=None, **given):
    ids = torch.arange(len(points)) + 1000 * task if ids is None else ids
    labels = torch.zeros(len(points), dtype=torch.long) if labels is None else labels
    offer = Offer(labels, ids, task, 5, lambda rows: points[rows], influence, **given)
    placement = SELECTIONS[name].decide(memory, offer, Streams(1)["selection"])
    memory.apply(placement, Batch(points, labels, ids), task)
    memory.influence[placement.slots] = influence[placement.chosen].double()
    return placement


def test_kmeans_is_as_good_as_scikit_learns():
    points = torch.rand(800, 8, generator=Streams(0)["points"])
    _, distance = kmeans(lambda rows: points[rows], 800, 20, Streams(0)["k"], iterations=50)
    other = KMeans(20, n_init=1, random_state=0).fit(points.numpy()).inertia_
    assert float(distance.sum()) < 1.05 * other


def test_clusters_without_rows_take_the_first_of_those_that_are_equally_far():
    points, nearest = torch.arange(60.0)[:, None], torch.zeros(60, dtype=torch.long)
    distance = (torch.arange(60) % 3).float()  # that of 2, 5, 8, … is the largest
    found = cluster_means(lambda rows: points[rows], nearest, distance, 4)
    assert found.flatten().tolist() == [29.5, 2, 5, 8]


def test_rehsel_stores_the_best_of_each_cluster():
    points, group = blobs()
    influence = torch.rand(len(points), generator=Streams(3)["i"])
    best = [int(torch.where(group == g, influence, 9.0).argmin()) for g in range(6)]
    placement = decide("rehsel", Memory(6), points, influence)
    assert sorted(placement.chosen.tolist()) == best


@pytest.mark.parametrize("name", ["rehsel-filter", "rehsel-filter-by-loss"])
def test_filter_stores_the_nearest_to_each_centre_among_the_helpful_half(name):
    points, group = blobs()
    stream = Streams(3)["i"]
    values = torch.rand(len(points), generator=stream)
    values[group == 5] += 1  # a cluster of harmful ones still gives its most central
    other = torch.rand(len(points), generator=stream)  # what this filter must not look at
    influence, loss = (values, other) if name == "rehsel-filter" else (other, values)
    centres = torch.stack([points[group == g].mean(0) for g in range(6)])
    distance = (points - centres[group]).square().sum(1)
    helpful = values <= values.median()
    wanted = []
    for g in range(6):
        inside = (group == g) & helpful if g < 5 else group == g
        wanted.append(int(torch.where(inside, distance, torch.inf).argmin()))
    memory = Memory(6)
    placement = decide(name, memory, points, influence, loss=loss)
    assert sorted(placement.chosen.tolist()) == sorted(wanted)
    # Three of the six must go: the harmful cluster's is above the median, so it is among them.
    worst = int(placement.slots[placement.chosen == wanted[5]])
    held = loss[memory.ids]
    decide(name, memory, points, influence, task=1, loss=loss, held_loss=held)
    assert int(memory.tasks[worst]) == 1


def test_without_cluster_it_stores_the_best_outright():
    points, _ = blobs()
    influence = torch.rand(len(points), generator=Streams(3)["i"])
    placement = decide("rehsel-without-cluster", Memory(6), points, influence)
    assert sorted(placement.chosen.tolist()) == sorted(influence.argsort()[:6].tolist())


@pytest.mark.parametrize("name", [n for n in SELECTIONS if n.startswith("rehsel")])
def test_a_first_task_without_influence_still_fills_the_memory(name):
    points, _ = blobs()
    unknown = torch.full((len(points),), torch.nan)
    memory = Memory(10)
    decide(name, memory, points, unknown)
    assert len(memory) == len(set(memory.ids.tolist())) == 10


@pytest.mark.parametrize("name", [n for n in SELECTIONS if n.startswith("rehsel")])
def test_what_is_drawn_is_drawn_from_the_stream_alone(name):
    points, _ = blobs()
    unknown = torch.full((len(points),), torch.nan)
    offer = Offer(
        torch.zeros(120).long(), torch.arange(120), 0, 5, lambda rows: points[rows], unknown
    )
    chosen = []
    for seed in (1, 1, 2):
        torch.rand(3)  # the global stream moves on
        placement = SELECTIONS[name].decide(Memory(10), offer, Streams(seed)["selection"])
        chosen.append(placement.chosen.tolist())
    assert chosen[0] == chosen[1] != chosen[2]


def test_the_worst_are_dropped_evenly_over_tasks_and_classes():
    points, _ = blobs(centres=4, each=10)
    stream = Streams(4)["i"]
    memory = Memory(24)
    for task in range(2):
        labels = 2 * task + torch.arange(40) % 2
        decide("rehsel", memory, points, torch.rand(40, generator=stream), task, labels)
    before = {int(i): (int(t), int(y), float(v)) for i, t, y, v in
              zip(memory.ids, memory.tasks, memory.labels, memory.influence)}  # fmt: skip
    assert [t for t, _, _ in before.values()].count(0) == 12
    decide("rehsel", memory, points, torch.rand(40, generator=stream), 2,
           4 + torch.arange(40) % 2)  # fmt: skip
    left = set(memory.ids.tolist()) & set(before)
    for task in range(2):
        held = [(i, y, v) for i, (t, y, v) in before.items() if t == task]
        assert sum(i in left for i, _, _ in held) == 8
        sizes = []
        for label in {y for _, y, _ in held}:
            own = sorted((v, i) for i, y, v in held if y == label)
            kept = [i in left for _, i in own]
            assert kept == sorted(kept, reverse=True), "a better one was dropped before a worse"
            sizes.append(sum(kept))
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e5])
def test_kmeans_goes_by_distance_wherever_the_rows_lie(offset):
    points, group = blobs(spread=0.5)
    points = points + offset
    nearest, distance = kmeans(lambda rows: points[rows], len(points), 6, Streams(3)["k"])
    for label in range(6):
        assert len(nearest[group == label].unique()) == 1
    assert distance.max() < 10


def test_a_run_offers_the_mean_losses_of_what_the_memory_holds(monkeypatch):
    """Over the steps of the task that measured influence; NaN of what was in none of them."""
    trainer = digits("metasp", selection="rehsel-filter-by-loss", backbone="mlp")
    learner, losses, offered = trainer.learner, {}, []
    decide, add = learner.selection.decide, ExampleStats.add

    def measured(stats, ids, **values):
        for example, loss in zip(ids.tolist(), values["loss"].tolist()):
            losses.setdefault(example, []).append(loss)
        return add(stats, ids, **values)

    def watched(memory, offer, generator):
        held = [losses.get(example, [torch.nan]) for example in memory.ids.tolist()]
        wanted = torch.tensor([sum(each) / len(each) for each in held], dtype=torch.float64)
        torch.testing.assert_close(offer.held_loss, wanted, equal_nan=True)
        offered.append(int((~wanted.isnan()).sum()))
        losses.clear()  # each task has statistics of its own
        return decide(memory, offer, generator)

    monkeypatch.setattr(ExampleStats, "add", measured)
    learner.selection = replace(learner.selection, of=watched)
    train(trainer, 19)  # into the fourth task
    assert len(offered) == 3
    assert offered[-1] > 0


def test_as_written_drops_the_least_helpful_of_the_whole_memory():
    points, _ = blobs(centres=4, each=10)
    memory = Memory(12)
    influence = torch.rand(40, generator=Streams(4)["i"])
    decide("rehsel", memory, points, influence)
    before = {int(i): float(v) for i, v in zip(memory.ids, memory.influence)}
    offer = Offer(
        torch.full((40,), 7), torch.arange(100, 140), 1, 2, lambda rows: points[rows], influence
    )
    placement = rehsel_as_written(memory, offer, Streams(4)["selection"])
    dropped = {int(memory.ids[slot]) for slot in placement.slots}
    assert len(dropped) == 6  # half the memory is the new task's
    assert dropped == set(sorted(before, key=before.__getitem__)[-6:])
