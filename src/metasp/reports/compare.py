"""Two runs on the same data beside each other: what was corrected, what changed in the scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.names import CORRECTED, DATA
from metasp.reports.suspects import scores_of
from metasp.reports.tables import Cell, Table, signed
from metasp.spec import RunSpec
from metasp.store import RunDir


def stream_of(spec: RunSpec) -> tuple[Any, ...]:
    """What tells the stream of examples of one run from that of another, but for corrections."""
    drawn = spec.class_order == "shuffled" or spec.label_noise > 0 or spec.imbalance < 1
    return (*(getattr(spec, name) for name in DATA), spec.seed if drawn else None)


def refuse_other_data(specs: Sequence[RunSpec]) -> None:
    if len({stream_of(spec) for spec in specs}) > 1:
        raise UserError(
            "the two runs saw different data: compare runs of the same benchmark and settings of "
            "its data and, where the order of classes or wrong labels are drawn, of one seed."
        )


def compare_tables(runs: Sequence[RunDir]) -> list[Table]:
    """The scores of two finished runs, by task too, and the corrections of each."""
    refuse_other_data([run.spec() for run in runs])
    results = []
    for run in runs:
        result = run.outcome()
        if result is None:
            raise UserError(f"{run.path} is not finished: `metasp resume {run.path}` continues it.")
        results.append(result)
    return [
        _corrections_table(runs),
        _scores_table(results),
        *(_task_table(results, scenario) for scenario in SCENARIOS),
    ]


def _corrections_table(runs: Sequence[RunDir]) -> Table:
    """How many examples a person has said something of, and how many look wrong."""
    said = [run.spec().corrections for run in runs]
    lines: list[tuple[str, list[int]]] = [
        (words, [len(getattr(each, name)) for each in said]) for name, words in CORRECTED.items()
    ]
    lines.append(("verified in all, with --trusted", [len(_ids(run.trusted())) for run in runs]))
    scores = [scores_of(run) for run in runs]
    known = [each for each in scores if len(each.scores.ids)]
    notes = [f"{letter}: {run.path.name}" for letter, run in zip("AB", runs)]
    if len(known) == len(runs):
        expected = [each.scores.expected(each.scores.best) for each in known]
        lines.append(("examples in training", [len(each.scores.ids) for each in known]))
        lines.append(("labels that look wrong", expected))
        ways = [f"in {letter} by {each.scores.best}" for letter, each in zip("AB", known)]
        notes.append(f"labels that look wrong: {', '.join(ways)}.")
        if all(each.wrong is not None for each in known):
            lines.append(("labels known to be wrong", [len(each.wrong or ()) for each in known]))
    rows = tuple((Cell(words), *(Cell(str(count)) for count in counts)) for words, counts in lines)
    data = tuple({"what": words, "a": counts[0], "b": counts[1]} for words, counts in lines)
    return Table("examples", ("", "A", "B"), rows, data, tuple(notes))


def _ids(columns: Mapping[str, Sequence[Any]] | None) -> Sequence[Any]:
    return () if columns is None else columns["id"]


def _scores_table(results: Sequence[Mapping[str, Any]]) -> Table:
    lines = []
    for scenario in SCENARIOS:
        for name, metric in METRICS.items():
            values = [result[scenario][name] for result in results]
            lines.append((f"{metric.name}, {SCENARIO_WORDS[scenario]}", values))
    return _difference_table("scores, %", "", lines)


def _task_table(results: Sequence[Mapping[str, Any]], scenario: str) -> Table:
    """Accuracy on each task at the end of the run."""
    ends = [result[scenario]["matrix"][-1] for result in results]
    lines = [(f"task {task + 1}", values) for task, values in enumerate(zip(*ends))]
    title = f"accuracy on each task at the end, {SCENARIO_WORDS[scenario]}, %"
    return _difference_table(title, "on", lines)


def _difference_table(
    title: str, corner: str, lines: Sequence[tuple[str, Sequence[float | None]]]
) -> Table:
    rows, data = [], []
    for words, (a, b) in lines:
        change = None if a is None or b is None else b - a
        texts = ["–" if value is None else f"{100 * value:z.2f}" for value in (a, b)]
        texts.append("–" if change is None else signed(100 * change))
        rows.append((Cell(words), *(Cell(text) for text in texts)))
        data.append({"what": words, "a": a, "b": b, "change": change})
    return Table(title, (corner, "A", "B", "B − A"), tuple(rows), tuple(data))
