"""Models that do something odd: the influence is right, or refused in one sentence.

Right means as by central differences of real steps of the optimizer in float64, whose passes all
start from the same buffers, attributes and random state. `python -m tests.influence.test_traps`
writes the table of outcomes into `docs/influence-traps.md`.
"""

import copy
import random
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metasp.errors import UserError
from metasp.influence import sp_influence
from metasp.trees import call
from tests.influence.trap_models import CLASSES, INPUTS, TOKENS, TRAPS, Case, N
from tests.oracles import influence_through_weights, torch_step

PAGE = Path(__file__).parents[2] / "docs" / "influence-traps.md"
STEP = 4e-6
KINDS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, eps=1e-3),
}
STEPS = (1, 3)
SETTINGS = [(kind, steps) for kind in KINDS for steps in STEPS]
USUAL = (("sgd", 1), ("adamw", 3))  # the others where there is time
TABLE = "## The table"
RIGHT, REFUSED, CONSTANT = "right", "refused", "right but for what is detached"


def seed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def ready(name: str, kind: str) -> tuple[Case, torch.optim.Optimizer]:
    """The case, always the same, after two steps on other data, so that the optimizer has a past.
    They are taken without what stands around."""
    seed()
    case = TRAPS[name]()
    case.model.double()
    params = [p for p in case.model.parameters() if p.requires_grad]
    optimizer = KINDS[kind](params)
    if any(nn.parameter.is_lazy(p) for p in params):
        return case, optimizer
    case.prepare(optimizer)
    for turn in (1, 2):
        with origin(case.model):
            optimizer.zero_grad()
            case.loss(call(case.model, data(case, turn)[0]), data(case, turn)[1]).mean().backward()
            densify(params)
            optimizer.step()
    return case, optimizer


