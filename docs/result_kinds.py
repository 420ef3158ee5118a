"""What the lines of docs/results.template become: KINDS names them all."""

import re
import statistics
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from report_kind import pipes
from result_rows import NAMES, ROOT, TRIED, fits, groups_of, pick, records_of

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures import ALONG, FIGURES, Drawing, draw, save
from metasp.reports.figures.differences import Line, forest, gaps
from metasp.reports.figures.style import LOOK
from metasp.reports.groups import Configuration, group
from metasp.reports.scores import Comparison, score_tables
from metasp.reports.significance import holm, paired
from metasp.reports.tables import markdown, md, signed

IMAGES = ROOT / "docs/images/results"
WAYS = ("influence", "loss", "both")  # the ways to find wrong labels that were compared
DRAWING = False  # figures are written with the page, not when a test asks what it would be


def scores(name: str, against: str = "metasp") -> str:
    """Both score tables of every group."""
    parts = []
    for each in groups_of(name):
        row = pick(each.rows, against) if against in NAMES else None
        how = Comparison(row.label if row else None)
        parts += score_tables([each], how)
    # No headings: the benchmark's name would head many tables of this page.
    return re.sub(r"^### (.*)$", rf"**{name}:** \1", markdown(parts), flags=re.MULTILINE)


def compare(name: str, *pairs: str) -> str:
    """`A/B` each: A minus B over paired seeds."""
    lines = []
    for each in groups_of(name):
        found = []
        for pair in pairs:
            a, b = (pick(each.rows, part) for part in pair.split("/"))
            if a is not None and b is not None:
                found.append((pair.replace("/", " − "), a, b))
        lines += differences(each.title, found)
    return "\n".join(lines)


def across(name: str, other: str, *rows: str) -> str:
    """Each row in one sweep minus the same row in another."""
    one, two = groups_of(name), groups_of(other)
    lines = []
    for a, b in zip(one, two, strict=True):
        pairs = [(row, pick(a.rows, row), pick(b.rows, row)) for row in rows]
        lines += differences(a.title, [(row, x, y) for row, x, y in pairs if x and y])
    return "\n".join(lines)


def tried(name: str, base: str) -> str:
    """Every setting that was tried, by what TRIED calls it, minus one row."""
    lines = []
    for each in groups_of(name):
        rows = {row.label: row for row in each.rows}
        plain = pick(each.rows, base)
        if plain is None or {*rows} != {*TRIED.values(), plain.label}:
            raise SystemExit(f"TRIED does not name the rows of {name}: {sorted(rows)}")
        lines += differences(each.title, [(what, rows[r], plain) for what, r in TRIED.items()])
    return "\n".join(lines)


def differences(title: str, found: list[tuple[str, Configuration, Configuration]]) -> list[str]:
    """The mean difference over paired seeds with its p-value, alone and Holm-corrected over the
    column."""
    columns = [("class_il", "A_inf"), ("class_il", "A_1"), ("task_il", "A_inf")]
    tests = [[paired(a.scores(*c), b.scores(*c)) for c in columns] for _, a, b in found]
    corrected = [holm([row[i].p or 1.0 for row in tests]) for i in range(len(columns))]
    words = [f"{SCENARIO_WORDS[scenario]} {METRICS[name].name}" for scenario, name in columns]
    head = ["difference", "pairs", *words]
    lines = ["", f"*{md(title)}*", "", pipes(head), pipes(["---", *["---:"] * 4])]
    for place, ((words, _, _), row) in enumerate(zip(found, tests)):
        cells = [difference(test, corrected[i][place]) for i, test in enumerate(row)]
        lines.append(pipes([words, str(len(row[0].seeds)), *cells]))
    return lines


def difference(test: Any, corrected: float) -> str:
    if test.p is None:
        return "–" if test.difference is None else signed(test.difference)
    text = f"{signed(test.difference)} (p {test.p:.3f}; {corrected:.3f})"
    return f"**{text}**" if test.p < 0.05 else text


def found_labels(name: str) -> str:
    """Area under the ROC curve of each way to find the flipped labels, and how many of them the
    memory ends with."""
    lines = [pipes(["run", "seeds", *WAYS, "wrong in memory, %"]), pipes(["---", *["---:"] * 5])]
    for each in groups_of(name):
        for row in each.rows:
            found, memories = (read(row, part) for part in ("suspects", "wrong"))
            cells = [spread([part[way]["area"] for part in found], 3) for way in WAYS]
            kept = spread([100 * part["in_memory"] / part["memory"] for part in memories], 1)
            lines.append(pipes([md(row.label), str(len(memories)), *cells, kept]))
    return "\n".join(lines)


