"""What a frozen encoder saves: a task of ten epochs by its features, computed once, against the
same task with the encoder inside the model, its gradients off."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.timing import Timing, Told, interleave, machine, silent
from metasp.backbones import build
from metasp.learner import ContinualLearner
from metasp.types import Streams

EXAMPLES, EPOCHS, WIDTH, CLASSES, MEMORY = 500, 10, 20, 10, 200
THROUGH = "through the encoder"


@dataclass(frozen=True)
class Rows:
    """Seconds of a second task, by how it is learned."""

    machine: str
    width: int
    examples: int
    seconds: dict[str, Timing]


class Features(nn.Module):
    """A backbone up to what its head sees."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)

    def forward(self, pictures: Tensor) -> Tensor:
        features: Tensor = self.backbone.features(pictures)
        return features


class Through(nn.Module):
    """The encoder inside the model: frozen, in evaluation mode, without a graph."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.encoder.eval()(pictures)
        logits: Tensor = self.head(features)
        return logits


def measure(told: Told = silent, width: int = WIDTH, examples: int = EXAMPLES) -> Rows:
    """One interleaved turn, in processor time of one thread, with an empty cache: every feature is
    computed in the time that is measured."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = {
            THROUGH: second_task(width, examples, None),
            "cached, memory of inputs": second_task(width, examples, "inputs"),
            "cached, memory of features": second_task(width, examples, "features"),
        }
        found = interleave(calls, 1, warmup=0, clock=time.process_time, told=told)
        return Rows(machine(), width, examples, found)
    finally:
        torch.set_num_threads(before)


def second_task(
    width: int, examples: int, keep: Literal["inputs", "features"] | None
) -> Callable[[], object]:
    """Learn a task with experience replay, after a small one that has filled the memory."""
    streams = Streams(0)
    encoder = Features(build("resnet18", (3, 32, 32), CLASSES, width, streams["model"]))
    with torch.no_grad():
        size = encoder.eval()(torch.zeros(2, 3, 32, 32)).shape[1]
    head = nn.Linear(size, CLASSES)
    settings: dict[str, Any] = {"method": "er", "memory": MEMORY, "epochs": 1}
    if keep is None:
        learner = ContinualLearner(Through(encoder, head), **settings)
    else:
        learner = ContinualLearner(head, encoder=encoder, keep=keep, **settings)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        shape = (count, 3, 32, 32)
        pictures = torch.randint(0, 256, shape, dtype=torch.uint8, generator=streams["data"])
        return pictures, torch.randint(CLASSES, (count,), generator=streams["data"])

    learner.learn(draw(MEMORY), progress=False)
    context = learner._trainer.learner
    context.plan = replace(context.plan, epochs=EPOCHS, rehearse_last=EPOCHS)
    task = draw(examples)
    return lambda: learner.learn(task, progress=False)


def render(rows: Rows) -> list[str]:
    """The benchmark as lines of text."""
    slow = rows.seconds[THROUGH].median
    return [
        rows.machine,
        f"resnet18 width {rows.width}, {rows.examples} examples, {EPOCHS} epochs, ER with a memory "
        f"of {MEMORY}, processor time",
        *(
            f"  {name:<28}{timing.median:9.2f} s  {slow / timing.median:6.1f} x faster"
            for name, timing in rows.seconds.items()
        ),
    ]


def as_json(rows: Rows) -> dict[str, Any]:
    return asdict(rows)
