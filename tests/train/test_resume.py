"""Whatever is trained, and wherever it is stopped: it goes on to the same bits.

The slow tests draw 300 cases, or METASP_RESUME_CASES."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from metasp.errors import Diverged, UserError
from metasp.experiment import prepare
from metasp.learner import ContinualLearner
from metasp.memory import SELECTIONS
from metasp.methods import METHODS
from metasp.spec import RunSpec
from metasp.train.optimizers import OPTIMIZERS
from tests.helpers import assert_same_run, finish
from tests.learner.factories import KNOWN, SHORT, everything, net, pair
from tests.methods.factories import TELLING

FEW, MANY = 20, int(os.environ.get("METASP_RESUME_CASES", "300"))
SMALL = {"limit_per_class": 5, "tasks": 2, "memory": 20, "batch_size": 8, "memory_batch": 8,
         "width": 4, "threads": 1, "label_noise": 0.1}  # fmt: skip
RATES = {"sgd": 0.05, "adagrad": 0.01}


@st.composite
def specs(draw) -> RunSpec:
    """Settings of a small run."""
    method = draw(st.sampled_from([*METHODS]))
    optimizer = draw(st.sampled_from([*OPTIMIZERS]))
    values = {
        "optimizer": optimizer,
        "lr": RATES.get(optimizer, 1e-3),
        "momentum": draw(st.sampled_from([None, 0.9])) if optimizer == "sgd" else None,
        "epochs": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2)),
        "backbone": draw(st.sampled_from(["mlp", "convnet", "resnet18"])),
        "trusted": draw(st.sampled_from([1, 0] if method == "verified-only" else [0, 1])),
        "lr_drop_at": draw(st.sampled_from([(), (1,)])),
        "test_every": draw(st.integers(1, 2)),
    }
    optional = {
        "selection": st.sampled_from([*SELECTIONS]),
        "influence": st.sampled_from(["metasp", "robust"]),
        "observe": st.integers(1, 2),
        "rehearse_last": st.just(1),
        "validation": st.just(0.25),
        "settings": st.just(TELLING.get(method, {})),
    }
    for name in draw(st.sets(st.sampled_from([*optional]), max_size=3)):
        values[name] = draw(optional[name])
    if values.get("validation"):
        values["patience"] = 1
    if "settings" not in values:
        values["settings"] = {**SHORT.get(method, {})}
    return RunSpec(method=method, **{**SMALL, **values})


def drawn(check: Callable[..., None], cases: int, *strategies: st.SearchStrategy) -> None:
    """Check so many cases."""
    chosen = settings(
        max_examples=cases, suppress_health_check=list(HealthCheck), print_blob=True, deadline=None
    )
    chosen(given(*strategies)(check))()


def check_run(spec, stops, seconds):
    """Left after a share of its events, with a checkpoint after each step or after each task."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = finish(prepare(spec, Path(folder) / "whole"))
        except Diverged:
            reject()
        except UserError:  # what does not fit together is refused before it begins
            assert not list(Path(folder).glob("*/*/checkpoint"))
            reject()
        count = len(whole.events())
        for stop in sorted(stops):
            left = prepare(spec, Path(folder) / "left", checkpoint_seconds=seconds)
            done = 0 if not left.directory.path.exists() else len(left.directory.events())
            for number, _ in enumerate(left.events(), start=min(done, count)):
                if number >= stop * count:
                    break
        assert_same_run(finish(prepare(spec, Path(folder) / "left")), whole)


CHANGES = ("learn", "observe", "finish", "forget", "trust")


def change(learner: ContinualLearner, name: str, number: int) -> None:
    """One thing that a user does with a learner, which may refuse it."""
    inputs, labels = pair(number % 5, 16)
    try:
        if name == "learn":
            learner.learn((inputs, labels), progress=False, validation=0.25 if number % 2 else None)
        elif name == "observe":
            learner.observe((inputs[number % 8 :][:6], labels[number % 8 :][:6]))
        elif name == "finish":
            learner.finish()
        elif name == "trust":
            learner.trust((inputs[:2], labels[:2]))
        else:
            learner.forget(ids=learner.memory.table()["id"].to_pylist()[:2], reason="asked for")
    except UserError:
        return


@st.composite
def learners(draw) -> dict:
    """Keywords of a small learner."""
    method = draw(st.sampled_from(KNOWN))
    values = {
        "method": method,
        "memory": 12,
        "epochs": draw(st.integers(1, 2)),
        "batch_size": 8,
        "memory_batch": 8,
        "lr": 0.05,
        "window": 10,
        "settings": SHORT.get(method, {}),
    }
    optional = {
        "selection": st.sampled_from([*SELECTIONS]),
        "influence": st.sampled_from(["metasp", "robust"]),
        "momentum": st.just(0.9),
        "clip_norm": st.just(1.0),
    }
    for name in draw(st.sets(st.sampled_from([*optional]), max_size=2)):
        values[name] = draw(optional[name])
    return values


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def cosine(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)


def check_learner(values, code, steps):
    """Saved and loaded after some of its changes."""
    try:
        if "optimizer" in code:
            values = {**values, "lr": None, "momentum": None}
        whole = ContinualLearner(net(), **values, **code)
    except UserError:
        reject()
    left = ContinualLearner(net(), **values, **code)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, killed) in enumerate(steps):
            change(whole, name, number)
            change(left, name, number)
            if killed:
                left.save(Path(folder) / "learner")
                left = ContinualLearner.load(Path(folder) / "learner", net(seed=1), **code)
    assert everything(left) == everything(whole)


COUNTS = [FEW, pytest.param(MANY, marks=pytest.mark.slow)]


@pytest.mark.parametrize("cases", COUNTS)
def test_a_run_that_is_left_anywhere_ends_with_the_same_bits(cases):
    stops = st.lists(st.floats(0, 1), min_size=1, max_size=3)
    drawn(check_run, cases, specs(), stops, st.sampled_from([0.0, 60.0]))


@pytest.mark.parametrize("cases", COUNTS)
def test_a_learner_that_is_saved_and_loaded_anywhere_ends_with_the_same_bits(cases):
    code = st.sampled_from([{}, {"optimizer": adam}, {"scheduler": cosine}])
    change = st.tuples(st.sampled_from(CHANGES), st.booleans())
    drawn(check_learner, cases, learners(), code, st.lists(change, min_size=2, max_size=7))
