"""Two runs on the same data side by side: what was corrected, and what changed in the scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.labels import CORRECTED, DATA
from metasp.reports.suspect_tables import scores_of
from metasp.reports.tables import Cell, Table, signed
from metasp.spec import RunSpec
from metasp.store import RunDir

ONE_SEED = (
    "one run each: a difference that is smaller than what another seed would change may be chance. "
    "To see what seeds change, run both with further seeds (--seed 1, --seed 2, …) and give all "
    "runs to `metasp report`."
)


def refuse_other_data(specs: Sequence[RunSpec]) -> None:
    """Raise unless all runs saw the same stream of examples, corrections aside."""
    streams = set()
    for spec in specs:
        drawn = spec.class_order == "shuffled" or spec.label_noise > 0 or spec.imbalance < 1
        streams.add((*(getattr(spec, name) for name in DATA), spec.seed if drawn else None))
    if len(streams) > 1:
        raise UserError(
            "the two runs saw different data: compare runs of the same benchmark and settings of "
            "its data and, where the order of classes or wrong labels are drawn, of one seed."
        )


def compare_tables(runs: Sequence[RunDir]) -> list[Table]:
    """Return tables of corrections, scores and accuracies by task of two finished runs."""
    refuse_other_data([run.spec() for run in runs])
    results = []
    for run in runs:
        result = run.outcome()
        if result is None:
            raise UserError(f"{run.path} is not finished: `metasp resume {run.path}` continues it.")
        results.append(result)
    tables = [corrections_table(runs), replace(scores_table(results), notes=(ONE_SEED,))]
    for scenario in SCENARIOS:
        lines = []
        ends = [result[scenario]["matrix"][-1] for result in results]
        for task, accuracies in enumerate(zip(*ends), 1):
            lines.append((f"task {task}", accuracies))
        title = f"accuracy on each task at the end, {SCENARIO_WORDS[scenario]}, %"
        tables.append(change_table(title, "on", lines))
    return tables


def corrections_table(runs: Sequence[RunDir]) -> Table:
    """Return how many examples a person has corrected, and how many labels look wrong."""
    lines: list[tuple[str, list[int]]] = []
    for name, text in CORRECTED.items():
        lines.append((text, [len(getattr(run.spec(), name)) for run in runs]))
    trusted = [run.trusted() for run in runs]
    verified = [0 if columns is None else len(columns["id"]) for columns in trusted]
    lines.append(("verified in all, with --trusted", verified))
    notes = [f"{letter}: {run.path.name}" for letter, run in zip("AB", runs)]
    scores = [scores_of(run) for run in runs]
    if all(len(run.scores.ids) for run in scores):
        lines.append(("examples in training", [len(run.scores.ids) for run in scores]))
        expected = [run.scores.expected(run.scores.best) for run in scores]
        lines.append(("labels that look wrong", expected))
        ways = [f"in {letter} by {run.scores.best}" for letter, run in zip("AB", scores)]
        notes.append(f"labels that look wrong: {', '.join(ways)}.")
        if all(run.wrong is not None for run in scores):
            lines.append(("labels known to be wrong", [len(run.wrong or ()) for run in scores]))
    rows, data = [], []
    for text, (a, b) in lines:
        rows.append((Cell(text), Cell(str(a)), Cell(str(b))))
        data.append({"what": text, "a": a, "b": b})
    return Table("examples", ("", "A", "B"), tuple(rows), tuple(data), tuple(notes))


def scores_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return every metric of both scenarios."""
    lines = []
    for scenario in SCENARIOS:
        for name, metric in METRICS.items():
            values = [result[scenario][name] for result in results]
            lines.append((f"{metric.name}, {SCENARIO_WORDS[scenario]}", values))
    return change_table("scores, %", "", lines)


def change_table(
    title: str, corner: str, lines: Sequence[tuple[str, Sequence[float | None]]]
) -> Table:
    """Return values of A and B, which are fractions, in percent with their difference."""
    rows, data = [], []
    for text, (a, b) in lines:
        change = None if a is None or b is None else b - a
        cells = [Cell(text)]
        for value in (a, b):
            cells.append(Cell("–" if value is None else f"{100 * value:z.2f}"))
        cells.append(Cell("–" if change is None else signed(100 * change)))
        rows.append(tuple(cells))
        data.append({"what": text, "a": a, "b": b, "change": change})
    return Table(title, (corner, "A", "B", "B − A"), tuple(rows), tuple(data))
