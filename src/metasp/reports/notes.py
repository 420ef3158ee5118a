"""What a reader must know to trust a table of scores: its protocol, tests, gaps and cautions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metasp.config import fields_with
from metasp.reports.groups import Configuration, Group, Line
from metasp.reports.labels import BY_OWNER, DATA, keeps_memory, phrase, phrase_of
from metasp.reports.significance import DEFAULT_REFERENCE, reference_of
from metasp.spec import RunSpec

PROTOCOL = sorted(fields_with(RunSpec, protocol=True), key=lambda name: name in DATA)
UNREMARKABLE = {"class_order": "fixed", "label_noise_kind": "symmetric", "imbalance": 1,
                "test_every": 1}  # fmt: skip
STEPS = ("rehearse", "influence", "finetune")  # kinds that belong to no phase of a method
BETTER, WORSE = "●", "○"
MARKS = {"reference better": BETTER, "reference worse": WORSE}
FEW = 5  # seeds; fewer show only large differences


@dataclass(frozen=True)
class Comparison:
    """The row that others are compared with, whether marks need corrected p-values, and the
    metrics shown (empty: all)."""

    against: str | None = None
    holm: bool = False
    metrics: tuple[str, ...] = ()


def reference_line(group: Group, how: Comparison) -> Line | None:
    """Return the line that the others are compared with; None where there is none."""
    chosen = reference_of(group.rows, group.title, how.against)
    return next((line for line in group.lines if chosen and line.any is chosen), None)


def notes_of(
    group: Group, how: Comparison, marks: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the notes below a table, and the cautions that belong beside it."""
    rows = group.configurations
    notes = [f"mean ± standard deviation over seeds; {common_ground(rows)}."]
    reference = reference_line(group, how)
    cautions = []
    if reference is None:
        meant = how.against or DEFAULT_REFERENCE
        notes.append(f"no tests: no single row of {meant} is here; --against chooses another.")
    else:
        pairs = pair_counts(group, reference)
        notes.append(marks_note(group, how, reference, pairs, marks))
        cautions += few_seeds_caution(pairs)
    for index, heading in enumerate(group.headings):
        in_column = [line.at[index] for line in group.lines if index in line.at]
        notes += seed_notes(in_column, f"{group.axis} {heading}: " if group.field else "")
    for row in rows:
        if diverged_seeds(row):
            seeds = diverged_seeds(row).replace(" ", ", ")
            cautions.append(
                f"caution: {row.label} diverged with seed {seeds}: its scores say nothing."
            )
    notes += [*choice_notes(group.rows), *schedule_note(group.rows), *version_note(rows)]
    return tuple(notes), tuple(dict.fromkeys(cautions))


def pair_counts(group: Group, reference: Line) -> list[int]:
    """Return the number of seeds that each row shares with the reference, if two or more."""
    counts = []
    for line in group.lines:
        for index, row in line.at.items():
            if line is not reference and index in reference.at:
                counts.append(len({*row.seeds}.intersection(reference.at[index].seeds)))
    return [count for count in counts if count > 1]


def marks_note(
    group: Group, how: Comparison, reference: Line, pairs: Sequence[int], marks: set[str]
) -> str:
    """Say how rows were tested, and what the marks mean that occur."""
    if not pairs:
        return f"no tests: no row shares two seeds with {reference.label}."
    corrected = f" after Holm's correction over {family_of(group)}" if how.holm else ""
    test = f"(paired t-test over seeds, p < .05{corrected})"
    better, worse = f"{BETTER} {reference.label} is significantly better", f"{WORSE} worse"
    if "reference better" in marks:
        return f"{better}{f', {worse}' if 'reference worse' in marks else ''} {test}."
    if "reference worse" in marks:
        return f"{WORSE} {reference.label} is significantly worse {test}."
    return f"no row differs significantly from {reference.label} {test}."


def few_seeds_caution(pairs: Sequence[int]) -> list[str]:
    """Return a caution where comparisons rest on fewer than five seeds."""
    few = [count for count in pairs if count < FEW]
    if not few:
        return []
    count = str(min(few)) if min(few) == max(few) else f"{min(few)} to {max(few)}"
    which = "all" if len(few) == len(pairs) else f"{len(few)} of {len(pairs)}"
    return [
        f"caution: {which} comparisons rest on {count} seeds; fewer than five find only large "
        "differences, and their p-values are unreliable."
    ]


def family_of(group: Group) -> str:
    """Return what Holm's correction goes over."""
    return "the table" if group.field else "the column"


