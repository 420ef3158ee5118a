"""What an influence step costs, as a multiple of a plain rehearsal (ER) step."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.timing import Timing, Told, interleave, machine, part, peak_bytes, silent
from metasp.backbones import build
from metasp.influence import record, sp_influence
from metasp.types import CROSS_ENTROPY as LOSS
from metasp.types import Streams
from metasp.types import TensorPair as Pair

COST = {"er": 1, "released": 9, "ours": 4.5, "head": 1.7, "er uncoupled": 1, "uncoupled": 4}
"""The kinds of step, and roughly how many ER steps one of them costs."""


@dataclass(frozen=True)
class Setting:
    """One situation: resnet18 of ``width`` on 32x32 images."""

    width: int = 20
    batch: int = 64
    goal: int = 50
    steps: int = 1
    channels_last: bool = False
    lr: float = 0.01


@dataclass(frozen=True)
class Line:
    """One setting measured: seconds by name; "er" is the unit of the ratios."""

    setting: Setting
    seconds: dict[str, Timing]
    paths: dict[str, str]

    def ratio(self, name: str) -> float:
        """How many ER steps one such step costs."""
        return self.seconds[name].median / self.seconds["er"].median


@dataclass(frozen=True)
class InfluenceBench:
    """The whole benchmark."""

    machine: str
    main: tuple[Line, ...]
    growth: tuple[Line, ...]
    memory: dict[str, int]


class Workbench:
    """A model, an optimizer and data for one setting, with one method per kind of step."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        layout = torch.channels_last if setting.channels_last else torch.contiguous_format
        streams = Streams(0)
        shape = (3, 32, 32)
        self.model: nn.Module = build("resnet18", shape, 10, setting.width, streams["model"])
        sizes = (setting.batch, setting.goal, setting.goal)
        data = [self._draw(n, streams["data"]) for n in sizes]
        self.model.to(memory_format=layout)  # type: ignore[call-overload]
        self.batch, self.old, self.new = ((x.contiguous(memory_format=layout), y) for x, y in data)
        # Steps of size zero cost the same, and on this noise real ones would run away.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.paths: dict[str, str] = {}

    @staticmethod
    def _draw(n: int, generator: torch.Generator) -> Pair:
        inputs = torch.randn(n, 3, 32, 32, generator=generator)
        return inputs, torch.randint(10, (n,), generator=generator)

    def er(self) -> None:
        """(a) A plain step on the whole batch."""
        self.optimizer.zero_grad()
        torch.autograd.backward(LOSS(self.model(self.batch[0]), self.batch[1]).mean())
        self.optimizer.step()

    def released(self) -> None:
        """(b) Two inner loops with double backward through the update, then the weighted step."""
        influences = [self._through_the_update(goal) for goal in (self.old, self.new)]
        fused = (influences[0] + influences[1]) / 2
        self.optimizer.zero_grad()
        losses = LOSS(self.model(self.batch[0]), self.batch[1])
        torch.autograd.backward(((1.0 / len(losses) - fused) * losses).sum())
        self.optimizer.step()

    def _through_the_update(self, goal: Pair) -> Tensor:
        x, y = self.batch
        theta = dict(self.model.named_parameters())
        weights = torch.full((len(x),), 1.0 / len(x), requires_grad=True)
        buffers = {k: b.clone() for k, b in self.model.named_buffers()}
        losses = LOSS(functional_call(self.model, {**theta, **buffers}, (x,)), y)
        grads = torch.autograd.grad(
            (weights * losses).sum(), list(theta.values()), create_graph=True
        )
        moved = {k: p - self.setting.lr * g for (k, p), g in zip(theta.items(), grads)}
        goal_losses = LOSS(functional_call(self.model, {**moved, **buffers}, (goal[0],)), goal[1])
        return torch.autograd.grad(goal_losses.mean(), weights)[0]

    def ours(self, scope: str | None = None) -> None:
        """(c) Influence, fusion and weighted step on one shared forward pass."""
        self.optimizer.zero_grad()
        recorded = record(self.model, LOSS, self.batch)
        found = sp_influence(
            self.model,
            LOSS,
            self.batch,
            self.old,
            self.new,
            lr=self.setting.lr,
            steps=self.setting.steps,
            scope=scope,
            recorded=recorded,
        )
        weights = 1.0 / len(found.fused) - found.fused
        torch.autograd.backward((weights * recorded.losses).sum())
        self.optimizer.step()
        self.paths["head" if scope else "uncoupled" if not self.model.training else "ours"] = (
            found.path
        )

    def apart(self, step: Callable[[], None]) -> None:
        """A step with BatchNorm in eval mode: no coupling between the examples."""
        self.model.eval()
        step()
        self.model.train()


def measure_line(
    setting: Setting,
    names: tuple[str, ...],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    told: Told = silent,
) -> Line:
    """Interleaved timings of some kinds of step in one setting."""
    bench = Workbench(setting)
    kinds: dict[str, Callable[[], None]] = {
        "er": bench.er,
        "released": bench.released,
        "ours": bench.ours,
        "head": lambda: bench.ours("head"),
        "er uncoupled": lambda: bench.apart(bench.er),
        "uncoupled": lambda: bench.apart(bench.ours),
    }
    seconds = interleave({name: kinds[name] for name in names}, repeats, clock=clock, told=told)
    return Line(setting, seconds, dict(bench.paths))


