"""Run one spec and store it: skip what is finished, resume what is not."""

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from metasp import __version__, plugins
from metasp.corrections import read_corrections
from metasp.data import Benchmark, assemble, load_source
from metasp.data.from_dataset import resplit
from metasp.errors import UserError
from metasp.events import Evaluated, Event, RunFinished, StepTaken, TaskFinished
from metasp.influence.parallel import Ranks
from metasp.methods import usual
from metasp.metrics import SCENARIOS, matrix_of, scores
from metasp.processes import any_of, check_alike, check_same_run, heard
from metasp.spec import RunSpec
from metasp.stateful import below, under
from metasp.store import RunDir
from metasp.store.checkpoints import Checkpoint
from metasp.store.writer import RunWriter
from metasp.train import Trainer, build_trainer
from metasp.train.from_spec import MakeModel, complete, with_model
from metasp.train.randomness import OwnRandomness

BESIDE = ("log", "ranks")  # in a checkpoint, beside the position of the engine
RANDOM = "random"  # begins the names of what a checkpoint holds of global random streams


KeepCheckpoints = Literal["last", "task"]
"""Which checkpoints stay: the newest alone, or that of each task's end too."""


class Interrupted(Exception):
    """The run was asked to stop; a checkpoint is stored."""


@dataclass
class Experiment:
    """A complete spec, its data and its directory. Iterate `events()` to make it happen."""

    spec: RunSpec
    benchmark: Benchmark
    directory: RunDir
    checkpoint_seconds: float = 60.0
    keep_checkpoints: KeepCheckpoints = "last"
    force: bool = False
    stop: Callable[[], bool] = lambda: False
    warnings: list[str] = field(default_factory=list)
    trainer: Trainer | None = None
    ranks: Ranks | None = None  # the processes that share the run; None: this one has it alone
    model: MakeModel | None = None  # makes a model of one's own
    _random: OwnRandomness | None = None  # what that draws from torch, Python and NumPy

    @property
    def finished(self) -> bool:
        stored = heard(self.ranks, lambda: b"finished" if self.directory.finished else b"")
        return not self.force and bool(stored)

    @property
    def writes(self) -> bool:
        """Whether this process is the one that stores the run and tells of it."""
        return self.ranks is None or self.ranks.rank == 0

    def events(self) -> Iterator[Event]:
        """Train to the end from wherever the run stands, storing as it goes."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.spec.threads)
        try:
            yield from self._events()
        finally:
            torch.set_num_threads(before)

    def _events(self) -> Iterator[Event]:
        self.trainer = trainer = build_trainer(self.spec, self.benchmark, self.ranks, self.model)
        if self.model is not None:
            self._random = OwnRandomness(trainer.learner.streams, trainer.learner.device)
        with contextlib.ExitStack() as stack:
            changed = [] if self.force else plugins.changed_since(self.directory.path)
            writer = self._open(stack, trainer)
            trainer.learner.notes += [f"{f} has changed since this run began." for f in changed]
            saved = time.monotonic()
            run = trainer.run()
            for event in run if self._random is None else self._random.around(run):
                if writer is not None:
                    writer.append(event)
                yield event
                if isinstance(event, RunFinished):
                    break
                if not isinstance(event, StepTaken | TaskFinished):
                    continue
                due = self.writes and time.monotonic() - saved >= self.checkpoint_seconds
                stopping, due = any_of(self.ranks, self.stop(), due)
                ended = isinstance(event, TaskFinished)
                if stopping or due or ended:
                    self._checkpoint(writer, trainer, ended and self.keep_checkpoints == "task")
                    saved = time.monotonic()
                if stopping:
                    raise Interrupted
            if writer is not None:
                writer.flush()
                writer.finish(self._result())

    def _open(self, stack: contextlib.ExitStack, trainer: Trainer) -> RunWriter | None:
        """Open the run where it stands, and bring the trainer there. Returns what writes it, in the
        process that does."""
        writer: RunWriter | None = None

        def content() -> bytes | None:
            nonlocal writer
            writer = stack.enter_context(self.directory.open(self.spec, fresh=self.force))
            writer.keep("noise.parquet", self.benchmark.flipped)
            writer.keep("trusted.parquet", self.benchmark.trusted)
            if plugins.IMPORTED:
                writer.keep_file(plugins.STORED, json.dumps(plugins.IMPORTED, indent=1).encode())
            stored, warnings = writer.resume()
            self.warnings += warnings
            return stored

        stored = heard(self.ranks, content)
        if stored:
            self._restore(trainer, Checkpoint.parse(stored))
        else:
            trainer.learner.notes += self.benchmark.source.notes
        return writer

    def _restore(self, trainer: Trainer, stored: Checkpoint) -> None:
        self._compare_ranks(trainer, stored.numbers.get("ranks", 1))
        tensors = {name: torch.from_numpy(array) for name, array in stored.arrays.items()}
        trainer.restore(tensors, {k: v for k, v in stored.numbers.items() if k not in BESIDE})
        if self._random is not None:
            self._random.restore(below(RANDOM, tensors))

    def _compare_ranks(self, trainer: Trainer, before: int) -> None:
        """Note that the run goes on with another number of processes."""
        now = 1 if self.ranks is None else self.ranks.size
        if now != before:
            trainer.learner.notes.append(
                f"goes on with {now} process{'es' if now > 1 else ''} ({before} before): the same "
                "numbers up to rounding, no longer the same bits."
            )

    def _checkpoint(self, writer: RunWriter | None, trainer: Trainer, keep: bool) -> None:
        tensors, numbers = trainer.state()
        if self._random is not None:
            tensors |= under(RANDOM, self._random.state())
        if self.ranks is not None:
            numbers["ranks"] = self.ranks.size
            check_alike(self.ranks, tensors)
        if writer is not None:
            arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
            writer.checkpoint(arrays, numbers, keep)

    def _result(self) -> dict[str, Any]:
        result = summarise(self.directory.events())
        names = list(self.benchmark.source.class_names)
        told = {"spec": self.spec.as_dict(), "defaults": usual(self.spec), "class_names": names}
        ranks = {} if self.ranks is None else {"ranks": self.ranks.size}
        if self.trainer is not None and self.trainer.position.diverged:
            result["diverged"] = True
        corrupt = len(self.trainer.skipping.rows) if self.trainer else 0
        if corrupt:
            result["corrupt"] = corrupt  # pictures that were left out
        own = {"plugins": dict(plugins.IMPORTED)} if plugins.IMPORTED else {}
        return {**told, **result, "environment": {**environment(), **ranks, **own}}


def prepare(
    spec: RunSpec,
    runs: Path,
    data: Path | None = None,
    benchmark: Benchmark | None = None,
    said: Mapping[str, Path] | None = None,
    stored: RunDir | None = None,
    model: MakeModel | None = None,
    device: str | None = None,
    **options: Any,
) -> Experiment:
    """Load the data (or take a stream made by `metasp.split`), complete the spec and name the
    directory; nothing is written yet. `said` are files of corrections, by their kind: what they
    hold is added to the spec, which needs them no more. `stored` holds the run already, under
    whatever name; `model` makes a model of one's own; `device` stands for "auto" where the run will
    not happen on this machine."""
    spec = with_model(spec, model)
    if model is not None and options.get("ranks") is not None:
        raise UserError("a model of your own is trained by one process: start the run in one.")
    source = load_source(spec, data) if benchmark is None else benchmark.source
    if said:
        newer = read_corrections(said, source.class_names, len(source.labels))
        spec = spec.with_(**vars(spec.corrections.updated(newer)))
    if benchmark is None:
        benchmark = assemble(source, spec)
    else:
        spec, benchmark = resplit(benchmark, spec)
    done = complete_elsewhere(spec, benchmark, device)
    if stored is not None and stored.spec() != done:
        raise UserError(
            f"{stored.path} was started by a version of metasp that fills in its spec in another "
            "way: continue it with that version."
        )
    ranks = options.get("ranks")
    if ranks is not None:
        check_same_run(ranks, done.name)
    directory = stored or RunDir(runs / done.name)
    return Experiment(done, benchmark, directory, model=model, **options)


def complete_elsewhere(spec: RunSpec, benchmark: Benchmark, device: str | None) -> RunSpec:
    """The complete spec, for this machine or for another one's device."""
    if device is None:
        return complete(spec, benchmark)
    chosen = device if spec.device == "auto" else spec.device
    return complete(spec.with_(device="cpu"), benchmark).with_(device=chosen)


def summarise(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run from its log: both scenarios' scores, and the time it took."""
    tests = [e for e in events if e["event"] == Evaluated.__name__]
    before = {e["task"]: e for e in tests if e["before"]}
    result: dict[str, Any] = {}
    for scenario in SCENARIOS:
        matrix = matrix_of(tests, scenario, len(before))
        start = [before[task][scenario][0] for task in range(len(before))]
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
        "cpu": cpu_model(),
    }


def cpu_model() -> str:
    """Return the name of the processor's model, with its family and number where Linux gives them:
    processors of other models may sum in another order."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    values = {}
    for line in first.splitlines():
        name, _, value = line.partition(":")
        values[name.strip()] = value.strip()
    if "model name" not in values:
        return platform.processor()
    return f"{values['model name']}, family {values.get('cpu family')}, model {values.get('model')}"
