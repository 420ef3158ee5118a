"""What the engine costs: our ER step against a bare loop with the same model, batch and draw."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.noise import noise_images, noise_trainer
from benchmarks.timing import Told, interleave, machine, part, silent
from metasp.backbones import build
from metasp.events import StepTaken
from metasp.train.from_spec import faster_channels_last
from metasp.trees import one_tensor
from metasp.types import Streams

MEMORY, BATCH, CLASSES = 200, 32, 10
CASES = {"resnet18": (20, 1.10), "convnet": (16, 1.25)}
STEPS = 4  # in one repeat


@dataclass(frozen=True)
class Row:
    """One backbone: milliseconds of our step and of the bare loop's, their ratio and its bound."""

    backbone: str
    width: int
    ours: float
    bare: float
    spread: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


def measure(repeats: int = 15, told: Told = silent) -> list[Row]:
    """Both loops in turn, repeat by repeat, past the first epoch in which the memory fills."""
    torch.set_num_threads(1)
    rows = []
    for case, (backbone, (width, bound)) in enumerate(CASES.items()):
        so_far = part(told, case / len(CASES), (case + 1) / len(CASES))
        ours, bare = our_loop(backbone, width), bare_loop(backbone, width)
        calls: dict[str, Callable[[], object]] = {
            "ours": lambda ours=ours: [next(ours) for _ in range(STEPS)],  # type: ignore[misc]
            "bare": lambda bare=bare: [next(bare) for _ in range(STEPS)],  # type: ignore[misc]
        }
        found = interleave(calls, repeats, warmup=6, clock=time.process_time, told=so_far)
        times = {name: 1e3 * timing.median / STEPS for name, timing in found.items()}
        spread = max(timing.spread for timing in found.values())
        rows.append(Row(backbone, width, times["ours"], times["bare"], spread, bound))
    return rows


def our_loop(backbone: str, width: int) -> Iterator[object]:
    """Steps of the engine, with everything it does around one."""
    benchmark = noise_images(32, tasks=1, augmented=False)
    trainer = noise_trainer(
        benchmark, method="er", memory=MEMORY, epochs=10**6, backbone=backbone, width=width
    )
    return (event for event in trainer.run() if isinstance(event, StepTaken))


def bare_loop(backbone: str, width: int) -> Iterator[object]:
    """The shortest honest loop: draw, join, forward, backward, step."""
    source = noise_images(32, tasks=1, augmented=False).source
    streams = Streams(0)
    model: nn.Module = build(backbone, (3, 32, 32), CLASSES, width, streams["model"])
    last = faster_channels_last(backbone, width)
    layout = torch.channels_last if last else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, labels = one_tensor(source.inputs, "the bare loop"), source.labels
    held, held_labels = inputs[:MEMORY].clone(), labels[:MEMORY].clone()
    while True:
        for rows in torch.split(torch.randperm(len(inputs), generator=streams["order"]), BATCH):
            old = torch.randperm(MEMORY, generator=streams["replay"])[:BATCH]
            x = torch.cat([inputs[rows], held[old]]).float().sub_(127.5).div_(63.75)
            x = x.contiguous(memory_format=layout)
            y = torch.cat([labels[rows], held_labels[old]])
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            yield loss.item()


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'backbone':<10}{'width':>6}{'ours ms':>10}{'bare ms':>10}{'ratio':>8}{'bound':>8}"]
    for row in rows:
        over = "  OVER" if row.ratio > row.bound else ""
        lines.append(
            f"{row.backbone:<10}{row.width:>6}{row.ours:>10.2f}{row.bare:>10.2f}{row.ratio:>8.3f}"
            f"{row.bound:>8.2f}{over}   (spread ±{100 * row.spread:.1f}%)"
        )
    lines.append(
        f"ER step, batch {BATCH} + {BATCH}, 32×32; medians of processor time, interleaved; "
        f"{machine()}."
    )
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"engine": [{**asdict(row), "ratio": row.ratio} for row in rows], "machine": machine()}