def measure(
    repeats: int = 9,
    growth: bool = True,
    threads: int = 1,
    setting: Setting | None = None,
    clock: Callable[[], float] = time.process_time,
    told: Told = silent,
) -> InfluenceBench:
    """Measure everything; about eight minutes with growth, four without.

    Processor time leaves out the share of others; for several threads give another clock.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    base = setting or Setting()
    try:
        jobs = [(replace(base, channels_last=last), tuple(COST), repeats) for last in (False, True)]
        if growth:
            jobs += [(other, ("er", "ours"), max(2, repeats // 3)) for other in grown(base)]
        ends = list(itertools.accumulate(expected(*job) for job in jobs))
        lines = [
            measure_line(*job, clock, part(told, low / ends[-1], high / ends[-1]))
            for job, low, high in zip(jobs, [0.0, *ends], ends)
        ]
        return InfluenceBench(machine(), tuple(lines[:2]), tuple(lines[2:]), measure_memory(base))
    finally:
        torch.set_num_threads(before)


def grown(base: Setting) -> list[Setting]:
    """The setting with one thing changed at a time."""
    return [
        *(replace(base, goal=v) for v in (base.goal // 5, base.goal // 2, base.goal * 2)),
        *(replace(base, batch=n) for n in (base.batch // 2, base.batch * 2)),
        *(replace(base, steps=k) for k in (2, 3, 5)),
        *(replace(base, width=w) for w in (base.width // 2, base.width * 2)),
    ]


def expected(setting: Setting, names: tuple[str, ...], repeats: int) -> float:
    """Roughly how long such a measurement takes beside others: only the bar's ETA hangs on it."""
    more_steps = 1.5 * setting.steps if setting.steps > 1 else 1.0
    multiples = sum(COST[name] * (1.0 if name == "er" else more_steps) for name in names)
    size = math.pow(setting.width, 1.5) * (setting.batch + setting.goal / 2)
    return (repeats + 1) * multiples * size


def measure_memory(setting: Setting) -> dict[str, int]:
    """Bytes: the parameters, and the peak of one step of each kind beyond model and data."""
    bench = Workbench(setting)
    kinds = {"er": bench.er, "released": bench.released, "ours": bench.ours}
    peaks = {}
    for name, step in kinds.items():
        step()
        bench.optimizer.zero_grad()
        peaks[name] = peak_bytes(step)
    size = sum(p.numel() * p.element_size() for p in bench.model.parameters())
    return {"parameters": size, **peaks}


TITLES = {
    "er": "(a) plain ER step",
    "released": "(b) released way, two double backward loops",
    "ours": "(c) ours: influence, fusion, weighted step",
    "head": '(c) with scope="head"',
    "er uncoupled": "(a) with BatchNorm in eval mode",
    "uncoupled": "(c) with BatchNorm in eval mode",
}


def render(bench: InfluenceBench) -> list[str]:
    """The benchmark as lines of text."""
    lines = [bench.machine]
    for line in bench.main:
        s = line.setting
        layout = "channels-last" if s.channels_last else "default memory format"
        lines += ["", f"resnet18 width {s.width}, |B| {s.batch}, |V| 2 x {s.goal}, {layout}"]
        for name, timing in line.seconds.items():
            path = f"  [{line.paths[name]}]" if name in line.paths else ""
            lines.append(
                f"  {TITLES[name]:<46}{timing.median * 1e3:9.1f} ms  +-{timing.spread:4.0%}"
                f"  {line.ratio(name):6.2f} x (a){path}"
            )
        b_over_c = line.seconds["released"].median / line.seconds["ours"].median
        apart = line.seconds["uncoupled"].median / line.seconds["er uncoupled"].median
        lines.append(f"  (b) / (c) = {b_over_c:.2f}; in eval mode (c) / (a) = {apart:.2f}")
    if bench.growth:
        lines += ["", "growth of (c), default memory format"]
    for line in bench.growth:
        s = line.setting
        ms = line.seconds["ours"].median * 1e3
        lines.append(
            f"  width {s.width:>3}  |B| {s.batch:>3}  |V| 2 x {s.goal:>3}  K {s.steps}"
            f"{ms:11.1f} ms  {line.ratio('ours'):6.2f} x (a)"
        )
    mega = {name: size / 2**20 for name, size in bench.memory.items()}
    lines += ["", "peak memory of one step beyond model and data"]
    lines.append(f"  parameters {mega['parameters']:.1f} MiB (n copies would take "
                 f"{mega['parameters'] * bench.main[0].setting.batch:.0f} MiB)")  # fmt: skip
    for name in ("er", "released", "ours"):
        ratio = mega[name] / mega["er"]
        lines.append(f"  {TITLES[name]:<46}{mega[name]:9.1f} MiB {ratio:6.2f} x (a)")
    return lines


def as_json(bench: InfluenceBench) -> dict[str, Any]:
    return {"influence": asdict(bench)}
