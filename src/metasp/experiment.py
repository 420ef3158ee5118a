"""Run one spec and store it: skip what is finished, resume what is not."""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metasp import __version__
from metasp.benchmarks import Benchmark, assemble, load_source
from metasp.benchmarks.python import dealt_again
from metasp.corrections import read_corrections
from metasp.engine import Trainer, build_trainer
from metasp.engine.from_spec import complete
from metasp.errors import UserError
from metasp.events import Evaluated, Event, RunFinished, StepTaken, TaskFinished
from metasp.methods import usual_here
from metasp.metrics import SCENARIOS, scores
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.forget import marked


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint is stored."""


@dataclass
class Experiment:
    """A complete spec, its data and its directory. Iterate `events()` to make it happen."""

    spec: RunSpec
    benchmark: Benchmark
    directory: RunDir
    checkpoint_seconds: float = 60.0
    force: bool = False
    stop: Callable[[], bool] = lambda: False
    warnings: list[str] = field(default_factory=list)
    trainer: Trainer | None = None
    _gone: list[int] = field(default_factory=list)  # ids that training does without

    @property
    def finished(self) -> bool:
        return not self.force and self.directory.finished

    def events(self) -> Iterator[Event]:
        """Train to the end from wherever the run stands, storing as it goes."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.spec.threads)
        try:
            yield from self._events()
        finally:
            torch.set_num_threads(before)

    def _events(self) -> Iterator[Event]:
        self.trainer = trainer = build_trainer(self.spec, self.benchmark)
        with self.directory.open(self.spec, fresh=self.force):
            self.directory.keep_noise(self.benchmark.flipped)
            self.directory.keep_trusted(self.benchmark.trusted)
            self._resume(trainer)
            self._go_without(trainer)
            saved = time.monotonic()
            for event in trainer.run():
                self.directory.append(event)
                yield event
                if isinstance(event, RunFinished):
                    break
                if not isinstance(event, StepTaken | TaskFinished):
                    continue
                stopping = self.stop()
                due = time.monotonic() - saved >= self.checkpoint_seconds
                if stopping or due or isinstance(event, TaskFinished):
                    self._checkpoint(trainer)
                    saved = time.monotonic()
                if stopping:
                    raise Interrupted
            self.directory.finish(self._result())

    def _resume(self, trainer: Trainer) -> None:
        found, warnings = self.directory.latest()
        self.warnings += warnings
        if found is not None:
            numbers = {k: v for k, v in found.numbers.items() if k not in ("log", "forgotten")}
            # The order of an epoch counts the examples that were there when it was stored.
            self._gone = found.numbers.get("forgotten", [])
            trainer.tasks = [task.without(torch.tensor(self._gone)) for task in trainer.tasks]
            trainer.restore({k: torch.from_numpy(v) for k, v in found.arrays.items()}, numbers)

    def _go_without(self, trainer: Trainer) -> None:
        """Leave out what was forgotten since."""
        now = self.directory.forgotten()
        trainer.forget(torch.tensor(sorted({*now} - {*self._gone}), dtype=torch.long))
        self._gone = now
        for task in trainer.tasks:
            if not len(task.train):
                raise UserError(
                    f"all examples of task {task.index + 1} were forgotten, so there is nothing to "
                    "train it on: start a run without it."
                )

    def _checkpoint(self, trainer: Trainer) -> None:
        tensors, numbers = trainer.state()
        if self._gone:
            numbers["forgotten"] = self._gone
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        self.directory.checkpoint(arrays, numbers)

    def _result(self) -> dict[str, Any]:
        result = summarise(self.directory.events())
        names = list(self.benchmark.source.class_names)
        usual = usual_here(self.spec.method, self.spec.epochs, self.spec.memory)
        told = {"spec": self.spec.as_dict(), "defaults": usual, "class_names": names}
        whole = {**told, **result, "environment": environment()}
        return marked(whole, len(self._gone), undisturbed=False) if self._gone else whole


def prepare(
    spec: RunSpec,
    runs: Path,
    data: Path | None = None,
    benchmark: Benchmark | None = None,
    said: Mapping[str, Path] | None = None,
    **options: Any,
) -> Experiment:
    """Load the data (or take a stream made by `metasp.split`), complete the spec and name the
    directory; nothing is written yet. `said` are files of corrections, by their kind: what they
    hold is added to the spec, which needs them no more."""
    source = load_source(spec, data) if benchmark is None else benchmark.source
    if said:
        newer = read_corrections(said, source.class_names, len(source.labels))
        spec = spec.with_(**vars(spec.corrections.updated(newer)))
    if benchmark is None:
        benchmark = assemble(source, spec)
    else:
        spec, benchmark = dealt_again(benchmark, spec)
    done = as_stored(runs, *(complete(spec, benchmark, rules) for rules in (True, False)))
    return Experiment(done, benchmark, RunDir(runs / done.name), **options)


def as_stored(runs: Path, spec: RunSpec, before: RunSpec) -> RunSpec:
    """A complete spec; or, where the runs hold it in the form of before, that one, so that an older
    run is found finished or continued, under its own name."""
    there = (runs / before.name / "spec.toml").exists() and not (runs / spec.name).exists()
    return before if there else spec


def summarise(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run from its log: both scenarios' scores, and the time it took."""
    tests = [e for e in events if e["event"] == Evaluated.__name__]
    after = [e for e in tests if not e["before"]]
    before = {e["task"]: e for e in tests if e["before"]}
    width = len(after)
    result: dict[str, Any] = {}
    for scenario in SCENARIOS:
        matrix = [[*e[scenario], *[None] * (width - len(e[scenario]))] for e in after]
        start = [before[e["task"]][scenario][0] for e in after]
        result[scenario] = {"matrix": matrix, "before": start, **scores(matrix, start)}
    steps = [e for e in events if e["event"] == StepTaken.__name__]
    kinds = sorted({e["kind"] for e in steps})
    per_step = {k: float(np.median([e["seconds"] for e in steps if e["kind"] == k])) for k in kinds}
    counts = {k: sum(e["kind"] == k for e in steps) for k in kinds}
    total = next(e["seconds"] for e in events if e["event"] == RunFinished.__name__)
    result["seconds"] = {"total": total, "per_step": per_step, "steps": counts}
    return result


@cache
def code_digest() -> str:
    """What tells two states of the package's code apart between two versions."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def environment() -> dict[str, Any]:
    """What the bits may depend on besides the spec."""
    return {
        "metasp": __version__,
        "code": code_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
