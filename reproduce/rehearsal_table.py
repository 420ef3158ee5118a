"""What the memory keeps: RehSel and its ablations, beside the published ones."""

from metasp.errors import UserError
from metasp.metrics import METRICS, SCENARIO_WORDS
from metasp.reports.groups import Configuration, Group, seeds_text, settings_as_published
from metasp.reports.notes import common_ground, version_note
from metasp.reports.significance import summarise
from metasp.reports.tables import Cell, Table, plus_minus, signed
from reproduce.published import SCENARIOS, published_stream, rows

ABLATIONS = ("random", "rehsel-without-cluster", "rehsel-without-influence", "rehsel")
PUBLISHED_MEMORY = 500


def rehearsal_tables(groups: list[Group]) -> list[Table]:
    """Two tables, class-IL and task-IL, of each group that has ablations."""
    tables = [
        rehearsal_table(group, scenario)
        for group in groups
        if ablations(group)
        for scenario in SCENARIOS
    ]
    if not tables:
        raise UserError(
            f"no MetaSP runs with a selection of {', '.join(ABLATIONS)} here: "
            "`python -m reproduce rehearsal-small` makes them."
        )
    return tables


def ablations(group: Group) -> list[Configuration]:
    found = [
        row
        for row in group.rows
        if row.method.startswith("metasp") and row.spec.get("selection") in ABLATIONS
    ]
    return sorted(found, key=lambda row: (ABLATIONS.index(row.spec["selection"]), row.label))


def rehearsal_table(group: Group, scenario: str) -> Table:
    """Show the scores of each selection beside the published ones, where the stream is theirs."""
    figures = {
        (r["benchmark"], r["scenario"], r["selection"]): r for r in rows("rehearsal_selection")
    }
    metrics = [name for name in METRICS if name in next(iter(figures.values()))]
    place = (published_stream(group.rows[0]), SCENARIOS[scenario])
    known = group.memory == PUBLISHED_MEMORY and any(key[:2] == place for key in figures)
    chosen = ablations(group)
    names = [row.spec["selection"] for row in chosen]
    lines, data = [], []
    for row, name in zip(chosen, names):
        label = name if names.count(name) == 1 else f"{name}: {row.label}"
        line = [Cell(label), Cell(seeds_text(row, group))]
        for metric in metrics:
            summary = summarise(list(row.scores(scenario, metric).values()))
            mean = summary.mean if summary else None
            line.append(Cell(plus_minus(mean, summary.std if summary else None)))
            ours = known and settings_as_published(row)
            figure = float(figures[(*place, name)][metric]) if ours else None
            if known:
                gap = (
                    f" ({signed(mean - figure)})" if mean is not None and figure is not None else ""
                )
                line.append(Cell("" if figure is None else f"{figure:.2f}{gap}"))
            data.append(
                {
                    "benchmark": group.benchmark,
                    "memory": group.memory,
                    "data": group.variant,
                    "scenario": SCENARIO_WORDS[scenario],
                    "label": label,
                    "metric": metric,
                    "mean": mean,
                    "std": summary.std if summary else None,
                    "seeds": len(row.seeds),
                    "published": figure,
                }
            )
        lines.append(tuple(line))
    header = ["memory keeps", "seeds"]
    for metric in metrics:
        header += [METRICS[metric].name, *(["published (difference)"] if known else [])]
    notes = [f"mean ± standard deviation over seeds; {common_ground(chosen)}."]
    notes += [f"no published figures for {group.title}."] if not known else []
    title = f"{group.title}: what the memory keeps, {SCENARIO_WORDS[scenario]}, %"
    notes += version_note(tuple(chosen))
    return Table(title, tuple(header), tuple(lines), tuple(data), tuple(notes))
