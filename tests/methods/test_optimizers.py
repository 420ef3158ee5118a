"""Every method with every optimizer learns and resumes to the same bits, or says why it cannot."""

import copy
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from metasp.engine.optimizers import OPTIMIZERS
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.learner.learner import ContinualLearner
from metasp.methods import METHODS
from metasp.spec import OPTIMIZERS as CHOICES
from metasp.spec import RunSpec
from tests.methods.factories import TELLING, digits, finish, weights

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
O = torch.optim  # noqa: E741
OTHERS = {  # that only a learner can be given
    "RAdam": O.RAdam,
    "Adamax": O.Adamax,
    "Adadelta": O.Adadelta,
    "ASGD": O.ASGD,
    "Rprop": O.Rprop,
    "Adafactor": O.Adafactor,
    "LBFGS": O.LBFGS,
}
SMALL = {"limit_per_class": 6, "tasks": 2, "epochs": 4, "lr": 3e-3}


def test_the_choices_of_a_run_are_those_there_are():
    assert tuple(OPTIMIZERS) == CHOICES


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "sgd"])
@pytest.mark.parametrize("method", METHODS)
def test_it_learns_and_resumes_to_the_same_bits(method, optimizer):
    settings = TELLING.get(method, {})
    if method == "gdumb":  # long enough to learn something
        settings = {"memory_epochs": 15, "train_batch": 4, "cutmix": 0.0}
    given = {**SMALL, "trusted": 2} if method == "verified-only" else SMALL
    one, two, three = (
        digits(method, optimizer=optimizer, settings=settings, **given) for _ in range(3)
    )
    events = [event for event in one.run() if isinstance(event, StepTaken) and event.task == 0]
    half = len(events) // 2
    first, second = (sum(e.loss for e in part) for part in (events[:half], events[half:]))
    assert second / (len(events) - half) < first / half
    under_way = two.run()
    while two.position.task == 0 or two.position.step < 2:
        next(under_way)
    tensors, position = two.state()
    three.restore({key: tensor.clone() for key, tensor in tensors.items()}, position)
    finish(three)
    assert torch.equal(weights(three), weights(one))


def learner(method, make):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    settings = {"gdumb": {"memory_epochs": 2}, "hal": {"anchor_steps": 2}}.get(method, {})
    return ContinualLearner(
        model, method, optimizer=make, memory=16, epochs=2, batch_size=4, memory_batch=4,
        settings=settings,
    )  # fmt: skip


def said(method, make):
    """Whether a learner takes two tasks with it, saved and loaded between them or not, to the same
    bits; or the sentence that refuses."""
    try:
        with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            one, place = learner(method, make), Path(folder) / "learner"
            tasks = [torch.randn(24, 4) for _ in range(2)]
            first, second = ((x, (x[:, t] > 0).long() + 2 * t) for t, x in enumerate(tasks))
            one.learn(first, progress=False).save(place)
            two = ContinualLearner.load(place, copy.deepcopy(one.model), optimizer=make)
            for own in (one, two):
                own.learn(second, progress=False)
            states = [dict(own.model.state_dict()) for own in (one, two)]
            assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    except UserError as error:
        return str(error)
    return "yes"


def page():
    """The page of the docs, with a table of what was tried here."""
    kinds = ", ".join(f"`{name}`" for name in OPTIMIZERS)
    lines = [
        "# Optimizers", "",
        "Made by `tests/methods/test_optimizers.py`, which tries every cell: change it there.", "",
        f"`metasp run --optimizer NAME` takes {kinds} (default `sgd`); learning rate and weight",
        "decay are torch's own unless given, RMSprop's rate is Adam's, and only `sgd` and",
        "`rmsprop` have a momentum. `ContinualLearner(model, optimizer=lambda params: …)` takes",
        "any optimizer of torch, and `scheduler=lambda optimizer: …` any scheduler that counts",
        "its steps, which begins anew with each task.", "",
        "Influence and the methods that look ahead (MIR, HAL, GMED) take the step that the",
        "optimizer would take, with its state: exactly, where it moves each number by a smooth",
        "function of that number's gradient and state. The first step of Adam and its kin is",
        "nearly the sign of the gradient, so that an influence there is nearly zero. An optimizer",
        "with hooks around its step, for instance to clip gradients, is refused by them.", "",
        "Every method is killed with SIGKILL under one of these and goes on to the same bits, and",
        "every optimizer under several methods (`tests/killing.py`); every cell below is stopped",
        "and restored in one process.", "",
        "| method | in runs | " + " | ".join(OTHERS) + " |",
        "|---|---|" + "---|" * len(OTHERS),
    ]  # fmt: skip
    sentences: list[str] = []
    for method, recipe in METHODS.items():
        if said(method, torch.optim.SGD) != "yes":  # a learner cannot have it at all, as joint
            lines.append(f"| `{method}` | all |" + " runs only |" * len(OTHERS))
            continue
        cells = []
        for make in OTHERS.values():
            answer = said(method, make)
            if answer != "yes" and answer not in sentences:
                sentences.append(answer)
            cells.append("yes" if answer == "yes" else f"no ({sentences.index(answer) + 1})")
        assert recipe.kind.virtual_steps == (cells[list(OTHERS).index("Rprop")] != "yes")
        lines.append(f"| `{method}` | all | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {text}" for number, text in enumerate(sentences, 1)), ""]
    return "\n".join(lines)


@pytest.mark.slow
def test_the_page_says_what_happens():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `python -m tests.methods.test_optimizers` and commit docs/optimizers.md"
    )


def test_a_momentum_that_the_optimizer_does_not_have_is_refused():
    with pytest.raises(UserError, match="adamw has no momentum"):
        digits("er", optimizer="adamw", momentum=0.9)
    with pytest.raises(UserError, match="optimizer"):
        RunSpec(optimizer="lbfgs")


def test_a_run_has_the_optimizers_own_defaults():
    groups = {
        name: digits("er", optimizer=name, limit_per_class=2).learner.optimizer.param_groups[0]
        for name in ("adamw", "rmsprop", "sgd")
    }
    assert (groups["adamw"]["lr"], groups["adamw"]["weight_decay"]) == (1e-3, 0.01)
    assert (groups["rmsprop"]["lr"], groups["rmsprop"]["momentum"]) == (1e-3, 0.0)
    assert (groups["sgd"]["lr"], groups["sgd"]["weight_decay"]) == (0.1, 0.0)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
