"""The runs of a sweep as jobs: complete specs, where they live, what is already done."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

from metasp import plugins
from metasp.config import fields_with
from metasp.data import Benchmark, assemble, load_benchmark
from metasp.errors import UserError
from metasp.events import StepTaken
from metasp.experiment import Experiment, Interrupted, complete_elsewhere, prepare
from metasp.influence.parallel import OthersGone, Ranks
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.checkpoints import numbers_in
from metasp.train import Trainer
from metasp.train.clock import Clock

State = Literal["waiting", "running", "done", "failed", "stopped"]

TELL_SECONDS = 0.5
OF_THE_STREAM = {*fields_with(RunSpec, role="data"), *fields_with(RunSpec, role="labels")}
SHARED = OF_THE_STREAM - {
    "class_order"
}  # runs that agree in these take their tasks from one source


@dataclass(frozen=True)
class Job:
    """One run of a sweep. `stored` says what the runs folder holds of it."""

    spec: RunSpec
    path: Path
    stored: Literal["finished", "unfinished", "new", "damaged"]

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True)
class Update:
    """What has become of a job: its state, the fraction done, the seconds left, a word on it."""

    name: str
    state: State
    fraction: float = 0.0
    left: float | None = None
    note: str = ""


class Runner(Protocol):
    """Whoever carries out jobs: this machine or a cluster."""

    def at_once(self, jobs: list[Job]) -> int: ...

    def run(self, jobs: list[Job], stop: Callable[[], bool]) -> Iterator[Update]: ...


def jobs_of(
    specs: list[RunSpec], runs: Path, data: Path | None, device: str | None = None
) -> list[Job]:
    """Complete the specs and look up each run. Each data set is loaded once, however many runs
    use it. `device` stands for "auto" where the runs will not happen on this machine."""
    loaded: dict[str, Benchmark] = {}
    jobs: dict[str, Job] = {}
    for spec in specs:
        stream = RunSpec(**{name: getattr(spec, name) for name in SHARED})
        if stream.digest not in loaded:
            loaded[stream.digest] = load_benchmark(stream, data)
        check_order(spec, loaded[stream.digest])
        benchmark = loaded[stream.digest]
        done = complete_elsewhere(spec, benchmark, device)
        jobs.setdefault(done.name, Job(done, runs / done.name, stored(RunDir(runs / done.name))))
    return list(jobs.values())


def check_order(spec: RunSpec, benchmark: Benchmark) -> None:
    """One data set serves all orders of its classes, so an order of one's own is tried here."""
    if spec.class_order not in ("fixed", "shuffled"):
        assemble(benchmark.source, spec)


def stored(run: RunDir) -> Literal["finished", "unfinished", "new", "damaged"]:
    try:
        if run.finished:
            return "finished"
    except UserError:
        return "damaged"
    return "unfinished" if (run.path / "spec.toml").exists() else "new"


def order_for(
    job: Job, data: Path | None, checkpoint_seconds: float, keep_checkpoints: str = "last"
) -> dict[str, Any]:
    """Return a job in plain values, for a process that may be on another machine."""
    return {
        "name": job.name,
        "spec": job.spec.as_dict(),
        "runs": str(job.path.parent.resolve()),
        "data": str(data.absolute()) if data else None,
        "checkpoint_seconds": checkpoint_seconds,
        "keep_checkpoints": keep_checkpoints,
        "imports": [*plugins.IMPORTED],
    }


def carry_out_order(
    order: Mapping[str, Any],
    stop: Callable[[], bool],
    tell: Callable[[Update], None],
    ranks: Ranks | None = None,
) -> Update:
    """Make an ordered run happen, alone or with other processes. Returns the last word on it."""
    name, runs = order["name"], Path(order["runs"])
    plugins.import_packages()
    plugins.import_files(order["imports"])
    stored = RunDir(runs / name) if (runs / name / "spec.toml").exists() else None
    try:
        experiment = prepare(
            RunSpec.from_dict(order["spec"]),
            runs,
            Path(order["data"]) if order["data"] else None,
            stored=stored,
            checkpoint_seconds=order["checkpoint_seconds"],
            keep_checkpoints=order["keep_checkpoints"],
            stop=stop,
            ranks=ranks,
        )
        if experiment.directory.path.name != name:
            raise UserError(
                f"this run is now called {experiment.directory.path.name}, because metasp has "
                "changed since it was asked for: start the same command again."
            )
        for update in carry_out(experiment):
            tell(update)
    except Interrupted:
        return Update(name, "stopped")
    except OthersGone:
        raise  # no mistake of the run's: whoever started the processes starts them again
    except UserError as error:
        return Update(name, "failed", note=str(error))
    return Update(name, "done", 1.0, 0.0)


def carry_out(experiment: Experiment) -> Iterator[Update]:
    """Make a run happen. Yields how far it is every now and then."""
    name, tasks, clock = experiment.directory.path.name, len(experiment.benchmark.tasks), Clock()
    if experiment.finished:
        return
    number = max(numbers_in(experiment.directory.path / "checkpoint"), default=0)
    origin = f"from checkpoint {number}" if number else "from the start"
    yield Update(name, "running", note=origin)
    told = monotonic()
    for event in experiment.events():
        if not isinstance(event, StepTaken) or experiment.trainer is None:
            continue
        clock.saw(event)
        if monotonic() - told < TELL_SECONDS:
            continue
        told = monotonic()
        remaining = experiment.trainer.remaining()
        yield Update(
            name,
            "running",
            fraction=1 - cost(remaining) / whole_cost(experiment.trainer),
            left=clock.left(remaining),
            note=f"task {event.task + 1}/{tasks} · {event.kind} · {origin}",
        )


def cost(remaining: Mapping[str, tuple[int, float]]) -> float:
    return sum(steps * each for steps, each in remaining.values())


def whole_cost(trainer: Trainer) -> float:
    """The nominal cost of all steps of a run, whichever process took them."""
    return sum(
        phase.steps * phase.cost
        for task in trainer.tasks
        for phase in trainer.method.phases(task, trainer.tasks[: task.index + 1])
    )