def tenths(*names: str) -> str:
    """Of MetaSP on each stream: the part of wrong labels among the examples of each tenth by I*."""
    lines = [pipes(["tenth by I*", "lowest", *map(str, range(2, 10)), "highest"])]
    lines.append(pipes(["---", *["---:"] * 10]))
    for name in names:
        rows = [row for each in groups_of(name) if (row := pick(each.rows, "MetaSP"))]
        means = np.mean([part["by_tenth"] for row in rows for part in read(row, "wrong")], axis=0)
        lines.append(pipes([STREAMS[name], *(f"{100 * mean:.0f}" for mean in means)]))
    return "\n".join(lines)


def read(row: Configuration, name: str) -> list[dict[str, Any]]:
    """Return a part of the result of each run of a configuration, where there is one."""
    return [run.result[name] for run in row.runs.values() if name in run.result]


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def rates(name: str) -> str:
    """The learning rates tried, by the mean of A_∞ in both settings; the chosen one is bold."""
    tried: dict[str, dict[float, float]] = {}
    for record in records_of(name):
        rows = [name for name, must in NAMES.items() if fits(record.spec, must)]
        label = rows[0] if rows else str(record.spec["method"])
        both = sum(record.score(s, "A_inf") or 0.0 for s in SCENARIOS) / 2
        column = tried.setdefault(label, {})
        column.setdefault(float(record.spec["lr"]), 0.0)
        column[float(record.spec["lr"])] += both
    steps = sorted({lr for column in tried.values() for lr in column})
    seeds = len({record.seed for record in records_of(name)})
    lines = [pipes(["method", *(f"lr {lr:g}" for lr in steps)])]
    lines.append(pipes(["---", *["---:"] * len(steps)]))
    for label, column in tried.items():
        best = max(column, key=lambda lr: (column[lr], -lr))
        cells = [f"{column[lr] / seeds:.2f}" if lr in column else "–" for lr in steps]
        lines.append(pipes([label, *(f"**{c}**" if lr == best else c
                                     for lr, c in zip(steps, cells))]))  # fmt: skip
    return "\n".join(lines)


def text(path: str) -> str:
    """What a command printed, without its first line, which names the command."""
    _, *lines = (ROOT / path).read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(["```text", *lines, "```"])


def figure(name: str, kind: str) -> str:
    """The drawings of one kind, written beside the page."""
    lines = []
    for drawing in draw(FIGURES[kind], groups_of(name)):
        path = IMAGES / name / f"{drawing.name}.svg"
        if DRAWING:
            save_one(drawing, path)
        lines.append(f"![{kind} of {name}]({path.relative_to(ROOT / 'docs')})")
    return "\n\n".join(lines)


def curve(name: str, by: str) -> str:
    """The final accuracy of every row against a field, as a figure."""
    lines = []
    for drawing in draw(ALONG, group(records_of(name), by)):
        path = IMAGES / name / f"{drawing.name}.svg"
        if DRAWING:
            save_one(drawing, path)
        lines.append(f"![{name} by {by}]({path.relative_to(ROOT / 'docs')})")
    return "\n\n".join(lines)


def save_one(drawing: Drawing, path: Path) -> None:
    """The SVG alone: the page needs one form, and has the data in its tables."""
    save(drawing, path.parent)
    for form in ("png", "csv"):
        path.with_suffix(f".{form}").unlink()


# What the summary shows: a question, the difference that answers it, and where it was measured.
STREAMS = {
    "fashion": "Fashion-MNIST, half size",
    "fashion-whole": "Fashion-MNIST",
    "cifar10": "CIFAR-10, small",
    "cifar10-whole": "CIFAR-10",
    "fashion-online": "Fashion-MNIST, half size, one epoch",
    "fashion-small-memory": "Fashion-MNIST, half size",
    "fashion-noise": "noisy Fashion-MNIST, half size",
    "fashion-noise-whole": "noisy Fashion-MNIST",
    "cifar10-noise": "noisy CIFAR-10, small",
    "cifar10-noise-whole": "noisy CIFAR-10",
}
QUESTIONS = {
    "Does MetaSP beat ER with its schedule?": "MetaSP/ER + schedule",
    "Does it beat its shuffled control?": "MetaSP/shuffled",
    "Does RehSel add anything?": "RehSel/MetaSP",
    "Influence as filter, over clusters alone": "filter/clusters alone",
    "Mean loss as the same filter": "filter by loss/clusters alone",
    "low-loss, over class-balanced": "low loss/balanced",
}


