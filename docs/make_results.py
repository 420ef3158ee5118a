"""Results: copies what small files of finished runs say into results/, and turns results/ and
the templates in docs/ into pages beside them.

    python docs/make_results.py collect RUNS NAME   runs of a sweep -> results/NAME
    python docs/make_results.py                     results/ -> docs/results.md and others

A line `{{kind name …}}` of the template becomes a table: see KINDS in result_kinds.py."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # also where a test loads this file
import result_kinds as kinds
from report_kind import answer, cost, helps, report
from result_rows import RESULTS, ROOT

from metasp.reports.records import gather
from metasp.store import open_run
from metasp.suspects import quality, score_examples

TEMPLATES = sorted((ROOT / "docs").glob("*.template"))
KINDS = {
    **kinds.KINDS,
    "report": lambda name, *how: report(RESULTS / name, *how),
    "answer": lambda name, *how: answer(RESULTS / name, *how),
    "helps": lambda name: helps(RESULTS / name),
    "cost": lambda *names: cost(RESULTS, *names),
}


def collect(runs: Path, name: str) -> None:
    """Spec, result and, where labels were flipped, how well they are found and how many of them
    the memory holds, of each run."""
    for record in gather([runs]).records:
        folder = RESULTS / name / record.path.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("spec.toml", "result.json"):
            shutil.copyfile(record.path / file, folder / file)
        run = open_run(record.path)
        if record.spec.get("observe") and (observed := run.influence()) is not None:
            (folder / "helps.json").write_text(json.dumps(shares_that_help(observed)) + "\n")
        if (noise := run.noise()) is None:
            continue
        held = run.memory()["id"]
        wrong: dict[str, Any] = {"held": len(held), "wrong": int(np.isin(held, noise["id"]).sum())}
        if (columns := run.influence()) is not None:
            scores = score_examples({}, columns)
            found = {way: quality(scores, way, noise["id"]) for way in kinds.WAYS}
            (folder / "suspects.json").write_text(json.dumps(found, indent=1) + "\n")
            wrong["tenths"] = wrong_by_tenths(columns, noise["id"])
        (folder / "wrong.json").write_text(json.dumps(wrong) + "\n")


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


def page(template: Path) -> str:
    lines = []
    for line in template.read_text(encoding="utf-8").splitlines():
        if line.startswith("{{") and line.endswith("}}"):
            kind, *arguments = shlex.split(line[2:-2])
            lines.append(KINDS[kind](*arguments))
        else:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]), sys.argv[3])
    else:
        kinds.DRAWING = True
        for template in TEMPLATES:
            template.with_suffix(".md").write_text(page(template), encoding="utf-8")
