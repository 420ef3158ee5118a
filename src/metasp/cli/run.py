"""metasp run and metasp resume: train on a stream of tasks and store the run."""

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from metasp.cli.options import (
    CORRECTIONS,
    Numbers,
    checkpoint_option,
    cluster_of,
    cluster_options,
    combined,
    correction_options,
    data_option,
    import_option,
    json_option,
    keep_option,
    runs_option,
    spec_from,
    spec_options,
    track_option,
)
from metasp.cli.show import balance_table, next_steps, score_table
from metasp.cli.terminal import typed_again
from metasp.console import duration, text_console
from metasp.errors import UserError

if TYPE_CHECKING:
    from metasp.callbacks import Make
    from metasp.experiment import Experiment
    from metasp.spec import RunSpec
    from metasp.store import RunDir
    from metasp.sweeps.on_ray import OnRay

RUN_EXAMPLES = """
\b
Examples:
  metasp run
  metasp run --method er --memory 100 --seeds 1,2,3
  metasp run --method der --set alpha=0.5
  metasp run --spec my.toml --epochs 20
  metasp run --json > result.json
  metasp run --track tensorboard
  metasp run --import my_method.py --method my-method
  metasp run --on ray --workers 2
  metasp run --spec RUN/spec.toml --verified verified.csv
"""
RESUME_EXAMPLES = """
\b
Examples:
  metasp resume runs/split-digits-er-m200-s1231-0123456789ab
"""

execution_options = combined(
    import_option, data_option, checkpoint_option, keep_option, track_option, cluster_options,
    json_option,
)  # fmt: skip


@click.command(epilog=RUN_EXAMPLES)
@click.option("--spec", "file", type=click.Path(path_type=Path),
              help="TOML file with settings; flags override it.")  # fmt: skip
@spec_options
@click.option("--seeds", type=Numbers(), help="Several seeds, such as 1231,1232,1233: a run for "
              "each, one after the other.")  # fmt: skip
@correction_options
@runs_option
@execution_options
@click.option("--force", is_flag=True, help="Run again even if the run is finished.")
def run(
    file: Path | None, seeds: tuple[int, ...] | None, runs: Path, force: bool, **values: Any
) -> int:
    """Train on a stream of tasks and store the run. A run that is already finished is shown,
    and a run that was stopped continues."""
    from metasp.methods import configured, method_named

    execution = Execution.of(values)
    corrections = {name: values.pop(name) for name in CORRECTIONS}
    files = {name: path for name, path in corrections.items() if path is not None}
    if seeds and values["seed"] is not None:
        raise UserError("--seed and --seeds say the same: give one of them.")
    spec = spec_from(file, values)
    configured(method_named(spec.method), spec.method, spec)  # refused before torch is loaded
    for seed in dict.fromkeys(seeds or (spec.seed,)):
        code = execution.run(spec.with_(seed=seed), runs, said=files, force=force)
        if code:
            return code
    execution.show_all()
    return 0


