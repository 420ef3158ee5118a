"""Labels and domains as numbers from 0, and what each is called."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from metasp.config import is_text
from metasp.errors import UserError


def number_labels(
    values: Sequence[Any],
    names: Sequence[str] | None,
    what: str = "label",
    flag: str = "--label-column",
) -> tuple[list[int], list[str]]:
    """Labels as numbers from 0, and what each is called. Without names the different values are
    the classes, in their own order. `what` they are, and the `flag` that chose them, are for the
    words of a mistake."""
    if names is not None:
        check_names(names)
        for row, value in enumerate(values):
            if not isinstance(value, int) or not 0 <= value < len(names):
                raise UserError(
                    f"row {row} has label {value!r}, out of range: there are {len(names)} "
                    f"classes, numbered from 0 to {len(names) - 1}."
                )
        return [int(value) for value in values], list(names)
    kinds = {type(value) for value in values}
    if not (kinds <= {int, bool} or kinds == {str}):
        raise UserError(
            f"{what}s must be whole numbers or all text, not "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}: store them so, or "
            f"choose another {flag}."
        )
    distinct = sorted(set(values))
    if distinct and isinstance(distinct[0], int) and distinct[0] < 0:
        raise UserError(
            f"row {values.index(distinct[0])} has {what} {distinct[0]}, out of range: {what}s are "
            "numbered from 0."
        )
    index = {value: number for number, value in enumerate(distinct)}
    called = [str(value) for value in distinct]
    check_names(called)
    return [index[value] for value in values], called


def number_domains(values: Sequence[Any]) -> tuple[list[int], list[str]]:
    """The values of a column to split by as numbers from 0, and what each is called."""
    return number_labels(values, None, "domain", "--split-by")


def check_names(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UserError(f"two classes have the same name {twice[0]!r}: rename one of them.")
    for name in names:
        if not is_text(name):
            raise UserError(
                f"the value {name!r} of a label or column contains control characters: rename it."
            )
