"""The published figures."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from metasp.metrics import METRICS
from metasp.reports.groups import Configuration, Group, as_published
from metasp.reports.notes import Comparison
from metasp.reports.scores import score_tables
from metasp.reports.tables import Cell, Table, signed

BENCHMARKS = {
    "split-cifar10": "Split CIFAR-10",
    "split-cifar100": "Split CIFAR-100",
    "split-mini-imagenet": "Split Mini-Imagenet",
}
TASKS = {"split-cifar10": 5, "split-cifar100": 10, "split-mini-imagenet": 5}
METHODS = {
    "finetune": "Fine-tune",
    "joint": "Joint",
    "gdumb": "GDUMB",
    "gem": "GEM",
    "agem": "AGEM",
    "hal": "HAL",
    "mir": "MIR",
    "gss": "GSS",
    "gmed": "GMED",
    "er": "ER",
    "metasp": "MetaSP",
    "metasp-rehsel": "MetaSP+RehSel",
}
SCENARIOS = {"class_il": "class", "task_il": "task"}
PROTOCOL = "ResNet-18 of width 64, 50 epochs per task, all training data, five seeds"


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a published table."""
    with open(Path(__file__).parent / "data" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Published:
    """A score of the paper, in percent."""

    mean: float
    std: float | None


def published_tables(groups: list[Group], how: Comparison) -> list[Table]:
    """Return the tables of scores with those of Table 1 beside them."""
    figures = main_results()
    of_tables = [(group, scenario) for group in groups for scenario in SCENARIOS]
    return [
        beside(table, group, scenario, figures)
        for table, (group, scenario) in zip(score_tables(groups, how), of_tables, strict=True)
    ]


def beside(
    table: Table, group: Group, scenario: str, figures: Mapping[tuple[str, ...], Published]
) -> Table:
    """Add the published scores, and the differences from them, to a table of one group."""
    rows_of_group = {row.label: row for row in group.rows}
    data, cells = [], {}
    for number in table.data:
        label, metric, mean = number["label"], number["metric"], number["mean"]
        figure = figures.get(key_of(rows_of_group[label], group.memory, scenario, metric))
        gap = None if figure is None or mean is None else mean - figure.mean
        std = figure.std if figure else None
        told = {"published": figure.mean if figure else None, "published_std": std}
        data.append({**number, **told, "difference": gap})
        if figure is not None and gap is not None:
            cells[label, metric] = Cell(f"{figure.mean:.2f} ({signed(gap)})")
    header, lines = [*table.header[:2]], [[*row[:2]] for row in table.rows]
    for column, metric in enumerate(METRICS, 2):
        known = any(each == metric for _, each in cells)
        header += [table.header[column], *(["published (difference)"] if known else [])]
        for line, row in zip(lines, table.rows):
            line.append(row[column])
            if known:
                line.append(cells.get((row[0].text, metric), Cell("–")))
    note = (
        f"published figures: {PROTOCOL}." if cells else f"no published figures for {group.title}."
    )
    notes = (*table.notes, note)
    return Table(table.title, tuple(header), tuple(map(tuple, lines)), tuple(data), notes)


def key_of(row: Configuration, memory: int | None, scenario: str, metric: str) -> tuple[str, ...]:
    """Return what a row's score is called in Table 1; () where it was none of the paper's."""
    if not as_published(row):
        return ()
    size = "" if row.method in ("finetune", "joint") else str(memory)
    return published_stream(row), SCENARIOS[scenario], size, METHODS.get(row.method, ""), metric


def main_results() -> dict[tuple[str, ...], Published]:
    """Table 1 by benchmark, scenario, memory ("" for none), method and metric, in percent."""
    return {
        (r["benchmark"], r["scenario"], r["memory"], r["method"], r["metric"]): Published(
            float(r["mean"]), float(r["std"]) if r["std"] else None
        )
        for r in rows("main_results")
    }


def published_stream(row: Configuration) -> str:
    """What the paper calls the stream of a row; "" where it was none of the paper's: other data,
    or dealt to tasks in another way, or with wrong labels."""
    spec = row.spec
    name = str(spec["benchmark"])
    dirt = ("label_noise", "labels", "true_label_column", "classes_per_task")
    altered = any(spec.get(name) for name in dirt) or spec["imbalance"] != 1
    altered = altered or spec.get("split_by") not in (None, "class")
    if altered or spec.get("tasks") not in (None, TASKS.get(name)):
        return ""
    return BENCHMARKS.get(name, "")