@click.command(epilog=RESUME_EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@execution_options
def resume(run: Path, **values: Any) -> int:
    """Continue a run from its last checkpoint, whatever its folder is called by now. It ends with
    the same bits as if it had never been stopped."""
    from metasp.plugins import changed_since
    from metasp.store import open_run

    execution = Execution.of(values)
    stored = open_run(run)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"  # of several processes only the first shows it
    if alone and stored.finished:
        execution.show_finished(stored)
        code = 0
    else:
        changed_since(stored.path)  # raises where code of the user's own is not imported
        code = execution.run(stored.spec(), stored.path.parent, stored=stored)
    execution.show_all()
    return code


@dataclass
class Execution:
    """Options of how a run happens and what of it is shown."""

    data: Path | None
    as_json: bool
    track: tuple[str, ...]
    options: dict[str, Any]  # of metasp.experiment.prepare
    cluster: "OnRay | None"
    quiet: bool = False
    finished: "list[RunDir]" = field(default_factory=list)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Execution":
        """Take the values of `execution_options` out of those of a command."""
        options = {name: values.pop(name) for name in ("checkpoint_seconds", "keep_checkpoints")}
        data = values.pop("data")
        cluster = cluster_of(data, values, **options)
        as_json = values.pop("as_json")
        return cls(data, as_json, values.pop("track"), options, cluster, quiet=as_json)

    @property
    def console(self) -> Console:
        """Return the console for people, who read the first of several processes."""
        return text_console(quiet=self.quiet, width=None if sys.stdout.isatty() else 120)

    def run(self, spec: "RunSpec", runs: Path, **options: Any) -> int:
        """Make a run happen, here or on a cluster (or find it done), and show what came out, also
        in trackers. Returns the exit code."""
        from metasp.experiment import Interrupted, prepare
        from metasp.methods import BEST
        from metasp.processes import joined
        from metasp.store import RunDir

        where = {"device": self.cluster.device} if self.cluster else {"ranks": joined()}
        experiment = prepare(spec, runs, self.data, **self.options, **options, **where)
        self.quiet = self.as_json or not experiment.writes
        stored = RunDir(experiment.directory.path)  # as it is read when others have left
        if spec.method == BEST and not self.quiet:
            done = experiment.spec
            print(f"{BEST} is method {done.method} with selection {done.selection}")
        if experiment.finished:
            if experiment.writes:
                self.show_finished(stored)
            return 0
        try:
            if self.cluster is None:
                self._run_here(experiment)
            else:
                self._run_there(experiment, self.cluster)
        except Interrupted:
            taken = {param.name or "" for param in resume.params}
            again = ["metasp", "resume", str(stored.path), *typed_again(*taken)]
            if experiment.writes:
                print(f"stopped; continue with: {shlex.join(again)}", file=sys.stderr)
            return 130
        if experiment.writes:
            self.show(stored)
        return 0

    def _run_here(self, experiment: "Experiment") -> None:
        """Train in this process, telling trackers on the way."""
        from metasp.callbacks import tracked
        from metasp.progress import follow

        experiment.stop = stop_on_signal()
        events = experiment.events()
        if self.track and experiment.writes:
            events = tracked(events, experiment.directory, self._trackers(experiment.directory))
        follow(events, experiment, self.console)

    def _run_there(self, experiment: "Experiment", cluster: "OnRay") -> None:
        """Train on a cluster; trackers are told when the run is done."""
        from metasp.callbacks import retold
        from metasp.experiment import Interrupted
        from metasp.progress import follow_elsewhere
        from metasp.sweeps.jobs import Job

        directory, trackers = experiment.directory, self._trackers(experiment.directory)
        with directory.open(experiment.spec, fresh=experiment.force):
            pass  # so that workers that are started again go on
        updates = cluster.run([Job(experiment.spec, directory.path, "new")], stop_on_signal())
        last = follow_elsewhere(updates, experiment, self.console)
        if last.state == "stopped":
            raise Interrupted
        if last.state == "failed":
            raise UserError(f"the run ended on the cluster: {last.note}")
        retold(directory, trackers)

    def _trackers(self, run: "RunDir") -> "Sequence[Make]":
        """Return what makes the trackers of a run."""
        from metasp.callbacks import callbacks_named

        return callbacks_named(self.track, run)

    def show_finished(self, stored: "RunDir") -> None:
        """Show a run that was finished before, also in trackers; torch is not needed."""
        from metasp.plugins import IMPORTED, changed_since
        from metasp.store.manifest import command_for

        if self.track:
            from metasp.callbacks import retold

            retold(stored, self._trackers(stored))
        again, console = command_for(stored.path, *typed_again("data")), self.console
        console.print(f"already finished: {stored.path} (once more: {again})", soft_wrap=True)
        for file in changed_since(stored.path) if IMPORTED else ():
            console.print(f"{file} has changed since this run was made", soft_wrap=True)
        self.show(stored)

    def show(self, stored: "RunDir") -> None:
        """Show what came out of a run that is finished."""
        self.finished.append(stored)
        if self.quiet:
            return
        result, console = stored.outcome() or {}, self.console
        console.print(score_table(result), balance_table(result))
        if result.get("diverged"):
            console.print("caution: the training diverged, and these scores say nothing of the "
                          "method: try a smaller --lr.")  # fmt: skip
        took = duration(result["seconds"]["total"])
        console.print(f"trained in {took}; stored in {stored.path}", soft_wrap=True)
        steps = next_steps(stored.path, stored.spec().method, typed_again("data"))
        console.print(steps, soft_wrap=True, highlight=False, markup=False)

    def show_all(self) -> None:
        """Show all runs as one JSON object, or the means of several."""
        if self.as_json:
            results = [{"run": str(run.path), **(run.outcome() or {})} for run in self.finished]
            if results:  # none in a process that does not write
                text = json.dumps(results[0] if len(results) == 1 else {"runs": results})
                print(json.dumps(json.loads(text, parse_float=short)))
        elif len(self.finished) > 1:
            from metasp.reports.groups import group
            from metasp.reports.notes import Comparison
            from metasp.reports.runs import gather
            from metasp.reports.scores import score_tables
            from metasp.reports.tables import terminal

            groups = group(gather(run.path for run in self.finished).records)
            tables = terminal(score_tables(groups, Comparison()))
            self.console.print(tables, soft_wrap=True, end="")


def short(number: str) -> float:
    """Return a number with six digits: accuracies are stored from single precision."""
    return float(f"{float(number):.6g}")


def stop_on_signal() -> Callable[[], bool]:
    """Return a question that answers yes after the first Ctrl-C or SIGTERM; the second kills."""
    asked = threading.Event()

    def handle(number: int, frame: object) -> None:
        asked.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return asked.is_set
