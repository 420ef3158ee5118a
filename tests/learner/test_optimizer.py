"""A learner with the user's own optimizer and scheduler."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from metasp import ContinualLearner
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.methods.gradients import after_virtual_step
from metasp.types import Batch


def adamw(params):
    return torch.optim.AdamW(params, lr=3e-3, weight_decay=0.1)


def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def task(index):
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(24, 4, generator=generator)
    return x, (x[:, index % 4] > 0).long() + 2 * index


def learner(net, method="metasp-rehsel", **changes):
    settings = {"optimizer": adamw, "memory": 12, "epochs": 3, "batch_size": 8, **changes}
    return ContinualLearner(net, method, head="2", **settings)


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("make", [adamw, torch.optim.NAdam, torch.optim.Adagrad])
def test_saved_and_loaded_it_goes_on_to_the_same_bits(make, tmp_path):
    """With a head that grows, whose state in the optimizer grows with it."""
    parts = {"optimizer": make, "scheduler": lambda o: CosineAnnealingLR(o, 3)}
    one, two = model(), model()
    whole = learner(one, **parts)
    for index in range(3):
        whole.learn(task(index), progress=False)
    first = learner(two, **parts)
    for index in range(2):
        first.learn(task(index), progress=False)
    first.save(tmp_path / "learner")
    with pytest.raises(UserError, match="pass optimizer= again"):
        ContinualLearner.load(tmp_path / "learner", model())
    three = model()
    loaded = ContinualLearner.load(tmp_path / "learner", three, **parts)
    loaded.learn(task(2), progress=False)
    assert torch.equal(weights(three), weights(one))
    assert three[2].out_features == 6


def rates(own, index):
    events = list(own.stream(task(index)))
    return [e.lr for e in events if isinstance(e, StepTaken)]


def test_the_schedule_moves_by_epoch_or_step_in_each_task_anew():
    def halving(optimizer):
        return LambdaLR(optimizer, lambda count: 0.5**count)

    by_epoch = learner(model(), "er", scheduler=halving)
    by_step = learner(model(), "er", scheduler=halving, scheduler_step="step")
    for index in (0, 1):
        wanted = [3e-3 * 0.5**epoch for epoch in range(3) for _ in range(3)]
        assert rates(by_epoch, index) == pytest.approx(wanted)
        assert rates(by_step, index) == pytest.approx([3e-3 * 0.5**step for step in range(9)])


WRONG = {
    "both": ({"lr": 0.1}, "lr and optimizer are both given"),
    "an optimizer": (
        {"optimizer": torch.optim.SGD(model().parameters())},
        "that makes one, not a SGD",
    ),
    "no optimizer": ({"optimizer": lambda params: 3}, "returned a int"),
    "lbfgs": ({"optimizer": torch.optim.LBFGS, "method": "er"}, "returned a LBFGS: make one"),
    "rprop": ({"optimizer": torch.optim.Rprop}, "cannot follow Rprop"),
    "plateau": ({"scheduler": ReduceLROnPlateau}, "returned a ReduceLROnPlateau"),
    "its own": ({"scheduler": lambda o: CosineAnnealingLR(o, 3), "method": "gdumb"}, "of its own"),
    "clip": ({"clip_norm": 0.0}, "clip_norm must be at least"),
    "made": ({"optimizer": lambda p: torch.optim.AdamW(p, lr=-1)}, "cannot be made .Invalid lear"),
    "of matrices": ({"optimizer": torch.optim.Muon}, "cannot be made .Muon only supports 2D"),
    "sparse": ({"optimizer": torch.optim.SparseAdam}, "cannot follow SparseAdam"),
    "half made": ({"scheduler": lambda o: StepLR(o)}, "scheduler cannot be made"),
    "when": ({"scheduler_step": "task"}, "scheduler_step"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_mistake_gets_one_sentence(kind):
    changes, word = WRONG[kind]
    with pytest.raises(UserError, match=word) as caught:
        learner(model(), **changes)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def clipping(params):
    kept = list(params)
    made = torch.optim.SGD(kept, lr=0.1)
    made.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(kept, 0.1) and None)
    return made


@pytest.mark.parametrize("method", ["er", "agem"])
def test_gradients_are_clipped_as_a_hook_of_the_optimizer_clips_them(method):
    one, two, three = model(), model(), model()
    learner(one, method, optimizer=clipping).learn(task(0), progress=False)
    given = {"optimizer": None, "lr": 0.1}
    learner(two, method, clip_norm=0.1, **given).learn(task(0), progress=False)
    learner(three, method, **given).learn(task(0), progress=False)
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(two), weights(three))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_step_that_is_looked_ahead_to_is_the_step_that_is_taken(clip):
    """What MIR and GMED go by, with an optimizer that has a state, and with clipped gradients."""
    own = learner(model(), "mir", clip_norm=clip).learn(task(0), progress=False)
    context, (x, y) = own._trainer.learner, task(0)
    batch = context.prepare(Batch(x[:8], y[:8], torch.arange(8)))
    ahead = after_virtual_step(context, batch)
    context.update(batch)
    for name, value in own.model.named_parameters():
        torch.testing.assert_close(ahead[name], value.detach())


def test_a_hook_that_clips_is_refused_where_the_pseudo_step_would_miss_it():
    with pytest.raises(UserError, match="hooks around its step, for instance to clip"):
        learner(model(), optimizer=clipping)


def test_a_schedule_that_ends_before_the_task_says_so_and_the_learner_is_as_before():
    def short(optimizer):
        return OneCycleLR(optimizer, 0.1, total_steps=4)

    own = learner(model(), "er", scheduler=short, scheduler_step="step")
    with pytest.raises(UserError, match=r"cannot go on .*as many moves as a task has"):
        own.learn(task(0), progress=False)
    assert own.tasks == 0
