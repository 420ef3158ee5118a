"""Tables of `metasp report` on pages of results."""

from collections.abc import Mapping, Sequence
from typing import Any

from result_rows import records_of

from metasp.metrics import SCENARIO_WORDS
from metasp.reports.groups import group
from metasp.reports.scores import Comparison, difference_tables, score_tables
from metasp.reports.tables import Table, markdown, md, p_text, signed

FINAL = "A_inf"
WORDS = SCENARIO_WORDS["class_il"]


def pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def report(name: str, by: str, against: str) -> str:
    """The final class-incremental accuracy of every row of results by a field, and the differences
    to one row with their p-values: before Holm's correction and after it, over all of them."""
    sections = group(records_of(name), by)
    how = Comparison(against, True, (FINAL,))
    tables = [*score_tables(sections, how), *difference_tables(sections, how)]
    return markdown([table for table in tables if WORDS in table.title]).rstrip()


def answer(name: str, by: str, against: str, *rows: str) -> str:
    """Some rows of the same table as a short answer to a question: means, and in brackets the
    difference to one row with its p-value after Holm's correction over the whole table. A row is
    its label, or `label=what the answer calls it`."""
    how = Comparison(against, True, (FINAL,))
    (table,) = (
        table for table in score_tables(group(records_of(name), by), how) if WORDS in table.title
    )
    _, *columns = table.header
    lines = [pipes(["row", *columns]), pipes(["---", *["---:"] * len(columns)])]
    for row in rows:
        label, _, words = row.partition("=")
        cells = cells_of(table, label, against)
        lines.append(pipes([words or md(label), *(cells.get(name, "–") for name in columns)]))
    return "\n".join(lines)


def cells_of(table: Table, label: str, against: str) -> dict[str, str]:
    """The cells of one row by their column."""
    entries: Sequence[Mapping[str, Any]] = [e for e in table.data if e["label"] == label]
    if not entries:
        raise SystemExit(f"no row of {table.title} is called {label}")
    found = {}
    for entry in entries:
        text = f"{entry['mean']:.1f}"
        if label != against and entry.get("p_corrected") is not None:
            gap = signed(-entry["reference_minus_this"], 1).replace("-", "−")
            text += f" ({gap}; {p_text(entry['p_corrected'])})"
        found[str(entry["value"])] = text
    return found


def helps(name: str) -> str:
    """The share of examples that help each goal, in percent: each run's, in the order of seeds."""
    runs = [run.result["helps"] for run in records_of(name)]
    lines = [pipes(["examples", "help Stability", "help Plasticity", "help both, fused"])]
    lines.append(pipes(["---", *["---:"] * 3]))
    for source, words in (("memory", "old, from the memory"), ("new", "new")):
        cells = []
        for goal in ("stability", "plasticity", "fused"):
            cells.append(", ".join(f"{100 * run[source][goal]:.0f}" for run in runs))
        lines.append(pipes([words, *cells]))
    return "\n".join(lines)


def cost(*names: str) -> str:
    """What the runs of some sweeps cost in all."""
    records = [record for name in names for record in records_of(name)]
    hours = sum(float(record.result["seconds"]["total"]) for record in records) / 3600
    runs = f"The {len(records)} runs behind these pages took {hours:.0f} core-hours."
    return f"**What did it cost?** {runs}"
