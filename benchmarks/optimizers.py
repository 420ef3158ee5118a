"""What the pseudo step of other optimizers costs, as a multiple of SGD's: the whole influence of a
batch on two goals, with the optimizer's state warm."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.timing import Timing, Told, interleave, machine, part, silent
from metasp.backbones import build
from metasp.influence import sp_influence
from metasp.types import CROSS_ENTROPY as LOSS
from metasp.types import Streams

BATCH, GOAL, WIDTH, REPEATS = 64, 50, 20, 9
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-3),
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "NAdam": torch.optim.NAdam,
    "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
}


@dataclass(frozen=True)
class Rows:
    """Seconds by number of pseudo steps and optimizer."""

    machine: str
    seconds: dict[int, dict[str, Timing]]


def measure(told: Told = silent, repeats: int = REPEATS, width: int = WIDTH) -> Rows:
    """Interleaved, in processor time of one thread, which leaves out what others do meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        first = interleave(
            calls(1, width), repeats, clock=time.process_time, told=part(told, 0, 0.4)
        )
        third = interleave(
            calls(3, width), max(2, repeats // 4), clock=time.process_time, told=part(told, 0.4, 1)
        )
        return Rows(machine(), {1: first, 3: third})
    finally:
        torch.set_num_threads(before)


def calls(steps: int, width: int) -> dict[str, Callable[[], object]]:
    """An influence with each optimizer, all on the same model and data."""
    streams = Streams(0)
    model = build("resnet18", (3, 32, 32), 10, width, streams["model"])

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(count, 3, 32, 32, generator=streams["data"])
        return inputs, torch.randint(10, (count,), generator=streams["data"])

    data = (draw(BATCH), draw(GOAL), draw(GOAL))
    torch.autograd.backward(LOSS(model(data[0][0]), data[0][1]).mean())
    made: dict[str, Callable[[], object]] = {}
    for name, make in OPTIMIZERS.items():
        optimizer = make(model.parameters())
        optimizer.step()
        made[name] = partial(sp_influence, model, LOSS, *data, optimizer=optimizer, steps=steps)
    return made


def render(rows: Rows) -> list[str]:
    """The benchmark as lines of text."""
    lines = [rows.machine, f"resnet18 width {WIDTH}, |B| {BATCH}, |V| 2 x {GOAL}, processor time"]
    for steps, seconds in rows.seconds.items():
        lines += ["", f"{steps} pseudo step{'s' if steps > 1 else ''}"]
        for name, timing in seconds.items():
            ratio = timing.median / seconds["SGD"].median
            lines.append(
                f"  {name:<16}{timing.median * 1e3:9.1f} ms  +-{timing.spread:4.0%}"
                f"  {ratio:6.3f} x SGD"
            )
    return lines


def as_json(rows: Rows) -> dict[str, Any]:
    return asdict(rows)
