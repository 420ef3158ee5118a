"""What a step costs in bfloat16 and compiled, with influence and without."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.step import BATCH, steps
from benchmarks.timing import Told, interleave, machine, part, silent

WAYS: dict[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": True},
    "bf16, compiled": {"precision": "bf16", "compile": True},
}
METHODS = ("er", "metasp")


@dataclass(frozen=True)
class Row:
    """A step of a method in one way: median seconds, over the same method's in fp32, and over that
    of er in the same way."""

    method: str
    way: str
    seconds: float
    over_fp32: float
    over_er: float


def measure(
    rounds: int = 7, backbone: str = "resnet18", width: int = 20, told: Told = silent
) -> list[Row]:
    """All steps in turn, round after round, in processor time of one thread."""
    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {}
    for method in METHODS:
        for way, changes in WAYS.items():
            (calls[f"{method}, {way}"],) = steps(method, backbone, width, **changes).values()
            told(0.3 * len(calls) / (len(METHODS) * len(WAYS)))
    found = interleave(calls, rounds, clock=time.process_time, told=part(told, 0.3, 1.0))
    seconds = {name: timing.median for name, timing in found.items()}
    return [
        Row(method, way, (taken := seconds[f"{method}, {way}"]), taken / seconds[f"{method}, fp32"],
            taken / seconds[f"er, {way}"])
        for method in METHODS for way in WAYS
    ]  # fmt: skip


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'method':<8}{'way':<16}{'seconds':>9}{'over fp32':>11}{'over er':>9}"]
    for row in rows:
        ratios = f"{row.over_fp32:>11.2f}{row.over_er:>9.2f}"
        lines.append(f"{row.method:<8}{row.way:<16}{row.seconds:>9.3f}{ratios}")
    lines.append(
        f"One step at the third task, resnet18 of width 20, batch {BATCH} + {BATCH}, 32×32 images, "
        "interleaved; processor time."
    )
    return [*lines, machine()]


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"precision": [asdict(row) for row in rows]}
