"""MetaSP: what makes it MetaSP, against independent answers."""

import statistics
from functools import partial

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metasp.data.transform import Transform
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.influence import Influence
from metasp.memory import Memory, selection
from metasp.methods.context import Plan, TrainingContext
from metasp.methods.losses import Objective, Term
from metasp.methods.weighting import (
    InfluenceWeights,
    validation_sets,
)
from metasp.types import Batch, Examples, Streams
from tests.helpers import final_weights, finish
from tests.methods.factories import digits

SCHEDULED = {"epochs": 3, "selection": "task-balanced"}


def zeros(self, learner, objective, goals):
    batch = objective.batch
    none = torch.zeros(batch.size)
    return learner.losses(batch), Influence(none, none, "none", 1.0, 1.0)


def learned(directory):
    """The weights and memory at the end."""
    state = final_weights(directory)
    return {k: v for k, v in state.items() if k.startswith(("model/", "optimizer/", "memory/"))}


def losses(events):
    return [(e.task, e.epoch, e.step, e.loss) for e in events if isinstance(e, StepTaken)]


def test_with_zero_influence_it_is_er_with_its_schedule(tiny, monkeypatch):
    er = tiny("er", method="er", rehearse_last=1, **SCHEDULED)
    er_losses = losses(er.events())
    monkeypatch.setattr(InfluenceWeights, "measure", zeros)
    meta = tiny("metasp", method="metasp", settings={"influence_last": 1}, **SCHEDULED)
    assert losses(meta.events()) == er_losses
    one, two = learned(meta.directory), learned(er.directory)
    # The noted influence is metasp's own: zero where er knows none.
    assert one.pop("memory/influence") != two.pop("memory/influence")
    assert one == two


@pytest.mark.parametrize("method", ["er", "mir", "gss", "gmed"])
def test_observing_leaves_training_untouched(tiny, method):
    unseen = tiny("unseen", method=method, epochs=2)
    seen = tiny("seen", method=method, epochs=2, observe=2)
    assert losses(unseen.events()) == losses(seen.events())
    one, two = learned(unseen.directory), learned(seen.directory)
    one.pop("memory/influence"), two.pop("memory/influence")
    assert one == two
    assert (seen.directory.path / "influence.parquet").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "finetune", "observe": 1}, "cannot be observed"),
        ({"method": "gem", "observe": 1}, "cannot be observed"),
        ({"method": "metasp", "rehearse_last": 1, "epochs": 2}, "does not follow rehearse_last"),
        ({"method": "joint", "selection": "ring"}, "keeps no memory"),
        ({"method": "er", "selection": "rehsel"}, "needs influence"),
    ],
)
def test_what_a_method_would_ignore_is_refused(tiny, changes, words):
    with pytest.raises(UserError, match=words):
        tiny(**changes)


@pytest.mark.parametrize("scope", ["haed", "ead"])
def test_a_scope_that_no_parameter_has_is_refused_before_anything_is_trained(tiny, scope):
    run = tiny(method="metasp", settings={"scope": scope})
    with pytest.raises(UserError, match=rf"unknown scope '{scope}': did you mean 'head'\?"):
        next(run.events())
    assert not run.directory.path.exists()


def test_selection_by_influence_serves_any_method(tiny):
    """RehSel under er, on influences that are only observed."""
    run = finish(tiny(method="er", selection="rehsel", observe=1, epochs=2))
    assert len(pq.read_table(run.path / "memory" / "task-004.parquet")) == 50


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def small_learner(model, optimizer):
    """A learner in float64 with 12 examples in memory and 30 in the task at hand."""
    streams = Streams(5)
    x = torch.randn(42, 4, generator=streams["x"], dtype=torch.float64)
    y = torch.randint(0, 3, (42,), generator=streams["y"])
    memory = Memory(12)
    memory.write(torch.arange(12), Batch(x[:12], y[:12], torch.arange(12)), 0)

    class Identity(Transform):
        def __call__(self, raw, generator=None):
            return raw

    return TrainingContext(
        model=model,
        optimizer=optimizer,
        loss_fn=partial(F.cross_entropy, reduction="none"),
        memory=memory,
        selection=selection("task-balanced"),
        transform=Identity((0.0,), (1.0,)),
        streams=streams,
        plan=Plan(1, 8, 8, 1, 2),
        device=torch.device("cpu"),
        current=Examples.of(x[12:], y[12:], torch.arange(12, 42)),
    )


def objective_of(learner, batch):
    return Objective([Term(batch)], learner.loss_fn)


def test_stability_is_measured_on_earlier_tasks_alone():
    """A reservoir holds examples of the task at hand too."""
    model = net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.task = 1
    learner.memory.write(torch.arange(4, 12), learner.current.take(torch.arange(8)), 1)
    old, new = validation_sets(learner, 10, 10)
    assert sorted(old.ids.tolist()) == [0, 1, 2, 3]
    assert min(new.ids.tolist()) >= 12


