"""Where data is kept on this machine, told without reading any of it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from metasp.benchmarks.request import Request
from metasp.errors import UserError
from metasp.folders import cache_folder


def is_cached(identity: Mapping[str, Any]) -> bool:
    """Whether a decoded copy exists; it is not checked here."""
    return (cache_folder() / f"{digest_of(identity)[:24]}.json").is_file()


def hub_identity(name: str, request: Request) -> dict[str, Any]:
    return {"hub": name, **wanted(request)}


def wanted(request: Request) -> dict[str, Any]:
    """What a decoded copy depends on besides the data."""
    return {
        key: value
        for key, value in asdict(request).items()
        if value is not None and key != "decode"
    }


def local_folder(data: Path | None, *names: str) -> Path | None:
    """The folder of a set under `data`, by one of its names, with or without its owner."""
    if data is None:
        return None
    if not data.is_dir():
        raise UserError(f"{data} is not a folder: name the one that holds the data with --data.")
    for name in names:
        if ".." in name.split("/") or name.startswith("/"):
            raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
    places = [data / part for name in names for part in (name, name.split("/")[-1])]
    return next((place for place in places if place.is_dir()), None)


def own_place(path: str, data: Path | None, is_there: Callable[[Path], bool]) -> Path:
    """What a user's path names: as it stands, or else in the folder of data sets."""
    try:
        place = Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"the home directory in {path} is not known: write the whole path."
        ) from error
    if not is_there(place) and data is not None and not place.is_absolute():
        return data / place
    return place


def digest_of(value: Any) -> str:
    """SHA-256 of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
