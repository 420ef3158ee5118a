"""The settings of MetaSP: what they mean, and that they reach what they set."""

import pytest
import torch
from torch import nn

from metasp.api import run
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.influence import sp_influence
from metasp.learner import ContinualLearner
from metasp.methods.metasp import MetaSP, MetaSPSettings
from metasp.methods.weighting import validation_sets, validation_size
from metasp.store.forget import cleared
from tests.methods.factories import digits
from tests.methods.test_metasp import net, small_learner


def test_validation_sizes():
    assert validation_size(None, 100, 200) == 20
    assert validation_size(0.5, 100, 200) == 50
    assert validation_size(30.0, 100, 200) == 30
    assert validation_size(300.0, 100, 200) == 100
    assert validation_size(None, 100, 10) == 2


def test_more_influence_epochs_than_epochs_are_refused():
    with pytest.raises(UserError, match="influence_last is 7 but a task has only 5 epochs"):
        run(method="metasp", epochs=5, influence_last=7)
    with pytest.raises(UserError, match="influence_last is 3 but a task has only 2 epochs"):
        ContinualLearner(nn.Linear(2, 2), epochs=2, settings={"influence_last": 3})


def test_settings_are_checked(tiny):
    with pytest.raises(UserError, match="gamma must be between 0 and 1"):
        tiny(method="metasp", settings={"gamma": 1.5})
    with pytest.raises(UserError, match="did you mean 'gamma'"):
        tiny(method="metasp", settings={"gama": 0.5})


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({}, {}),
        ({"pseudo_steps": 3}, {"steps": 3}),
        ({"scope": "2"}, {"scope": "2"}),  # the last layer
        ({"scope": "2", "reuse": 2}, {"scope": "2"}),  # by what enters it
        ({"validation_old": 5}, {"old": 5}),
        ({"validation_old": 0.5}, {"old": 6}),
        ({"validation_new": 7}, {"new": 7}),
        ({"validation_new": 0.5}, {"new": 15}),
    ],
)
def test_its_settings_reach_the_measurement(settings, measured):
    """Against `sp_influence` itself, on the validation sets that the same streams draw."""
    model, twin = net(), net()
    learner = small_learner(model, torch.optim.SGD(model.parameters(), lr=0.3))
    fresh = learner.current.take(torch.arange(6))
    MetaSP(learner, MetaSPSettings(**settings)).step(fresh, None)
    again = small_learner(twin, None)
    batch = again.with_replay(fresh)
    # Without a setting, a tenth of a memory of 12, but no fewer than two.
    old, new = validation_sets(again, measured.pop("old", 2), measured.pop("new", 2))
    wanted = sp_influence(twin, again.loss_fn, *map(pair_of, (batch, old, new)), lr=0.3, **measured)
    got = learner.influence_stats.means(batch.ids)[:, :2]
    torch.testing.assert_close(got, torch.stack([wanted.stability, wanted.plasticity], 1))


def test_reuse_keeps_v_for_some_steps_and_no_forgotten_example():
    settings = {"scope": "head", "reuse": 4, "influence_last": 2}
    trainer = digits("metasp", settings=settings)
    weights, drawn = trainer.learner.weigh.weights, []
    for event in trainer.run():
        if isinstance(event, StepTaken) and event.kind == "influence":
            goals = weights.v_old
            if not drawn or drawn[-1][0] is not goals:
                drawn.append([goals, event.task, 0])
            drawn[-1][2] += 1
    assert [(task, used) for _, task, used in drawn] == [
        (task, used) for task in range(1, 5) for used in (4, 2)
    ]
    held = {f"weigh/{name}": t.numpy() for name, t in trainer.learner.weigh.state_dict().items()}
    gone = held["weigh/weights/v_old/ids"][:1]
    for name, rows in cleared(held, gone).items():
        if name.startswith("weigh/weights/v_old"):
            assert len(rows) == len(held[name]) - 1
    trainer.forget(torch.from_numpy(gone))
    assert weights.v_old is None


@pytest.mark.parametrize("scope", [None, "convs"])
def test_reuse_needs_the_scope_to_be_the_head(scope):
    with pytest.raises(UserError, match="give the head's name as scope"):
        digits("metasp", settings={"scope": scope, "reuse": 3})


def pair_of(batch):
    return batch.inputs, batch.labels


def test_every_second_step(tiny):
    steps = [e for e in tiny(method="metasp", epochs=2, settings={"every": 2}).events()
             if isinstance(e, StepTaken) and e.kind == "influence"]  # fmt: skip
    assert ["gamma" in e.numbers for e in steps] == [i % 2 == 0 for i in range(len(steps))]
