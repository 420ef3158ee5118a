"""Settings as frozen pydantic models whose mistakes are one plain sentence each, TOML files, and
folders that the environment names."""

import math
import numbers
import os
import tomllib
import typing
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from metasp.errors import UserError, unknown

RUNS, RUNS_VARIABLE = Path("runs"), "METASP_RUNS"
DATA_VARIABLE = "METASP_DATA"
CACHE_VARIABLE = "METASP_CACHE"
PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}

Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""Text without control characters, which could move the cursor of a terminal."""


def setting(
    default: Any,
    help: str,
    *,
    role: str = "",
    owner: str = "",
    protocol: bool = False,
    min: float | None = None,
    max: float | None = None,
    shown_as: str = "",
) -> Any:
    """Declare a field of a `Config` with its default, help and bounds; a `Literal` type gives its
    choices.

    `role`: of a run "data", "labels", "method", "memory", "model", "training", "machine" or
    "seed"; of a method's settings "schedule" where it divides the epochs. `owner`: who gives the
    default where the user gives none, "method", "backbone" or "run". `protocol`: named below a
    table. `shown_as`: how reports name it, where its name will not do; `{}` stands for the
    value."""
    facts: Any = {"role": role, "owner": owner, "protocol": protocol, "shown_as": shown_as}
    facts["least"] = -math.inf if min is None else min
    facts["most"] = math.inf if max is None else max
    if isinstance(default, tuple):  # the bounds of its items, which its type checks
        min = max = None
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
            for name, value in values.items():
                if type(value) not in PLAIN_TYPES:
                    values[name] = plain(value)
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise one_sentence(type(self), error, values) from None

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some values changed, validated anew."""
        return type(self)(**{**self.__dict__, **changes})


def plain(value: Any) -> Any:
    """Turn lists into tuples and NumPy's numbers into Python's."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    is_numpy = isinstance(value, numbers.Number) and hasattr(value, "item")
    return value.item() if is_numpy else value


def is_text(value: str) -> bool:
    """Tell whether it can be stored and shown: a file's name may be bytes that are no text, or
    move the cursor of a terminal."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in value)


@dataclass(frozen=True)
class Declared:
    """A setting as it was declared: its type without None, the values of one that takes one of a
    few, its default, bounds and help, and what else `setting` was given."""

    kind: Any
    choices: tuple[str, ...]
    default: Any
    help: str
    least: float = -math.inf
    most: float = math.inf
    role: str = ""
    owner: str = ""
    protocol: bool = False
    shown_as: str = ""

    @property
    def bounds(self) -> str:
        """The bounds of the number, or of each number of a list, in words; empty without any."""
        if self.least > -math.inf and self.most < math.inf:
            return f"between {self.least:g} and {self.most:g}"
        if self.least > -math.inf:
            return f"at least {self.least:g}"
        return f"at most {self.most:g}" if self.most < math.inf else ""

    @property
    def type_name(self) -> str:
        """The type in words."""
        if self.choices:
            return " or ".join(self.choices)
        is_list = typing.get_origin(self.kind) is tuple
        return TYPE_NAMES.get(self.kind, "a list of numbers" if is_list else "a table")


@cache
def declared(model: type[Config]) -> dict[str, Declared]:
    """Return the settings of a model by name, in the order of their declaration."""
    settings = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if type(None) in typing.get_args(kind):
            kind = typing.get_args(kind)[0]
        if typing.get_origin(kind) is Annotated:
            kind = typing.get_args(kind)[0]
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        facts: Any = field.json_schema_extra or {}
        settings[name] = Declared(kind, choices, field.default, field.description or "", **facts)
    return settings


def fields_with(model: type[Config], **facts: object) -> tuple[str, ...]:
    """Return the names of the settings of which all these facts hold, in their order."""
    names = []
    for name, declaration in declared(model).items():
        if facts.items() <= vars(declaration).items():
            names.append(name)
    return tuple(names)


def defaults(model: type[Config]) -> dict[str, Any]:
    """Return each setting's default by its name."""
    fields: dict[str, FieldInfo] = model.model_fields
    return {name: field.default for name, field in fields.items()}


def one_sentence(
    model: type[Config], error: ValidationError, values: Mapping[str, Any]
) -> UserError:
    """Translate pydantic's first complaint into one sentence with the remedy."""
    first = error.errors(include_url=False)[0]
    cause, complaint = first.get("ctx", {}).get("error"), first["type"]
    if isinstance(cause, UserError):  # of a validator of ours
        return cause
    name = str(first["loc"][0])
    if complaint == "extra_forbidden":
        return unknown("setting", name, model.model_fields)
    declaration, value = declared(model)[name], values[name]
    if complaint == "literal_error":
        return unknown(name, str(value), declaration.choices)
    if complaint in ("greater_than_equal", "less_than_equal"):
        return UserError(f"{name} must be {declaration.bounds}, not {first['input']!r}.")
    if complaint in ("string_pattern_mismatch", "string_unicode"):
        return UserError(f"{name} {value!r} contains control characters: rename what it names.")
    if complaint == "finite_number" or (isinstance(value, int) and abs(value) > 1e300):
        return UserError(f"{name} must be a finite number, not {str(value)[:20]}.")
    return UserError(f"{name} must be {declaration.type_name}, not {value!r}.")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or say in one sentence why it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise UserError(
            f"{path} holds a number that is too long, or lists nested too deeply: shorten them."
        ) from error


def default_runs() -> Path:
    """Return the folder of runs: METASP_RUNS, or `runs` in the working directory."""
    return Path(os.environ.get(RUNS_VARIABLE) or RUNS)


def default_data() -> Path | None:
    """Return the folder of data sets: METASP_DATA, or None."""
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder) if folder else None


def cache_folder() -> Path:
    """Return the folder of decoded data: METASP_CACHE, or the user's own cache folder."""
    from platformdirs import user_cache_path  # only those who decode need it

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("metasp", appauthor=False)
