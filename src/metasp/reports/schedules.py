"""When a row rehearses: two methods with different schedules are not compared like with like."""

from collections.abc import Mapping, Sequence
from typing import Any

from metasp.reports.configurations import Configuration
from metasp.reports.names import keeps_memory

WITHOUT_MEMORY = ("finetune", "plain")  # kinds of steps that rehearse nothing; plain: older runs
USUAL = ("rehearse", "influence", *WITHOUT_MEMORY)
SIGNS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def schedule_of(row: Configuration) -> str:
    """In which epochs of a task old examples are rehearsed, in words; "" in every one, or where
    there is no memory."""
    if not keeps_memory(row.spec):
        return ""
    run = next(iter(row.runs.values()))
    steps: Mapping[str, Any] = run.result["seconds"].get("steps", {})
    own = sorted(kind for kind in steps if kind not in USUAL)
    if own:
        return f"trains in phases of its own ({', '.join(own)})"
    epochs, last = row.spec.get("epochs"), last_epochs(row)
    if last is not None and last != epochs:
        return f"rehearses in the last {last} of {epochs} epochs of a task"
    if last is None and any(steps.get(kind) for kind in WITHOUT_MEMORY):
        return "rehearses in some of its epochs only"
    return ""


def last_epochs(row: Configuration) -> int | None:
    """The number of epochs at the end of a task in which old examples are rehearsed; None where
    the stored spec does not say."""
    if row.spec["influence"] == "none":  # whose epochs are not those of rehearsal
        for key, default in row.defaults.items():
            if key.startswith("schedule."):
                return int(row.spec.get(f"method.{key.removeprefix('schedule.')}", default))
    value = row.spec.get("rehearse_last", row.spec.get("epochs"))
    return None if value is None else int(value)


def schedule_marks(rows: Sequence[Configuration]) -> tuple[dict[str, str], list[str]]:
    """A sign for each row that does not rehearse in every epoch, by its label, and a note on the
    signs; nothing where all rows of a table have one schedule."""
    schedules = {row.label: schedule_of(row) for row in rows if keeps_memory(row.spec)}
    if len(set(schedules.values())) < 2:
        return {}, []
    kinds = list(dict.fromkeys(words for words in schedules.values() if words))
    signs = {words: str(number).translate(SIGNS) for number, words in enumerate(kinds, 1)}
    marks = {label: signs[words] for label, words in schedules.items() if words}
    told = "; ".join(f"{sign} {words}" for words, sign in signs.items())
    note = f"schedules differ: {told}"
    if "" in schedules.values():
        note += "; rows without a sign rehearse in every epoch"
    return marks, [f"{note}."]
