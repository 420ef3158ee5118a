"""The paper's claim, decided by the rules of claims.md: differences per stream, and pooled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from metasp.cli.options import OneOf
from metasp.errors import UserError
from metasp.reports.groups import Configuration, Group, group
from metasp.reports.runs import gather
from metasp.reports.significance import holm, interval
from metasp.reports.tables import pipe_table

METASP = {"method": "metasp", "selection": "task-balanced", "method.rule": "released",
          "method.strength": 1.0, "method.shuffle_influence": False}  # fmt: skip
REHSEL = {"method": "metasp-rehsel", "selection": "rehsel", "method.strength": 1.0}
SCHEDULED = "ER at its schedule"
ROWS: dict[str, dict[str, Any]] = {
    "ER": {"method": "er", "selection": "reservoir"},
    SCHEDULED: {"method": "er", "selection": "task-balanced"},
    "MetaSP": METASP,
    "shuffled": METASP | {"method.shuffle_influence": True},
    "as written": METASP | {"method.rule": "as-written"},
    "strength 3": METASP | {"method.strength": 3.0},
    "herding": METASP | {"selection": "herding"},
    "RehSel": REHSEL | {"method.drop": "balanced"},
    "RehSel, as written": REHSEL | {"method.drop": "as-written"},
}
UNNAMED = {"method.drop": "balanced"}  # what runs did that are older than the setting
PRIMARY = (("MetaSP", "shuffled"), ("MetaSP", SCHEDULED))
SECONDARY = (
    ("RehSel, as written", "MetaSP"),
    ("RehSel", "MetaSP"),
    (SCHEDULED, "ER"),
)
FURTHER = (("as written", "MetaSP"), ("strength 3", "MetaSP"), ("herding", "MetaSP"))
METRICS = ("A_inf", "A_m")
LEAST = 0.5  # points: a gain whose interval lies below this does not hold


@dataclass(frozen=True)
class Difference:
    """One row minus another over the seeds that both have, in points."""

    cell: str
    minuend: str
    subtrahend: str
    metric: str
    gaps: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.minuend} − {self.subtrahend}"

    @property
    def mean(self) -> float:
        return float(np.mean(self.gaps))

    @property
    def standard_error(self) -> float:
        return float(np.std(self.gaps, ddof=1) / len(self.gaps) ** 0.5)

    @property
    def p(self) -> float:
        """Return the two-sided p-value of the paired t-test."""
        from scipy import special

        t = abs(self.mean) / self.standard_error
        return 2 * float(special.stdtr(len(self.gaps) - 1, -t))


@dataclass(frozen=True)
class Pooled:
    """A random-effects mean over cells with its 95% interval, and the spread between cells."""

    mean: float
    low: float
    high: float
    between: float
    cells: int


def pooled(means: Sequence[float], errors: Sequence[float]) -> Pooled:
    """Pool the means of cells with their standard errors (DerSimonian and Laird 1986)."""
    effect, variance = np.asarray(means), np.square(errors)
    weight = 1 / variance
    fixed = (weight * effect).sum() / weight.sum()
    # τ² = max(0, (Q − (k − 1)) / (Σw − Σw²/Σw)), Q = Σ w (y − ȳ)²
    q = (weight * (effect - fixed) ** 2).sum()
    scale = weight.sum() - (weight**2).sum() / weight.sum()
    between = max(0.0, float((q - (len(effect) - 1)) / scale)) if len(effect) > 1 else 0.0
    weight = 1 / (variance + between)
    mean = float((weight * effect).sum() / weight.sum())
    half = 1.96 * float(weight.sum() ** -0.5)
    return Pooled(mean, mean - half, mean + half, between**0.5, len(effect))


def rows_of(group: Group) -> dict[str, Configuration]:
    """Return the rows of a cell by their names in claims.md, without those that it has not."""
    rows = {}
    for name, wanted in ROWS.items():
        fitting = [row for row in group.rows if fits(row, wanted)]
        if len(fitting) > 1 and name == SCHEDULED:  # at MetaSP's rate
            rate = {row.spec["lr"] for row in group.rows if fits(row, METASP)}
            fitting = [row for row in fitting if {row.spec["lr"]} == rate]
        if len(fitting) == 1:
            rows[name] = fitting[0]
    return rows


def fits(row: Configuration, wanted: Mapping[str, Any]) -> bool:
    """Return whether a row has these values, by default where its spec has not the field."""
    if row.spec.get("influence") != "none" or row.spec.get("observe"):
        return False
    values = {**UNNAMED, **row.defaults, **row.spec}
    return all(values.get(key) == wanted[key] for key in wanted)


def cell_name(group: Group) -> str:
    """Return the name of a stream with one size of the memory."""
    spec = group.rows[0].spec
    benchmark = Path(str(spec["benchmark"]).removeprefix("arrays:")).stem.removeprefix("split-")
    replay = "" if spec.get("augment_memory") else "replay not augmented"
    epochs = f"{spec['epochs']} epoch{'s' if spec['epochs'] > 1 else ''}"
    size = f"{spec['image_size']} pixels" if spec.get("image_size") else ""
    noise = f"{spec['label_noise']:.0%} wrong labels" if spec.get("label_noise") else ""
    parts = (benchmark, size, f"memory {group.memory}", group.variant, epochs, noise, replay)
    return ", ".join(filter(None, parts))


def differences(tables: Iterable[Path], metric: str = "A_inf") -> list[Difference]:
    """Return the compared differences in class-IL of every cell in which both rows were run."""
    compared = []
    for path in tables:
        for cell in group(gather([path]).records):
            rows = rows_of(cell)
            for first, second in (*PRIMARY, *SECONDARY, *FURTHER):
                if first in rows and second in rows:
                    a, b = (rows[name].scores("class_il", metric) for name in (first, second))
                    gaps = tuple(a[seed] - b[seed] for seed in sorted(a.keys() & b.keys()))
                    if len(gaps) > 1 and np.ptp(gaps) > 0:
                        compared.append(Difference(cell_name(cell), first, second, metric, gaps))
    return compared


def verdict(difference: Difference, corrected: float) -> str:
    """Return what claims.md calls a primary comparison on a stream."""
    _, low, high = interval(difference.gaps) or (0.0, None, None)
    if low is not None and low > 0 and corrected < 0.05:
        return "holds"
    return "does not hold" if high is not None and high < LEAST else "unknown"


def table(compared: Sequence[Difference]) -> pd.DataFrame:
    """Return one row for each difference: interval, p-value, Holm's correction, verdict."""
    rows = []
    for first, second in (*PRIMARY, *SECONDARY, *FURTHER):
        members = [d for d in compared if (d.minuend, d.subtrahend) == (first, second)]
        primary = (first, second) in PRIMARY
        adjusted = holm([d.p for d in members]) if primary else [None] * len(members)
        for d, p in zip(members, adjusted):
            _, low, high = interval(d.gaps) or (d.mean, None, None)
            judged = verdict(d, p) if p is not None else ""
            rows.append({"comparison": d.name, "stream": d.cell, "seeds": len(d.gaps),
                         "difference": d.mean, "low": low, "high": high, "p": d.p,
                         "p (Holm)": p, "claim": judged})  # fmt: skip
    return pd.DataFrame(rows)


