"""What a reader must know to trust a table: the notes under it."""

from collections.abc import Sequence

from metasp.reports.configurations import Configuration, Group
from metasp.reports.reference import USUAL_REFERENCE, Comparison
from metasp.reports.table import BETTER, WORSE

FEW = 5  # seeds; fewer find only large differences


def reference_notes(
    reference: Configuration | None,
    pairs: Sequence[tuple[Configuration, Configuration]],
    how: Comparison,
    family: str,
) -> list[str]:
    """How the rows were tested. `pairs` are rows with what they were compared with; `family` is
    what Holm's correction goes over."""
    if reference is None:
        meant = how.against or USUAL_REFERENCE
        return [f"no tests: no single row of {meant} is here; --against chooses another."]
    common = [(row, len(set(row.seeds) & set(other.seeds))) for row, other in pairs]
    if not any(count > 1 for _, count in common):
        return [f"no tests: no row shares two seeds with {reference.label}."]
    test = "paired t-test over seeds, p < .05"
    if how.holm:
        test += f" after Holm's correction over {family}"
    notes = [f"{BETTER} {reference.label} is significantly better, {WORSE} worse ({test})."]
    return notes + caution([count for _, count in common if count > 1])


def caution(counts: Sequence[int]) -> list[str]:
    """A word where tests rest on few seeds."""
    few = [count for count in counts if count < FEW]
    if not few:
        return []
    how_many = str(min(few)) if min(few) == max(few) else f"{min(few)} to {max(few)}"
    which = "all" if len(few) == len(counts) else f"{len(few)} of {len(counts)}"
    return [
        f"caution: {which} comparisons rest on {how_many} seeds; fewer than five find only large "
        "differences, and their p-values are unreliable."
    ]


def seed_notes(rows: Sequence[Configuration], seeds: Sequence[int], where: str = "") -> list[str]:
    """Which rows lack which seeds, and which were trained without examples."""
    lacking: dict[tuple[int, ...], list[str]] = {}
    notes = []
    for row in rows:
        missing = tuple(seed for seed in seeds if seed not in row.runs)
        if missing:
            lacking.setdefault(missing, []).append(row.label)
    for missing, labels in lacking.items():
        verb = "lacks" if len(labels) == 1 else "lack"
        words = ", ".join(str(seed) for seed in missing)
        plural = "seed" if len(missing) == 1 else "seeds"
        notes.append(f"{where}{listed(labels)} {verb} {plural} {words}: left out of the pairs.")
    for row in rows:
        for seed, run in row.runs.items():
            if not run.result.get("forgotten", {}).get("undisturbed", True):
                notes.append(
                    f"{where}{row.label}, seed {seed}, was trained without the "
                    f"{run.result['forgotten']['examples']} examples that it was told to forget."
                )
    return notes


def listed(labels: Sequence[str], most: int = 8) -> str:
    """Some labels in a row, and how many more there are."""
    more = len(labels) - most
    words = ", ".join(labels[:most])
    return f"{words} and {more} more" if more > 0 else words


def seeds_text(row: Configuration, group: Group) -> str:
    have, all_of = len(row.seeds), len(group.seeds)
    return str(have) if have == all_of else f"{have} of {all_of}"


def version_note(rows: Sequence[Configuration]) -> list[str]:
    """A footnote where the rows were not made by one version of the code."""
    makers: dict[str, list[str]] = {}
    for row in rows:
        for code in sorted({run.code for run in row.runs.values()}):
            makers.setdefault(code, []).append(row.label)
    if len(makers) < 2:
        return []
    who = "; ".join(f"{code}: {listed(labels)}" for code, labels in sorted(makers.items()))
    return [f"made by different versions of metasp ({who})."]