def summary() -> str:
    """All answers in one figure."""
    path = IMAGES / "differences.svg"
    if DRAWING:
        rows = streams()
        panels = {
            SCENARIO_WORDS[scenario]: {
                question: [Line(stream, gaps(a, b, scenario))
                           for stream, (a, b) in pairs_of(rows, pair).items()]
                for question, pair in QUESTIONS.items()
            }
            for scenario in SCENARIOS
        }  # fmt: skip
        with mpl.rc_context(LOOK):
            drawing = forest("differences", "A_∞, class-incremental and task-incremental", panels)
        save_one(drawing, path)
    return f"![What the differences are, seed by seed]({path.relative_to(ROOT / 'docs')})"


def streams() -> dict[str, tuple[Configuration, ...]]:
    """The rows of every stream of the summary, by what it is called."""
    found = {}
    for name, words in STREAMS.items():
        groups = groups_of(name)
        for each in groups:
            more = f", memory {each.memory}" if len(groups) > 1 else ""
            found[words + more] = each.rows
    return found


def pairs_of(
    rows: Mapping[str, tuple[Configuration, ...]], pair: str
) -> dict[str, tuple[Configuration, Configuration]]:
    """Both sides of `A/B` on each stream where both were measured."""
    found = {}
    for stream, own in rows.items():
        a, b = (pick(own, part) for part in pair.split("/"))
        if a is not None and b is not None:
            found[stream] = (a, b)
    return found


def overview(*pairs: str) -> str:
    """`A/B` each, a column: A minus B in class-IL A_∞ on every stream. Bold is p < .05, a star
    that it is so after Holm's correction over the column too."""
    rows, columns = streams(), []
    for pair in pairs:
        both = pairs_of(rows, pair)
        tests = {
            stream: paired(a.scores("class_il", "A_inf"), b.scores("class_il", "A_inf"))
            for stream, (a, b) in both.items()
        }
        corrected = holm([1.0 if test.p is None else test.p for test in tests.values()])
        columns.append(
            {s: short(test, c) for (s, test), c in zip(tests.items(), corrected)}
        )  # fmt: skip
    lines = [pipes(["stream", *(pair.replace("/", " − ") for pair in pairs)])]
    lines.append(pipes(["---", *["---:"] * len(pairs)]))
    for stream in rows:
        if any(stream in column for column in columns):
            lines.append(pipes([stream, *(column.get(stream, "–") for column in columns)]))
    return "\n".join(lines)


def short(test: Any, corrected: float) -> str:
    """`+0.3 (.52)`: a difference with its p-value."""
    if test.p is None:
        return "–" if test.difference is None else signed(test.difference, 1)
    digits = 3 if test.p < 0.01 or 0.045 < test.p < 0.055 else 2
    p = "<.001" if test.p < 0.001 else f"{test.p:.{digits}f}".removeprefix("0")
    text = f"{signed(test.difference, 1)} ({p})".replace("-", "−")
    return f"**{text}**{' ★' if corrected < 0.05 else ''}" if test.p < 0.05 else text


def times(*names: str) -> str:
    """How many runs of each sweep there are, what they took, and on which arithmetic."""
    lines = [pipes(["sweep", "runs", "hours of one core", "of them with AVX-512"])]
    lines.append(pipes(["---", *["---:"] * 3]))
    found = {name: records_of(name) for name in names}
    for name, records in {**found, "all": [*chain(*found.values())]}.items():
        hours = sum(float(r.result["seconds"]["total"]) for r in records) / 3600
        wide = sum(r.result["environment"].get("capability") == "AVX512" for r in records)
        lines.append(pipes([name, str(len(records)), f"{hours:.1f}", str(wide)]))
    return "\n".join(lines)


def minutes(*names: str) -> str:
    """What one run of each row takes."""
    taken: dict[str, dict[str, str]] = {}
    for name in names:
        for each in groups_of(name):
            for row in each.rows:
                known = [words for words in NAMES if pick(each.rows, words) is row]
                spent = [float(r.result["seconds"]["total"]) / 60 for r in row.runs.values()]
                cells = taken.setdefault(known[0] if known else md(row.label), {})
                cells[name] = spread(spent, 1)
    lines = [pipes(["row", *(STREAMS[name] for name in names)])]
    lines.append(pipes(["---", *["---:"] * len(names)]))
    lines += [pipes([row, *(cells.get(n, "–") for n in names)]) for row, cells in taken.items()]
    return "\n".join(lines)


KINDS: Mapping[str, Callable[..., str]] = {
    "scores": scores,
    "compare": compare,
    "across": across,
    "tried": tried,
    "found": found_labels,
    "tenths": tenths,
    "rates": rates,
    "text": text,
    "figure": figure,
    "curve": curve,
    "summary": summary,
    "overview": overview,
    "times": times,
    "minutes": minutes,
}