def data(case: Case, turn: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(turn)
    if case.tokens:
        inputs = torch.randint(TOKENS, (N, 3), generator=draw)
    else:
        inputs = torch.randn(N, INPUTS, generator=draw, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (N,), generator=draw)


class origin:
    """Every pass starts alike: buffers, numbers and lists of modules, and random streams."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.buffers = {
            (m, k): b.clone() for m in self.model.modules() for k, b in m._buffers.items()
            if b is not None
        }  # fmt: skip
        self.plain = [
            (m, k, list(v) if isinstance(v, list) else v)
            for m in self.model.modules()
            for k, v in vars(m).items()
            if isinstance(v, int | float)
            or (isinstance(v, list) and all(type(e) is float for e in v))
        ]
        seed()

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for (module, key), value in self.buffers.items():
                module._buffers[key] = value
        for module, key, plain in self.plain:
            vars(module)[key] = plain


def densify(params: Iterable[Tensor]) -> None:
    """No optimizer here takes sparse gradients."""
    for p in params:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()


def goal_losses(
    case: Case, optimizer: torch.optim.Optimizer, steps: int, weights: Tensor
) -> list[float]:
    """The loss of both goals after real steps with these weights on the losses of the batch; model
    and optimizer are then put back."""
    model = case.model
    params = list(model.parameters())
    before, state = [p.detach().clone() for p in params], copy.deepcopy(optimizer.state_dict())
    frozen = [p for k, p in model.named_parameters() if not k.startswith(case.scope or "")]
    inputs, targets = data(case, 3)
    for _ in range(steps):
        with origin(model):
            optimizer.zero_grad()
            (weights * case.loss(call(model, inputs), targets)).sum().backward()
            densify(params)
            for p in frozen:
                p.grad = None
            optimizer.step()
    losses = []
    for turn in (4, 5):
        inputs, targets = data(case, turn)
        with origin(model), torch.no_grad():
            losses.append(float(case.loss(call(model, inputs), targets).mean()))
    with torch.no_grad():
        for p, value in zip(params, before):
            p.copy_(value)
    optimizer.load_state_dict(state)
    return losses


def differences(name: str, kind: str, steps: int) -> Tensor:
    """The influences on both goals, (2, n), by central differences."""
    case, optimizer = ready(name, kind)
    columns = []
    for i in range(N):
        ends = []
        for sign in (1, -1):
            weights = torch.full((N,), 1 / N, dtype=torch.float64)
            weights[i] += sign * STEP
            losses = goal_losses(case, optimizer, steps, weights)
            ends.append(torch.tensor(losses, dtype=torch.float64))
        columns.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.stack(columns, 1)


def stopped(name: str, kind: str, steps: int) -> Tensor:
    """The influences on both goals, (2, n), through the weights, by torch's gradients: what the
    model detaches is constant."""
    case, optimizer = ready(name, kind)
    for state in optimizer.state.values():
        state.update({k: v.double() for k, v in state.items() if k == "step"})
    torch.set_default_dtype(torch.float64)  # in which an optimizer counts its steps
    try:
        model, step = case.model, torch_step(optimizer, case.model)
        batch, *goals = (data(case, turn) for turn in (3, 4, 5))
        seed()
        return torch.stack(
            [influence_through_weights(model, case.loss, batch, g, step, steps) for g in goals]
        )
    finally:
        torch.set_default_dtype(torch.float32)


def outcome(name: str, kind: str, steps: int) -> tuple[str, str]:
    """Right or refused, with the path or the sentence; anything else is an AssertionError."""
    case, optimizer = ready(name, kind)
    if case.dtype != torch.float64:
        case.model.to(case.dtype)
        for state in optimizer.state.values():
            state.update({k: v.to(case.dtype) for k, v in state.items()
                          if isinstance(v, Tensor) and v.dim()})  # fmt: skip
    before = {k: v.clone() for k, v in case.model.state_dict().items()
              if not nn.parameter.is_lazy(v)}  # fmt: skip
    pairs = [data(case, turn, case.dtype) for turn in (3, 4, 5)]
    seed()
    try:
        with case.around():
            found = sp_influence(
                case.model, case.loss, *pairs, steps=steps, optimizer=optimizer, scope=case.scope
            )
    except UserError as error:
        sentence = str(error)
        assert sentence.endswith(".")
        assert "\n" not in sentence
        result = REFUSED, sentence
    else:
        wanted = (stopped if case.stopped else differences)(name, kind, steps)
        got = torch.stack([found.stability, found.plasticity]).double()
        assert wanted.abs().max() > 1e-5
        error = float((got - wanted).abs().max() / wanted.abs().max())
        assert error <= case.tolerance, f"{found.path}: off by {error:.1e}"
        result = (CONSTANT if case.stopped else RIGHT), found.path
    after = case.model.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items() if v.layout == torch.strided)
    return result


def outcomes_on_the_page() -> dict[str, list[str]]:
    """Return the outcomes on the page by the name of each model, for one step and for three."""
    cells = {}
    for line in PAGE.read_text().split(TABLE)[1].splitlines()[4:]:
        names, outcomes, _ = line.strip("| ").split(" | ")
        one, *three = outcomes.split(" / ")
        cells |= {name: [one, *(three or [one])] for name in names.split("; ")}
    return cells


def cases() -> Iterator[Any]:
    """Each model by two settings, and by the other two where there is time."""
    for name in TRAPS:
        for kind, steps in SETTINGS:
            marks = () if (kind, steps) in USUAL else pytest.mark.slow
            yield pytest.param(name, kind, steps, marks=marks, id=f"{name}-{kind}-{steps}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind", "steps"), list(cases()))
def test_right_or_refused_as_the_page_says(name, kind, steps):
    assert outcome(name, kind, steps)[0] == outcomes_on_the_page()[name][STEPS.index(steps)]


def test_the_page_knows_every_model():
    assert set(TRAPS) == set(outcomes_on_the_page())
    assert len(TRAPS) >= 60


def main() -> None:
    """Write the outcomes into the page, under its last heading, alike ones in one row."""
    warnings.simplefilter("ignore")
    rows: dict[str, list[str]] = {}
    for name in TRAPS:
        results = [outcome(name, kind, steps) for kind, steps in USUAL]
        notes = {status: re.split(r"[:,] | \(", note)[0] for status, note in results}
        row = " / ".join(notes) + " | " + "; ".join(notes.values())
        rows.setdefault(row, []).append(name)
    lines = ["| models | one step / three steps | path, or why |", "|---|---|---|"]
    lines += [f"| {'; '.join(names)} | {row} |" for row, names in rows.items()]
    head = PAGE.read_text().split(TABLE)[0]
    PAGE.write_text(f"{head}{TABLE}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
