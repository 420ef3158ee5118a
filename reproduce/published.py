"""The published figures."""

import csv
from pathlib import Path

from metasp.reports.configurations import Configuration
from metasp.reports.reference import Published, PublishedScores
from metasp.reports.variants import as_published

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


def published_scores() -> PublishedScores:
    """Table 1, to be set beside our scores."""
    table = main_results()

    def score(
        row: Configuration, memory: int | None, scenario: str, metric: str
    ) -> Published | None:
        if not as_published(row):
            return None
        held = "" if row.method in ("finetune", "joint") else str(memory)
        method = METHODS.get(row.method, "")
        return table.get((published_stream(row), SCENARIOS[scenario], held, method, metric))

    return PublishedScores(score, PROTOCOL)


def main_results() -> dict[tuple[str, str, str, str, str], Published]:
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
