"""What the templates of the result pages can call: KINDS names them all. A table of more than LONG
rows becomes a CSV file beside the page."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from result_rows import (
    NAMES,
    QUESTIONS,
    RESULTS,
    ROOT,
    STREAMS,
    TRIED,
    fits,
    groups_of,
    pick,
    records_of,
)

from metasp.metrics import METRICS, SCENARIO_WORDS, SCENARIOS
from metasp.reports.figures import ALONG, FIGURES, LOOK, Drawing, draw, forest, gaps, save
from metasp.reports.groups import Configuration, group
from metasp.reports.notes import Comparison
from metasp.reports.scores import difference_tables, score_tables
from metasp.reports.significance import Paired, holm, paired, summarise
from metasp.reports.tables import Table, md, p_text, pipe_table, plus_minus, signed

IMAGES = ROOT / "docs/images/results"
WAYS = ("influence", "loss", "both")  # the ways to find wrong labels that were compared
VERSIONS = "made by different versions"
LONG = 6  # rows of a table on a page
FINAL, SCENARIO = "A_inf", SCENARIO_WORDS["class_il"]
WRITTEN: dict[str, str] = {}  # CSV files of the page that is being made, by name
DRAWING = False  # figures are written with the page, not when a test asks what it would be


def table(header: Sequence[str], rows: Sequence[Sequence[str]], name: str = "") -> str:
    """Return a table of Markdown cells: on the page or, if it is long, as a CSV file."""
    if len(rows) <= LONG or not name:
        return "\n".join(pipe_table(header, rows))
    return as_file(name, pd.DataFrame([map(plain, row) for row in rows], columns=header))


def as_file(name: str, cells: pd.DataFrame) -> str:
    """Return a link to a CSV file, which is written with the page."""
    WRITTEN[f"{name}.csv"] = cells.to_csv(index=False)
    return f"[{name}.csv](tables/{name}.csv) ({len(cells)} rows)"


def plain(cell: str) -> str:
    """Return a Markdown cell as text."""
    return re.sub(r"\\(.)", r"\1", cell.replace("**", ""))


def texts_of(tables: Sequence[Table]) -> pd.DataFrame:
    """Return all rows of some tables, each with the title of its table."""
    frames = []
    for each in tables:
        cells = [[cell.text for cell in row] for row in each.rows]
        frames.append(pd.DataFrame(cells, columns=each.header))
        frames[-1].insert(0, "table", each.title)
    return pd.concat(frames)


def scores(name: str, against: str = "metasp") -> str:
    """Return a link to all scores of a sweep, and the command that prints them with their notes."""
    tables = []
    for each in groups_of(name):
        row = pick(each.rows, against) if against in NAMES else None
        tables += score_tables([each], Comparison(row.label if row else None))
    link = as_file(f"{name}-scores", texts_of(tables))
    return f"All scores: {link}; with their notes: `metasp report results/{name}.parquet`."


def remarks(table: Table) -> list[str]:
    """Return the notes of a table but for the versions that made its runs, which `metasp report`
    names."""
    return [note for note in (*table.notes, *table.cautions) if not note.startswith(VERSIONS)]


def listed(notes: Iterable[str]) -> list[str]:
    """Return notes as a Markdown list, each once."""
    return [f"- {md(note)}" for note in dict.fromkeys(notes)]


def compare(name: str, *pairs: str) -> str:
    """`A/B` each: A minus B over paired seeds."""
    parts = []
    for each in groups_of(name):
        rows = []
        for pair in pairs:
            a, b = (pick(each.rows, side) for side in pair.split("/"))
            if a is not None and b is not None:
                rows.append((pair.replace("/", " − "), a, b))
        file = f"{name}-pairs"
        if f"{file}.csv" in WRITTEN:  # a second table of the same sweep
            file += "-2"
        parts.append(differences(each.title, rows, file))
    return "\n\n".join(parts)


def across(name: str, other: str, *rows: str) -> str:
    """Each row in one sweep minus the same row in another."""
    parts = []
    for a, b in zip(groups_of(name), groups_of(other), strict=True):
        pairs = [(row, pick(a.rows, row), pick(b.rows, row)) for row in rows]
        parts.append(differences(a.title, [(row, x, y) for row, x, y in pairs if x and y]))
    return "\n\n".join(parts)


def tried(name: str, base: str) -> str:
    """Every setting that was tried, by what TRIED calls it, minus one row."""
    (each,) = groups_of(name)
    rows = {row.label: row for row in each.rows}
    usual = pick(each.rows, base)
    if usual is None or {*rows} != {*TRIED.values(), usual.label}:
        raise SystemExit(f"TRIED does not name the rows of {name}: {sorted(rows)}")
    return differences(each.title, [(words, rows[r], usual) for words, r in TRIED.items()])


def differences(
    title: str, pairs: Sequence[tuple[str, Configuration, Configuration]], name: str = ""
) -> str:
    """The mean difference over paired seeds with its p-value, alone and Holm-corrected over the
    column."""
    columns = [("class_il", "A_inf"), ("class_il", "A_1"), ("task_il", "A_inf")]
    tests = [[paired(a.scores(*c), b.scores(*c)) for c in columns] for _, a, b in pairs]
    corrected = [holm([row[i].p or 1.0 for row in tests]) for i in range(len(columns))]
    words = [f"{SCENARIO_WORDS[scenario]} {METRICS[metric].name}" for scenario, metric in columns]
    rows = []
    for number, ((pair, _, _), row) in enumerate(zip(pairs, tests)):
        cells = [difference(test, corrected[i][number]) for i, test in enumerate(row)]
        rows.append([pair, str(len(row[0].seeds)), *cells])
    return f"*{md(title)}*\n\n{table(['difference', 'pairs', *words], rows, name)}"


def difference(test: Paired, corrected: float) -> str:
    if test.p is None:
        return "–" if test.difference is None else signed(test.difference)
    text = f"{signed(test.difference or 0.0)} (p {test.p:.3f}; {corrected:.3f})"
    return f"**{text}**" if test.p < 0.05 else text


def report(name: str, by: str, against: str) -> str:
    """The final class-incremental accuracy of every row of a sweep by a field; the differences to
    one row with their p-values, before Holm's correction and after it over all of them, as CSV."""
    groups, how = group(records_of(name), by), Comparison(against, True, (FINAL,))
    scored, tested = (
        [each for each in tables if SCENARIO in each.title]
        for tables in (score_tables(groups, how), difference_tables(groups, how))
    )
    parts = []
    for each in scored:
        cells = [[f"**{md(c.text)}**" if c.bold else md(c.text) for c in row] for row in each.rows]
        notes = "\n".join(listed(remarks(each)))
        parts.append(f"*{md(each.title)}*\n\n{table([*map(md, each.header)], cells)}\n\n{notes}")
    if tested:
        words = f"Differences from {md(against)} with their p-values"
        parts.append(f"{words}: {as_file(f'{name}-differences', texts_of(tested))}")
    return "\n\n".join(parts)


