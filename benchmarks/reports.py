"""What a report costs, by the number of runs: it should take twice as long for twice as many."""

import io
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.timing import Told, machine, silent
from metasp.console import text_console
from metasp.metrics import SCENARIOS
from metasp.reports.groups import group
from metasp.reports.notes import Comparison
from metasp.reports.runs import gather
from metasp.reports.scores import difference_tables, score_tables
from metasp.reports.tables import as_csv, terminal
from metasp.spec import RunSpec

SIZES = (500, 1000, 2000, 10_000)
SEEDS = 5
TASKS = 5
REPEATS = 3  # of which the quickest counts
LIMIT = 1.15  # of the power of the number of runs with which the time may grow


@dataclass(frozen=True)
class Row:
    """So many runs reported: seconds in all, milliseconds per run, and the power of the number with
    which the time has grown since the fewest."""

    runs: int
    seeds: int  # of each row of the table
    seconds: float
    per_run: float
    power: float | None


def measure(sizes: Sequence[int] = SIZES, told: Told = silent) -> list[Row]:
    """Runs with five seeds for each row of the table, and runs that are a row each."""
    rows: list[Row] = []
    for seeds in (SEEDS, 1):
        first: Row | None = None
        for place, size in enumerate(sizes):
            with tempfile.TemporaryDirectory() as folder:
                make_runs(Path(folder), size, seeds)
                seconds = min(report_seconds(Path(folder)) for _ in range(REPEATS))
            power = None
            if first is not None:
                power = math.log(seconds / first.seconds) / math.log(size / first.runs)
            rows.append(Row(size, seeds, seconds, 1000 * seconds / size, power))
            first = first or rows[-1]
            told(((seeds == 1) * len(sizes) + place + 1) / (2 * len(sizes)))
    return rows


def make_runs(folder: Path, count: int, seeds: int) -> None:
    """Small finished runs, as they are stored, each row of them with a learning rate of its own."""
    usual = RunSpec(
        method="er", data_digest="made", tasks=TASKS, selection="reservoir", width=16,
        device="cpu", momentum=0.0, weight_decay=0.0, split_by="class", rehearse_last=5,
    )  # fmt: skip
    for number in range(count):
        row, seed = divmod(number, seeds)
        spec = usual.with_(lr=(row + 1) / 1000, seed=seed, memory=(200, 500)[row % 2])
        run = folder / spec.name
        run.mkdir()
        (run / "spec.toml").write_text(spec.to_toml())
        result: dict[str, Any] = {"spec": spec.as_dict(), "defaults": {}, "seconds": {"total": 1.0}}
        for scenario in SCENARIOS:
            matrix = [accuracies(number, task) for task in range(TASKS)]
            result[scenario] = {"matrix": matrix, "before": [0.0] * TASKS}
        (run / "result.json").write_text(json.dumps(result))


def accuracies(number: int, task: int) -> list[float | None]:
    """A made-up row of a matrix, another one for each run."""
    known = [((7 * number + 3 * task + tested) % 100) / 100 for tested in range(task + 1)]
    return [*known, *[None] * (TASKS - task - 1)]


def report_seconds(folder: Path) -> float:
    """The processor time of reading, grouping, testing and drawing all tables, in each layout
    once."""
    start = process_time()
    records = gather([folder]).records
    groups = group(records)
    how = Comparison(against=groups[0].rows[0].label)
    tables = [*score_tables(groups, how), *difference_tables(groups, how)]
    tables += score_tables(group(records, "memory"), Comparison())
    text_console(file=io.StringIO()).print(terminal(tables), soft_wrap=True)
    as_csv(tables)
    return process_time() - start


def render(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'runs':>6}{'seeds of a row':>16}{'seconds':>9}{'ms per run':>12}{'growth':>8}"]
    for row in rows:
        grown = "" if row.power is None else f"^{row.power:.2f}"
        over = "  OVER" if row.power is not None and row.power > LIMIT else ""
        lines.append(
            f"{row.runs:>6}{row.seeds:>16}{row.seconds:>9.2f}{row.per_run:>12.2f}{grown:>8}{over}"
        )
    lines.append(
        f"processor time, the least of {REPEATS}; ^x: grown as the x-th power of the runs since "
        f"the fewest, at most {LIMIT:g}."
    )
    lines.append(machine())
    return lines


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"reports": [asdict(row) for row in rows]}
