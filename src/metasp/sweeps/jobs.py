"""The runs of a sweep as jobs: complete specs, where they live, what is done, and what is left.

Nothing here loads torch before a spec is completed or a run begins."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from metasp import plugins
from metasp.config import fields_with
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.store import RunDir

if TYPE_CHECKING:
    from metasp.data import Benchmark
    from metasp.experiment import Experiment
    from metasp.influence.parallel import Ranks

State = Literal["waiting", "running", "done", "failed", "stopped"]
Stored = Literal["finished", "unfinished", "new", "damaged"]
Active = TypeVar("Active")

UPDATE_SECONDS = 0.5
WARM_UP, MEASURED = 2, 6  # steps
STREAM = {*fields_with(RunSpec, role="data"), *fields_with(RunSpec, role="labels")}


@dataclass(frozen=True)
class Job:
    """One run of a sweep: what the runs folder holds of it, and its data if that was loaded."""

    spec: RunSpec
    path: Path
    stored: Stored
    source: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Return the name of the run's directory."""
        return self.path.name


@dataclass(frozen=True)
class Update:
    """News of a job: its state, the fraction done, the seconds left, and a note."""

    name: str
    state: State
    fraction: float = 0.0
    left: float | None = None
    note: str = ""


class Runner(Protocol[Active]):
    """Carry out jobs; `Active` is one that is under way."""

    def at_once(self, jobs: list[Job]) -> int:
        """Return how many of these jobs go at the same time, for the time left."""

    def has_room(self, active: list[Active], job: Job) -> bool:
        """Return whether one more job can begin."""

    def start(self, job: Job) -> Active:
        """Begin a job."""

    def ask_to_stop(self, active: Active) -> None:
        """Have a job store a checkpoint and end."""

    def listen(self, active: list[Active]) -> Iterator[Update]:
        """Yield the updates of a moment, and take jobs that ended off the list."""

    def close(self, active: list[Active]) -> None:
        """End what is still under way."""

    def run(self, jobs: list[Job], stop: Callable[[], bool]) -> Iterator[Update]:
        """Carry out the jobs and yield their updates. When `stop` says so, every job that is under
        way stores a checkpoint and ends."""
        waiting, active, stopping = list(jobs), list[Active](), False
        try:
            while waiting or active:
                if stop() and not stopping:
                    stopping = True
                    yield from (Update(job.name, "stopped") for job in waiting)
                    waiting.clear()
                    for one in active:
                        self.ask_to_stop(one)
                while waiting and self.has_room(active, waiting[0]):
                    active.append(self.start(waiting.pop(0)))
                yield from self.listen(active)
        finally:
            self.close(active)


@dataclass
class Board:
    """The latest update of every job, and the time that the rest will take; `seconds` are
    estimated."""

    jobs: list[Job]
    at_once: int = 1
    seconds: Mapping[str, float] = field(default_factory=dict)
    latest: dict[str, Update] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for job in self.jobs:
            state: State = "done" if job.stored == "finished" else "waiting"
            self.latest[job.name] = Update(job.name, state)

    def add(self, update: Update) -> None:
        """Note an update."""
        now = time.monotonic()
        if update.state == "running":
            self.began.setdefault(update.name, now)
        elif update.state == "done":
            self.took[update.name] = now - self.began.get(update.name, now)
        self.latest[update.name] = update

    def of(self, state: str) -> list[Update]:
        """Return the updates of the jobs in a state."""
        return [update for update in self.latest.values() if update.state == state]

    def left(self) -> float:
        """Return the seconds left; estimates are corrected by what the finished jobs took."""
        estimated = sum(self.seconds[name] for name in self.took)
        factor = sum(self.took.values()) / estimated if estimated else 1.0
        unfinished = self.of("running") + self.of("waiting")
        seconds = 0.0
        for update in unfinished:
            estimate = factor * self.seconds.get(update.name, 0.0)
            seconds += estimate if update.left is None else update.left
        return seconds / max(1, min(self.at_once, len(unfinished)))


def jobs_of(
    specs: list[RunSpec], runs: Path, data: Path | None, device: str | None = None
) -> list[Job]:
    """Complete the specs and look up each run. Each data set is loaded once, however many runs
    use it. `device` stands for "auto" where the runs will not happen on this machine."""
    from metasp.data import assemble, load_benchmark
    from metasp.experiment import complete_elsewhere

    loaded: dict[str, Benchmark] = {}
    jobs: dict[str, Job] = {}
    for spec in specs:
        stream = RunSpec(**{name: getattr(spec, name) for name in STREAM - {"class_order"}})
        if stream.digest not in loaded:
            loaded[stream.digest] = load_benchmark(stream, data)
        benchmark = loaded[stream.digest]
        if spec.class_order not in ("fixed", "shuffled"):  # does the order fit the data?
            assemble(benchmark.source, spec)
        done = complete_elsewhere(spec, benchmark, device)
        path = runs / done.name
        jobs.setdefault(done.name, Job(done, path, stored(RunDir(path)), benchmark.source))
    return list(jobs.values())