def answer(name: str, by: str, against: str, *rows: str) -> str:
    """Some rows of the same table as a short answer to a question: means, and in brackets the
    difference to one row with its p-value after Holm's correction over the whole table. A row is
    its label, or `label=what the answer calls it`."""
    tables = score_tables(group(records_of(name), by), Comparison(against, True, (FINAL,)))
    (shown,) = (each for each in tables if SCENARIO in each.title)
    numbers = pd.DataFrame(shown.data)
    numbers["text"] = [answer_cell(each, against) for each in shown.data]
    _, *columns = shown.header
    cells = numbers.assign(value=numbers["value"].astype(str))
    cells = cells.pivot(index="label", columns="value", values="text").fillna("–")
    lines = []
    for row in rows:
        label, _, words = row.partition("=")
        lines.append([words or md(label), *cells.loc[label, columns]])
    return table(["row", *columns], lines)


def answer_cell(number: Mapping[str, Any], against: str) -> str:
    text = f"{number['mean']:.1f}"
    if number["label"] == against or number["p_corrected"] is None:
        return text
    gap = signed(-number["reference_minus_this"], 1).replace("-", "−")
    return f"{text} ({gap}; {p_text(number['p_corrected'])})"


def found_labels(name: str) -> str:
    """Area under the ROC curve of each way to find the flipped labels, and how many of them the
    memory ends with."""
    rows = []
    for each in groups_of(name):
        for row in each.rows:
            scored, memories = results_of(row, "suspects"), results_of(row, "wrong")
            cells = [spread([part[way]["area"] for part in scored], 3) for way in WAYS]
            wrong = spread([100 * part["in_memory"] / part["memory"] for part in memories], 1)
            rows.append([md(row.label), str(len(memories)), *cells, wrong])
    return table(["run", "seeds", *WAYS, "wrong in memory, %"], rows, f"{name}-wrong-labels")