def by_hand(model, batch, old, new, rule, lr):
    """Weights from the definition: a gradient through the pseudo update, one example at a time."""
    names = [name for name, _ in model.named_parameters()]
    theta = [p.detach().clone().requires_grad_() for p in model.parameters()]

    def loss(params, x, y):
        out = torch.func.functional_call(model, dict(zip(names, params)), (x,))
        return F.cross_entropy(out, y, reduction="none")

    n = batch.size
    nudge = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    inner = loss(theta, batch.inputs, batch.labels)
    grads = torch.autograd.grad(inner.mean() + nudge @ inner, theta, create_graph=True)
    moved = [t - lr * g for t, g in zip(theta, grads)]
    goals = [loss(moved, v.inputs, v.labels).mean() for v in (old, new)]
    s, p = (torch.autograd.grad(goal, nudge, retain_graph=True)[0] for goal in goals)
    if rule == "released":
        s, p = s * goals[0].item() / s.norm(), p * goals[1].item() / p.norm()
    gamma = float(((p - s) @ p) / ((p - s) @ (p - s)))
    gamma = min(max(gamma, 0.001), 0.999) if rule == "released" else min(max(gamma, 0.0), 1.0)
    fused = gamma * s + (1 - gamma) * p
    return (1 - fused) / (1 - fused).sum() if rule == "released" else 1 / n - fused


@pytest.mark.parametrize("rule", ["released", "as-written"])
def test_the_weighted_update_by_hand(rule):
    model, lr = net(), 0.3
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=lr))
    batch = Batch.join([learner.current.take(torch.arange(6)), learner.replay(4)])
    again = small_learner(net(), None)
    again.replay(4)
    old, new = validation_sets(again, 5, 7)
    weights = by_hand(model, batch, old, new, rule, lr)
    total = weights @ F.cross_entropy(model(batch.inputs), batch.labels, reduction="none")
    grads = torch.autograd.grad(total, list(model.parameters()))
    expected = [p.detach() - lr * g for p, g in zip(model.parameters(), grads)]
    step = learner.update(batch, InfluenceWeights(rule=rule, validation_old=5, validation_new=7))
    assert step.numbers["fallback"] == 0
    for got, want in zip(model.parameters(), expected):
        assert torch.allclose(got, want, rtol=1e-10, atol=1e-12)
    assert len(learner.influence_stats) == 10


def test_validation_sets_are_drawn_anew_from_memory_and_task():
    learner = small_learner(net(), None)
    draws = [validation_sets(learner, 4, 6) for _ in range(3)]
    assert all(set(old.ids.tolist()) <= set(range(12)) for old, _ in draws)
    assert all(set(new.ids.tolist()) <= set(range(12, 42)) for _, new in draws)
    assert len({tuple(old.ids.tolist()) for old, _ in draws}) == 3


def test_validation_sets_are_verified_ones_where_every_class_has_some():
    """Of the past and of the task each by itself; one class without any, and it is as before."""
    learner = small_learner(net(), None)
    memory, stream = learner.memory, list(range(12, 42))
    labels = learner.current.labels.tolist()
    past = dict(zip(memory.ids[memory.occupied].tolist(), memory.labels[memory.occupied].tolist()))
    of_each = [next(i for i in past if past[i] == label) for label in sorted(set(past.values()))]
    memory.pinned[torch.isin(memory.ids, torch.tensor(of_each))] = True
    for _ in range(3):
        old, new = validation_sets(learner, 9, 6)
        assert sorted(old.ids.tolist()) == sorted(of_each)
        assert set(new.ids.tolist()) <= set(stream)
    rows = [labels.index(label) for label in sorted(set(labels))]
    learner.task = 1
    loose = torch.nonzero(~memory.pinned).flatten()[: len(rows)]
    memory.write(loose, learner.current.take(torch.tensor(rows)), learner.task)
    memory.pinned[memory.tasks == learner.task] = True
    _, new = validation_sets(learner, 9, 6)
    assert sorted(new.ids.tolist()) == sorted(learner.current.ids[rows].tolist())
    memory.pinned[memory.ids == of_each[0]] = False
    memory.pinned[memory.ids == learner.current.ids[rows[0]]] = False
    drawn = [validation_sets(learner, 9, 6) for _ in range(4)]
    assert {i for old, _ in drawn for i in old.ids.tolist()} > set(of_each)
    assert any(len(set(new.ids.tolist())) == 6 for _, new in drawn)


@pytest.mark.parametrize(
    ("selection", "column"), [("rehsel-filter", "fused"), ("rehsel-filter-by-loss", "loss")]
)
def test_a_filter_keeps_the_higher_half_out(tiny, selection, column):
    """Few clusters of many examples: each has one in the lower half, so nothing above the median
    of the new task is kept."""
    run = finish(tiny(method="metasp-rehsel", selection=selection, epochs=2, memory=10))
    rows = pq.read_table(run.path / "influence.parquet").to_pylist()
    for task in range(1, 5):
        own = [row for row in rows if row["task"] == task and row["source"] == "new"]
        kept = [row[column] for row in own if row["kept"]]
        assert kept
        assert max(kept) <= statistics.median_low(row[column] for row in own)


def test_features_are_what_the_head_sees():
    learner = digits("er").learner
    learner.model.eval()
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(learner.features(x), learner.model.features(x))
        assert learner.features(x).shape[1] == learner.model.head.in_features
        learner.model = torch.nn.Sequential(torch.nn.Flatten(0, 0), learner.model)
        torch.testing.assert_close(learner.features(x), learner.outputs(x))