def stored(run: RunDir) -> Stored:
    """Return what is stored of a run."""
    try:
        if run.finished:
            return "finished"
    except UserError:
        return "damaged"
    return "unfinished" if (run.path / "spec.toml").exists() else "new"


def estimated_seconds(jobs: list[Job]) -> dict[str, float]:
    """Return about how long each unfinished job will take: as a stored run of its spec with another
    seed did, or from a few steps that are measured here."""
    by_key: dict[str, float] = {}
    seconds = {}
    for job in sorted(jobs, key=lambda job: job.stored != "finished"):
        key = job.spec.with_(seed=0).digest
        if job.stored == "finished":
            by_key[key] = (RunDir(job.path).outcome() or {})["seconds"]["total"]
            continue
        if key not in by_key:
            try:
                by_key[key] = measured_seconds(job)
            except UserError:  # a run that fails says so when its turn comes
                by_key[key] = 0.0
        seconds[job.name] = by_key[key]
    return seconds


def measured_seconds(job: Job) -> float:
    """Return how long a run will take, from its first steps; nothing is stored."""
    import torch

    from metasp.data import assemble
    from metasp.events import StepTaken
    from metasp.train import build_trainer
    from metasp.train.clock import Clock

    elsewhere = job.spec.device.startswith("cuda") and not torch.cuda.is_available()
    spec = job.spec.with_(device="cpu") if elsewhere else job.spec
    threads, clock, steps = torch.get_num_threads(), Clock(), 0
    trainer = build_trainer(spec, assemble(job.source, spec))
    torch.set_num_threads(job.spec.threads)
    try:
        for event in trainer.run():
            if isinstance(event, StepTaken):
                steps += 1
                if steps > WARM_UP:
                    clock.saw(event)
                if steps == WARM_UP + MEASURED:
                    break
    finally:
        torch.set_num_threads(threads)
    return clock.left(trainer.remaining())


def order_for(job: Job, data: Path | None, **options: Any) -> dict[str, Any]:
    """Return a job in plain values, for a process that may be on another machine; `options` are
    those of `metasp.experiment.prepare`."""
    return {
        "path": str(job.path.absolute()),
        "spec": job.spec.as_dict(),
        "data": str(data.absolute()) if data else None,
        "imports": [*plugins.IMPORTED],
        "options": options,
    }


def carry_out(
    order: Mapping[str, Any],
    stop: Callable[[], bool],
    send: Callable[[Update], None],
    ranks: "Ranks | None" = None,
) -> Update:
    """Make an ordered run happen, alone or with other processes. Returns its last update."""
    from metasp.experiment import Interrupted, prepare
    from metasp.influence.parallel import OthersGone

    path, data = Path(order["path"]), Path(order["data"]) if order["data"] else None
    plugins.import_packages()
    plugins.import_files(order["imports"])
    stored = RunDir(path) if (path / "spec.toml").exists() else None
    options = {"stored": stored, "stop": stop, "ranks": ranks, **order["options"]}
    try:
        experiment = prepare(RunSpec.from_dict(order["spec"]), path.parent, data, **options)
        if experiment.directory.path.name != path.name:
            raise UserError(
                f"this run is now called {experiment.directory.path.name}, because metasp has "
                "changed since it was asked for: start the same command again."
            )
        for update in updates_of(experiment):
            send(update)
    except Interrupted:
        return Update(path.name, "stopped")
    except OthersGone:
        raise  # no mistake of the run's: whoever started the processes starts them again
    except UserError as error:
        return Update(path.name, "failed", note=str(error))
    return Update(path.name, "done", 1.0, 0.0)


def updates_of(experiment: "Experiment") -> Iterator[Update]:
    """Make a run happen. Yields how far it is every now and then."""
    from metasp.events import StepTaken
    from metasp.store.checkpoints import numbers_in
    from metasp.train.clock import Clock

    name, tasks, clock = experiment.directory.path.name, len(experiment.benchmark.tasks), Clock()
    if experiment.finished:
        return
    number = max(numbers_in(experiment.directory.path / "checkpoint"), default=0)
    origin = f"from checkpoint {number}" if number else "from the start"
    yield Update(name, "running", note=origin)
    latest = time.monotonic()
    for event in experiment.events():
        if not isinstance(event, StepTaken) or experiment.trainer is None:
            continue
        clock.saw(event)
        now = time.monotonic()
        if now - latest < UPDATE_SECONDS:
            continue
        latest, left, spent = now, clock.left(experiment.trainer.remaining()), clock.spending(now)
        note = f"task {event.task + 1}/{tasks} · {event.kind} · {origin}"
        yield Update(name, "running", spent / (spent + left), left, note)