def tenths(*names: str) -> str:
    """Of MetaSP on each stream: the part of wrong labels among the examples of each tenth by I*."""
    rows = []
    for name in names:
        (row,) = (row for each in groups_of(name) if (row := pick(each.rows, "MetaSP")))
        means = np.mean([part["by_tenth"] for part in results_of(row, "wrong")], axis=0)
        rows.append([STREAMS[name], *(f"{100 * mean:.0f}" for mean in means)])
    return table(["tenth by I*", "lowest", *map(str, range(2, 10)), "highest"], rows)


def helps(name: str) -> str:
    """The share of examples that help each goal, in percent: each run's, in the order of seeds."""
    runs = [run.result["helps"] for run in records_of(name)]
    rows = []
    for source, words in (("memory", "old, from the memory"), ("new", "new")):
        goals = ("stability", "plasticity", "fused")
        shares = [", ".join(f"{100 * run[source][goal]:.0f}" for run in runs) for goal in goals]
        rows.append([words, *shares])
    return table(["examples", "help Stability", "help Plasticity", "help both, fused"], rows)


def results_of(row: Configuration, name: str) -> list[dict[str, Any]]:
    """Return a part of the result of each run of a configuration, where there is one."""
    return [run.result[name] for run in row.runs.values() if name in run.result]


def spread(values: Sequence[float], digits: int) -> str:
    summary = summarise(values)
    return plus_minus(summary.mean, summary.std, digits) if summary else "–"


def rates(name: str) -> str:
    """The learning rates tried, by the mean of A_∞ in both settings; the chosen one is bold."""
    runs = []
    for record in records_of(name):
        rows = [row for row, must in NAMES.items() if fits(record.spec, must)]
        both = sum(record.score(scenario, FINAL) or 0.0 for scenario in SCENARIOS) / 2
        runs.append({"method": rows[0] if rows else record.spec["method"],
                     "lr": record.spec["lr"], "both": both})  # fmt: skip
    means = pd.DataFrame(runs).pivot_table(index="method", columns="lr", values="both", sort=False)
    means = means[sorted(means.columns)]
    lines = []
    for method, row in means.iterrows():
        cells = ["–" if np.isnan(mean) else f"{mean:.2f}" for mean in row]
        best = means.columns.get_loc(row.idxmax())
        cells[best] = f"**{cells[best]}**"
        lines.append([str(method), *cells])
    return table(["method", *(f"lr {lr:g}" for lr in means.columns)], lines, f"{name}-rates")


def text(path: str) -> str:
    """What a command printed, without its first line, which names the command."""
    _, *lines = (ROOT / path).read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(["```text", *lines, "```"])


def figure(name: str, kind: str) -> str:
    """The drawings of one kind."""
    drawings = draw(FIGURES[kind], groups_of(name))
    return "\n\n".join(shown(drawing, name, f"{kind} of {name}") for drawing in drawings)


def curve(name: str, by: str) -> str:
    """The final accuracy of every row against a field, as a figure."""
    drawings = draw(ALONG, group(records_of(name), by))
    return "\n\n".join(shown(drawing, name, f"{name} by {by}") for drawing in drawings)


def shown(drawing: Drawing, folder: str, words: str) -> str:
    """Return the link to a figure, and write it where the page is written: its SVG alone, as the
    page needs one form and has the data in its tables."""
    path: Path = IMAGES / folder / f"{drawing.name}.svg"
    if DRAWING:
        save(drawing, path.parent)
        for form in ("png", "csv"):
            path.with_suffix(f".{form}").unlink()
    return f"![{words}]({path.relative_to(ROOT / 'docs')})"


def summary() -> str:
    """All answers in one figure."""
    rows = streams()
    panels = {
        SCENARIO_WORDS[scenario]: {
            question: {stream: gaps(a, b, scenario)
                       for stream, (a, b) in pairs_of(rows, pair).items()}
            for question, pair in QUESTIONS.items()
        }
        for scenario in SCENARIOS
    }  # fmt: skip
    with mpl.rc_context(LOOK):
        drawing = forest("differences", "A_∞, class-incremental and task-incremental", panels)
    return shown(drawing, "", "What the differences are, seed by seed")


def streams() -> dict[str, tuple[Configuration, ...]]:
    """Return the rows of every stream of the summary, by what it is called."""
    rows = {}
    for name, words in STREAMS.items():
        groups = groups_of(name)
        for each in groups:
            rows[words + (f", memory {each.memory}" if len(groups) > 1 else "")] = each.rows
    return rows


def pairs_of(
    rows: Mapping[str, tuple[Configuration, ...]], pair: str
) -> dict[str, tuple[Configuration, Configuration]]:
    """Return both sides of `A/B` on each stream where both were measured."""
    pairs = {}
    for stream, those in rows.items():
        a, b = (pick(those, side) for side in pair.split("/"))
        if a is not None and b is not None:
            pairs[stream] = (a, b)
    return pairs