def seed_notes(rows: Sequence[Configuration], where: str) -> list[str]:
    """Say which rows lack which seeds."""
    seeds: set[int] = set()
    seeds = seeds.union(*(row.seeds for row in rows))
    lacking = labels_by(rows, lambda row: tuple(sorted(seeds.difference(row.seeds))) or None)
    notes = []
    for missing, labels in lacking.items():
        verb = "lacks" if len(labels) == 1 else "lack"
        plural = "seed" if len(missing) == 1 else "seeds"
        numbers = ", ".join(map(str, missing))
        notes.append(f"{where}{listed(labels)} {verb} {plural} {numbers}: left out of the pairs.")
    return notes


def labels_by(
    rows: Iterable[Configuration], trait: Callable[[Configuration], Any]
) -> dict[Any, list[str]]:
    """Return the labels of rows by a trait of theirs; None counts as no trait."""
    labels: dict[Any, list[str]] = {}
    for row in rows:
        value = trait(row)
        if value is not None:
            labels.setdefault(value, []).append(row.label)
    return labels


def choice_notes(rows: Sequence[Configuration]) -> list[str]:
    """Say in what rows differ because their methods choose it, such as the learning rate."""
    notes = []
    for key in BY_OWNER:
        labels = labels_by(rows, lambda row: row.spec.get(key))  # noqa: B023
        if len(labels) < 2 or key == "selection":  # labels name one that is not the method's own
            continue
        commonest = max(labels, key=lambda value: len(labels[value]))
        name, phrases = phrase_of(key), []
        for value in sorted(labels):
            unsaid = [label for label in labels[value] if f"{name} {value}" not in label]
            if unsaid and value != commonest:
                phrases.append(f"{value:g} for {listed(unsaid)}")
        if phrases:
            notes.append(f"{name} is {commonest:g}, but {'; '.join(phrases)}.")
    return notes


def schedule_note(rows: Sequence[Configuration]) -> list[str]:
    """Say which rows rehearse in which epochs, where they differ: they are not like with like."""
    schedules = labels_by([row for row in rows if keeps_memory(row.spec)], schedule_of)
    if len(schedules) < 2:
        return []
    in_every_epoch = schedules.pop("", [])
    phrases = [f"{listed(labels)}: {schedule}" for schedule, labels in schedules.items()]
    if in_every_epoch:
        phrases.append("the others rehearse in every epoch")
    return [f"schedules differ: {'; '.join(phrases)}."]


def version_note(rows: Sequence[Configuration]) -> list[str]:
    """Say so where rows were not made by one version of the code."""
    makers: dict[str, list[str]] = {}
    for row in rows:
        for code in sorted({run.code for run in row.runs.values()}):
            makers.setdefault(code, []).append(row.label)
    if len(makers) < 2:
        return []
    versions = "; ".join(f"{code}: {listed(labels)}" for code, labels in sorted(makers.items()))
    return [f"made by different versions of metasp ({versions})."]


def common_ground(rows: Sequence[Configuration]) -> str:
    """Return the protocol that all rows of a table share, in words."""
    shared = []
    for key in PROTOCOL:
        values = {repr(row.spec.get(key)): row.spec.get(key) for row in rows}
        value = next(iter(values.values()))
        if len(values) == 1 and value and value != UNREMARKABLE.get(key):
            shared.append(phrase(key, value))
    # Replaying augmented pictures is worth more than most methods: named in every table.
    augmented = {row.spec.get("augment_memory") for row in rows if keeps_memory(row.spec)}
    if len(augmented) == 1:
        shared.append(f"augment_memory {str(augmented.pop()).lower()}")
    return ", ".join(shared)


def schedule_of(row: Configuration) -> str:
    """Say in which epochs of a task old examples are rehearsed; "" for all, or without memory."""
    if not keeps_memory(row.spec):
        return ""
    steps: Mapping[str, Any] = row.record.result["seconds"].get("steps", {})
    phases = sorted(set(steps).difference(STEPS))
    if phases:
        return f"trains in phases of its own ({', '.join(phases)})"
    epochs, last = row.spec["epochs"], row.spec.get("rehearse_last", row.spec["epochs"])
    if row.spec["influence"] == "none":  # else the schedule is that of influence
        for key, default in row.defaults.items():
            if key.startswith("schedule."):
                last = row.spec.get(f"method.{key.removeprefix('schedule.')}", default)
    return "" if last == epochs else f"rehearses in the last {last} of {epochs} epochs of a task"


def listed(labels: Sequence[str], most: int = 8) -> str:
    """Return some labels in a row, and how many more there are."""
    more = len(labels) - most
    return ", ".join(labels[:most]) + (f" and {more} more" if more > 0 else "")


def diverged_seeds(row: Configuration) -> str:
    """Return the seeds of the runs that diverged, separated by spaces."""
    return " ".join(str(seed) for seed in row.seeds if row.runs[seed].diverged)
