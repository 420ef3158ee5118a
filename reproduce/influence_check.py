"""python -m reproduce influence-check: the paper's approximation table, measured here."""

import json
import math
import statistics
from dataclasses import asdict, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from metasp.cli.options import data_option, json_option
from metasp.cli.terminal import typed
from metasp.errors import UserError

EXAMPLES = """
\b
Examples:
  python -m reproduce influence-check
  python -m reproduce influence-check --data DIR --figure check.png
  python -m reproduce influence-check --json > check.json
"""
SUFFIXES = (".png", ".svg")


def finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A range without an upper end lets these through."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", ctx, param)
    return value


def drawable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Said before anything is measured."""
    if value is not None and (value.suffix.lower() not in SUFFIXES or not value.parent.is_dir()):
        raise click.BadParameter(
            f"{value} is not a PNG or SVG file in a folder that exists.", ctx, param
        )
    return value


@click.command("influence-check", epilog=EXAMPLES)
@data_option
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of nets, with seeds from 1231 on.",
)
@click.option(
    "--damping",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    default=3.0,
    show_default=True,
    help="Damping λ of the exact influence; MetaSP's steps follow αK = 1/λ.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Pseudo steps K."
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=drawable,
    help="Draw the dependence on λ and K into this file (PNG or SVG).",
)
@json_option
def command(
    data: Path | None,
    seeds: int,
    damping: float,
    steps: int,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Compare the signs of Larsen's, Luketina's, Neumann's and MetaSP's influence with the exact
    Hessian influence: on 1000 Fashion-MNIST examples if --data has them, else on the digits."""
    from reproduce.approximation import influence_check, render

    what, (x, y, goal_x, goal_y) = examples(data)
    with Console(stderr=True).status(f"checking influence on {what}, {seeds} seeds …"):
        check = influence_check(
            x,
            y,
            goal_x,
            goal_y,
            seeds=tuple(range(1231, 1231 + seeds)),
            damping=damping,
            steps=steps,
        )
    if as_json:
        print(json.dumps({"data": what, "methods": mean_counts(check), **asdict(check)}))
    else:
        print(f"data: {what}")
        for line in render(check):
            print(line)
    if figure is not None:
        draw(check, what, figure)
        if not as_json:
            print(f"figure: {figure}")


def examples(data: Path | None, count: int = 1000) -> tuple[str, tuple[Any, ...]]:
    """The first `count` training and 500 test examples, pixels from 0 to 1."""
    import torch

    from metasp.data import load_source
    from metasp.spec import RunSpec
    from metasp.trees import one_tensor

    if data is not None and typed("data") and not (data / "fashion_mnist").is_dir():
        raise UserError(
            f"{data} has no folder fashion_mnist: give the folder that holds it, or leave out "
            "--data."
        )
    found = data is not None and (data / "fashion_mnist").is_dir()
    name = "split-fashion-mnist" if found else "split-digits"
    source = load_source(RunSpec(benchmark=name), data)
    train = source.train.take(torch.arange(min(count, len(source.train))))
    test = source.test.take(torch.arange(min(500, len(source.test))))
    pictures = (one_tensor(part.inputs, name) / 255 for part in (train, test))
    arrays = (next(pictures), train.labels, next(pictures), test.labels)
    return f"{source.name}, {train.size} training and {test.size} test examples", arrays


def mean_counts(check: Any) -> list[dict[str, Any]]:
    """One row of the table per method: counts averaged over the seeds, to whole examples."""
    rows = []
    for method, counts in check.counts.items():
        names = [entry.name for entry in fields(counts[0])]
        means = [statistics.mean(getattr(c, name) for c in counts) for name in names]
        # Sums are rounded, not the means, which would no longer add up to the examples.
        ends = [round(end) for end in accumulate(means, initial=0)]
        whole = dict(zip(names, [b - a for a, b in pairwise(ends)]))
        rows.append({"method": method, "examples": ends[-1], **whole})
    return rows


def draw(check: Any, what: str, path: Path) -> None:
    """Agreement against K, one line per method and damping."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = {1.0: "#0072B2", 3.0: "#D55E00", 10.0: "#009E73"}
    for method, style in (("MetaSP", "o-"), ("Neumann", "s--")):
        for damping in sorted({point.damping for point in check.dependence}):
            points = [p for p in check.dependence if (p.method, p.damping) == (method, damping)]
            points.sort(key=lambda point: point.steps)
            axes.errorbar(
                [p.steps for p in points],
                [100 * statistics.mean(p.agreement) for p in points],
                [
                    100 * statistics.stdev(p.agreement) if len(p.agreement) > 1 else 0
                    for p in points
                ],
                fmt=style,
                color=colours.get(damping, "#555555"),
                label=f"{method}, λ = {damping:g}",
                capsize=2,
            )
    axes.set_xscale("log")
    axes.set_xticks(steps := sorted({p.steps for p in check.dependence}), [str(k) for k in steps])
    axes.set_xlabel("steps K, with αK = 1/λ")
    axes.set_ylabel("signs that agree with the exact influence, %")
    axes.set_title(what, fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot draw {path}: {error}; name a .png or .svg file in a folder that exists."
        ) from error