def overview(*pairs: str) -> str:
    """`A/B` each, a column: A minus B in class-IL A_∞ on every stream. Bold is p < .05, a star
    that it is so after Holm's correction over the column too."""
    rows, columns = streams(), {}
    for pair in pairs:
        tests = {
            stream: paired(a.scores("class_il", FINAL), b.scores("class_il", FINAL))
            for stream, (a, b) in pairs_of(rows, pair).items()
        }
        corrected = holm([1.0 if test.p is None else test.p for test in tests.values()])
        columns[pair.replace("/", " − ")] = {
            stream: short(test, p) for (stream, test), p in zip(tests.items(), corrected)
        }
    cells = pd.DataFrame(columns, index=list(rows)).dropna(how="all").fillna("–")
    return table(["stream", *columns], cells.reset_index().to_numpy().tolist())


def short(test: Paired, corrected: float) -> str:
    """`+0.3 (.52)`: a difference with its p-value."""
    if test.p is None:
        return "–" if test.difference is None else signed(test.difference, 1)
    digits = 3 if test.p < 0.01 or 0.045 < test.p < 0.055 else 2
    p = "<.001" if test.p < 0.001 else f"{test.p:.{digits}f}".removeprefix("0")
    words = f"{signed(test.difference or 0.0, 1)} ({p})".replace("-", "−")
    return f"**{words}**{' ★' if corrected < 0.05 else ''}" if test.p < 0.05 else words


def times(*names: str) -> str:
    """How many runs of each sweep there are, what they took, and on which arithmetic."""
    runs = []
    for name in names:
        for record in records_of(name):
            wide = record.result["environment"].get("capability") == "AVX512"
            seconds = float(record.result["seconds"]["total"])
            runs.append({"sweep": name, "seconds": seconds, "wide": wide})
    frame = pd.DataFrame(runs)
    frame = pd.concat([frame, frame.assign(sweep="all")])
    rows = []
    for name, of_sweep in frame.groupby("sweep", sort=False):
        hours = sum(of_sweep["seconds"]) / 3600
        rows.append([str(name), str(len(of_sweep)), f"{hours:.1f}", str(sum(of_sweep["wide"]))])
    header = ["sweep", "runs", "hours of one core", "of them with AVX-512"]
    return table(header, rows, "times")


def minutes(*names: str) -> str:
    """What one run of each row takes."""
    taken: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names:
        for row in chain(*(each.rows for each in groups_of(name))):
            known = [words for words in NAMES if pick([row], words) is row]
            spent = [float(r.result["seconds"]["total"]) / 60 for r in row.runs.values()]
            taken[name][known[0] if known else md(row.label)] = spread(spent, 1)
    cells = pd.DataFrame(taken).fillna("–").reset_index().to_numpy().tolist()
    return table(["row", *(STREAMS[name] for name in names)], cells, "minutes")


def cost(*names: str) -> str:
    """What the runs of some sweeps cost in all."""
    records = [record for name in names for record in records_of(name)]
    hours = sum(float(record.result["seconds"]["total"]) for record in records) / 3600
    runs = f"The {len(records)} runs behind these pages took {hours:.0f} core-hours."
    return f"**What did it cost?** {runs}"


def claim(*names: str) -> str:
    """The pooled differences of the paper's claim over the streams of some sweeps, and the gain
    over ER in its parts as a figure."""
    from reproduce.claim import differences, markdown, pooled_table
    from reproduce.claim_figure import draw_gain

    compared = differences([RESULTS / f"{name}.parquet" for name in names])
    link = shown(draw_gain(compared), "claim", "the gain over ER in its parts")
    return "\n".join([*markdown(pooled_table(compared)), "", link])


def decided(name: str) -> str:
    """Every comparison of the paper's claim on the streams of a sweep, with its verdict."""
    from reproduce.claim import differences, markdown, table

    rows = table(differences([RESULTS / f"{name}.parquet"]))
    return "\n".join(markdown(rows.drop(columns=["stream"])))


KINDS: Mapping[str, Callable[..., str]] = {
    "scores": scores,
    "compare": compare,
    "across": across,
    "tried": tried,
    "report": report,
    "answer": answer,
    "found": found_labels,
    "tenths": tenths,
    "helps": helps,
    "rates": rates,
    "text": text,
    "figure": figure,
    "curve": curve,
    "summary": summary,
    "overview": overview,
    "times": times,
    "minutes": minutes,
    "cost": cost,
    "claim": claim,
    "decided": decided,
}
