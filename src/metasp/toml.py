"""TOML files: what is in them, or one sentence about why not; and values as they stand in them."""

import tomllib
from pathlib import Path
from typing import Any

from metasp.errors import UserError


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or one sentence about why there is none."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error


def parse_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source} is not valid TOML: {error}.") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        raise UserError(
            f"{source} holds a number that is too long, or lists nested too deeply: shorten them."
        ) from error
