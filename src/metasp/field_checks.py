"""A field of a settings dataclass checked against its annotation, bounds and choices."""

import math
import numbers
import types
import typing
import unicodedata
from collections.abc import Callable
from dataclasses import Field
from functools import cache
from typing import Any

from metasp.errors import UserError, unknown

LARGEST = 1e30  # what is computed with in single precision must not overflow there


def validate_field(owner: Any, entry: "Field[Any]") -> None:
    """Check one field of a settings dataclass against its annotation, bounds and choices."""
    value, about = getattr(owner, entry.name), entry.metadata
    kinds = field_types(type(owner))[entry.name]
    if isinstance(value, numbers.Number) and hasattr(value, "item"):  # one of numpy's
        value = value.item()
        object.__setattr__(owner, entry.name, value)
    if isinstance(value, list):
        value = frozen(value)
        object.__setattr__(owner, entry.name, value)
    if value is None and type(None) in kinds:
        return
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        object.__setattr__(owner, entry.name, value)
    if not any(_is_a(value, kind) for kind in kinds):
        wanted = " or ".join(_words(kind) for kind in kinds if kind is not type(None))
        raise UserError(f"{entry.name} must be {wanted}, not {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{entry.name} must be a finite number, not {value}.")
    if isinstance(value, float) and abs(value) > LARGEST:
        raise UserError(f"{entry.name} must be at most {LARGEST:g} in size, not {value}.")
    if isinstance(value, str) and not is_text(value):
        raise UserError(
            f"{entry.name} {value!r} contains control characters: rename what it names."
        )
    if about.get("choices") and value not in about["choices"]:
        raise unknown(entry.name, str(value), about["choices"])
    low, high = about.get("min"), about.get("max")
    for number in value if isinstance(value, tuple) else (value,):
        if (low is not None and number < low) or (high is not None and number > high):
            bounds = f"at least {low:g}" if low is not None else f"at most {high:g}"
            if low is not None and high is not None:
                bounds = f"between {low:g} and {high:g}"
            raise UserError(f"{entry.name} must be {bounds}, not {number!r}.")


def is_text(value: str) -> bool:
    """Whether it can be stored and shown: a file's name may be bytes that are no text, or move
    the cursor of a terminal."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in value)


def _field_types(owner: type) -> dict[str, tuple[Any, ...]]:
    """The alternatives each field's annotation allows, by name."""
    hints = typing.get_type_hints(owner)
    unions = (typing.Union, types.UnionType)
    return {
        name: typing.get_args(hint) if typing.get_origin(hint) in unions else (hint,)
        for name, hint in hints.items()
    }


# Resolving the annotations of a spec takes longer than all else that is done with one.
field_types: Callable[[type], dict[str, tuple[Any, ...]]] = cache(_field_types)


def _is_a(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        return isinstance(value, tuple) and all(_is_a(item, inner) for item in value)
    if origin in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, origin if isinstance(origin, type) else object)


def _words(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(kind, "a list of numbers" if typing.get_origin(kind) is tuple else "a table")


def frozen(value: Any) -> Any:
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value
