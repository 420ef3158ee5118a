"""Settings as frozen pydantic models whose mistakes are one plain sentence each."""

import math
import numbers
import typing
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from metasp.errors import UserError, unknown

LARGEST = 1e30  # what is computed with in single precision must not overflow there


def setting(
    default: Any,
    help: str,
    *,
    role: str = "",
    owner: str = "",
    protocol: bool = False,
    min: float | None = None,
    max: float | None = None,
    words: str = "",
) -> Any:
    """Declare a field of a `Config` with its default, help and bounds; a `Literal` type gives its
    choices.

    `role`: of a run "data", "labels", "method", "memory", "model", "training", "machine" or
    "seed"; of a method's settings "schedule" where it divides the epochs. `owner`: who gives the
    default where the user gives none, "method", "backbone" or "run". `protocol`: named below a
    table. `words`: how reports name it, where its name will not do; `{}` stands for the value."""
    facts: dict[str, Any] = {"role": role, "owner": owner, "protocol": protocol, "words": words}
    return Field(default, description=help, ge=min, le=max, json_schema_extra=facts)


class Config(BaseModel):
    """A frozen set of settings: types are not converted, unknown names are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),
    )

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, **values: Any) -> None:
            plain_values = {name: plain(value) for name, value in values.items()}
            try:
                super().__init__(**plain_values)
            except ValidationError as error:
                raise one_sentence(type(self), error, plain_values) from None

    @field_validator("*", mode="after")
    @classmethod
    def _check_value(cls, value: Any, info: Any) -> Any:
        """Refuse text that cannot be shown and numbers that overflow in single precision."""
        if isinstance(value, str) and not is_text(value):
            raise UserError(
                f"{info.field_name} {value!r} contains control characters: rename what it names."
            )
        if isinstance(value, float) and abs(value) > LARGEST:
            raise UserError(f"{info.field_name} must be at most {LARGEST:g} in size, not {value}.")
        return value

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some values changed, validated anew."""
        return type(self)(**{**self.__dict__, **changes})


def plain(value: Any) -> Any:
    """Turn lists into tuples and NumPy's numbers into Python's."""
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def is_text(value: str) -> bool:
    """Tell whether it can be stored and shown: a file's name may be bytes that are no text, or
    move the cursor of a terminal."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in value)


def one_sentence(
    model: type[Config], error: ValidationError, values: Mapping[str, Any]
) -> UserError:
    """Translate pydantic's first complaint into one sentence with the remedy."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):  # of a validator of ours
        return cause
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return unknown("setting", name, model.model_fields)
    field, value = model.model_fields[name], values[name]
    if first["type"] == "literal_error":
        return unknown(name, str(value), choices(field))
    if first["type"] in ("greater_than_equal", "less_than_equal"):
        return UserError(f"{name} must be {bounds_of(field)}, not {first['input']!r}.")
    if first["type"] == "finite_number" or is_huge(value):
        return UserError(f"{name} must be a finite number, not {str(value)[:20]}.")
    wanted = " or ".join(type_words(kind) for kind in kinds(field) if kind is not type(None))
    return UserError(f"{name} must be {wanted}, not {value!r}.")


def is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > 1e300


def kinds(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types that a field takes."""
    union = typing.get_origin(field.annotation) not in (None, tuple, typing.Literal)
    inner = typing.get_args(field.annotation)
    return inner if union and type(None) in inner else (field.annotation,)


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values of a field that takes one of a few; empty for any other."""
    literals = [kind for kind in kinds(field) if typing.get_origin(kind) is typing.Literal]
    return typing.get_args(literals[0]) if literals else ()


def bounds(field: FieldInfo) -> tuple[float, float]:
    """Return the least and the largest number that a field, or each item of it, takes."""
    facts = [*field.metadata]
    for inner in typing.get_args(field.annotation):
        for marked in getattr(inner, "__metadata__", ()):
            facts += getattr(marked, "metadata", [marked])
    low = next((fact.ge for fact in facts if hasattr(fact, "ge")), -math.inf)
    high = next((fact.le for fact in facts if hasattr(fact, "le")), math.inf)
    return low, high


def bounds_of(field: FieldInfo) -> str:
    """Describe a field's bounds; empty where it has none."""
    low, high = bounds(field)
    if low > -math.inf and high < math.inf:
        return f"between {low:g} and {high:g}"
    if low > -math.inf:
        return f"at least {low:g}"
    return f"at most {high:g}" if high < math.inf else ""


def type_words(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(typing.get_args(kind))
    return names.get(kind, "a list of numbers" if typing.get_origin(kind) is tuple else "a table")


def facts_of(field: FieldInfo) -> Mapping[str, Any]:
    """Return what a setting was declared with beside its type, bounds and default."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def fields_with(model: type[Config], **facts: object) -> tuple[str, ...]:
    """Return the names of the fields of which all these facts are so, as they are declared."""
    return tuple(
        name
        for name, field in model.model_fields.items()
        if all(facts_of(field).get(fact) == value for fact, value in facts.items())
    )


def defaults(model: type[Config]) -> dict[str, Any]:
    """Return each field's default by its name."""
    return {name: field.default for name, field in model.model_fields.items()}
