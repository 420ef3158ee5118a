"""Results: exports finished runs into tables of results/, and turns these and the templates in
docs/ into pages and CSV files beside them.

    python docs/make_results.py collect RUNS NAME   runs of a sweep -> results/NAME.parquet
    python docs/make_results.py                     results/ -> docs/results.md and others

A template is Markdown with jinja2: `{{ kind("name", …) }}` becomes a table, see KINDS in
result_tables.py."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))  # also where a test loads this file
import result_tables
from result_rows import RESULTS, ROOT

from metasp.label_scores import quality, score_examples
from metasp.reports.runs import Record, export, gather

TEMPLATES = sorted((ROOT / "docs").glob("*.template"))
TABLES = ROOT / "docs/tables"


def collect(runs: Path, name: str) -> None:
    """Export the runs of a sweep."""
    records = sorted(gather([runs]).records, key=lambda record: record.name)
    export(records, RESULTS / f"{name}.parquet", [derived(record) for record in records])


def derived(record: Record) -> dict[str, Any]:
    """Return the numbers of a run that pages show beside its scores: where labels were flipped, how
    well they are found and how many of them the memory holds; the share of examples that helps."""
    run = record.directory
    values: dict[str, Any] = {}
    if run is None:
        return values
    columns = run.influence()
    if record.spec["observe"] and columns is not None:
        values["helps"] = shares_that_help(columns)
    noise = run.noise()
    if noise is None:
        return values
    memory = run.memory()["id"]
    values["wrong"] = {"memory": len(memory), "in_memory": int(np.isin(memory, noise["id"]).sum())}
    if columns is not None:
        scores = score_examples({}, columns)
        values["suspects"] = {way: quality(scores, way, noise["id"]) for way in result_tables.WAYS}
        values["wrong"]["by_tenth"] = wrong_by_tenths(columns, noise["id"])
    return values


def shares_that_help(columns: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The share of the measured examples whose influence is below zero, by where they came from."""
    sources = np.asarray(columns["source"])
    found: dict[str, dict[str, float]] = {}
    for source in ("memory", "new"):
        found[source] = {}
        for goal in ("stability", "plasticity", "fused"):
            values = np.asarray(columns[goal], dtype=np.float64)[sources == source]
            values = values[~np.isnan(values)]
            found[source][goal] = round(float((values < 0).mean()), 4)
    return found


def wrong_by_tenths(columns: Mapping[str, Any], flipped: Any) -> list[float]:
    """The part of wrong labels in each tenth of a task's new examples by their mean I*, from the
    most helpful on; the mean over tasks."""
    tasks, fused = np.asarray(columns["task"]), np.asarray(columns["fused"], dtype=np.float64)
    wrong = np.isin(columns["id"], flipped)
    known = (np.asarray(columns["source"]) == "new") & ~np.isnan(fused)
    shares = []
    for task in np.unique(tasks[known]):
        rows = np.flatnonzero(known & (tasks == task))
        ordered = wrong[rows[np.argsort(fused[rows], kind="stable")]]
        shares.append([float(tenth.mean()) for tenth in np.array_split(ordered, 10)])
    return [round(float(share), 4) for share in np.mean(shares, axis=0)]


def page(template: Path) -> tuple[str, dict[str, str]]:
    """Return a page and its CSV files, by name."""
    result_tables.WRITTEN.clear()
    made = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(
        template.read_text(encoding="utf-8"), dict(result_tables.KINDS)
    )
    content = made.render().rstrip() + "\n"
    return content, dict(result_tables.WRITTEN)


def write_pages() -> None:
    result_tables.DRAWING = True
    TABLES.mkdir(exist_ok=True)
    for file in TABLES.glob("*.csv"):
        file.unlink()
    for template in TEMPLATES:
        content, tables = page(template)
        template.with_suffix(".md").write_text(content, encoding="utf-8")
        for name, cells in tables.items():
            (TABLES / name).write_text(cells, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]), sys.argv[3])
    else:
        write_pages()