def pooled_table(compared: Sequence[Difference]) -> pd.DataFrame:
    """Return the pooled estimate of each comparison over all cells."""
    rows = []
    for first, second in (*PRIMARY, *SECONDARY, *FURTHER):
        members = [d for d in compared if (d.minuend, d.subtrahend) == (first, second)]
        if members:
            over = pooled([d.mean for d in members], [d.standard_error for d in members])
            rows.append({"comparison": f"{first} − {second}", "cells": over.cells,
                         "difference": over.mean, "low": over.low, "high": over.high,
                         "between cells": over.between})  # fmt: skip
    return pd.DataFrame(rows)


@click.command("claim")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--metric", type=OneOf(METRICS), default="A_inf", show_default=True,
              help="Accuracy at the end, or averaged over the stream.")  # fmt: skip
@click.option("--pooled", "only_pooled", is_flag=True, help="Show the pooled estimates alone.")
@click.option("--format", "form", type=OneOf(["markdown", "csv"]), default="markdown",
              show_default=True, help="Format of the output.")  # fmt: skip
@click.option("--figure", type=click.Path(file_okay=False, path_type=Path),
              help="Folder for a figure of the gain over ER in its parts.")  # fmt: skip
def command(
    runs: tuple[Path, ...], metric: str, only_pooled: bool, form: str, figure: Path | None
) -> None:
    """Decide the paper's claim from RUNS, as reproduce/claims.md says: folders of runs, or tables
    of results/."""
    compared = differences(runs, metric)
    if not compared:
        raise UserError(
            "these runs hold no pair of rows that the claim compares: run "
            "`python -m reproduce claim-clinc` first, or name tables of results/."
        )
    if figure is not None:
        from metasp.reports.figures import save
        from reproduce.claim_figure import draw_gain

        save(draw_gain(compared), figure)
    frames = [pooled_table(compared)] if only_pooled else [table(compared), pooled_table(compared)]
    for frame in frames:
        if form == "csv":
            click.echo(frame.to_csv(index=False, float_format="%.4f"))
        else:
            click.echo("\n".join([*markdown(frame), ""]))


def markdown(frame: pd.DataFrame) -> list[str]:
    """Return the lines of a Markdown table: points with a sign, p-values without."""
    cells = frame.astype(object)
    for column in frame.select_dtypes("number"):
        form = {"p": "{:.3f}", "p (Holm)": "{:.3f}", "between cells": "{:.2f}"}.get(
            column, "{:+.2f}"
        )
        if column in ("seeds", "cells"):
            form = "{:.0f}"
        cells[column] = [
            "" if pd.isna(value) else form.format(value).replace("-", "−")
            for value in frame[column]
        ]
    return pipe_table([*cells.columns], cells.to_numpy().tolist())
