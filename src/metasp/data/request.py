"""The part of a spec on which the reading of data depends, and where data is sought; no torch."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from metasp.errors import UserError
from metasp.spec import RunSpec

COLUMN = "column:"


@dataclass(frozen=True)
class Request:
    """How pictures are to come out, and which columns are wanted; None: as the data is. `decode`
    is None where the size of the data is to decide."""

    image_size: int | None = None
    colour: str | None = None
    label_column: str | None = None
    true_label_column: str | None = None
    text_column: str | None = None
    id_column: str | None = None
    test: str | None = None
    decode: str | None = None
    skip_corrupt: bool | None = None
    domain_column: str | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        """Return the request that a spec makes."""
        by = spec.split_by or ""
        # A complete spec says so where it is lazy: if it says nothing, it is not.
        decode = spec.decode if spec.decode != "auto" else "eager" if spec.data_digest else None
        return cls(
            image_size=spec.image_size,
            colour=spec.colour,
            # With a file of labels, the label column is one of the file; what the data has is true.
            label_column=spec.true_label_column if spec.labels else spec.label_column,
            true_label_column=None if spec.labels else spec.true_label_column,
            text_column=spec.text_column,
            id_column=spec.id_column,
            test=spec.test,
            decode=decode,
            skip_corrupt=spec.skip_corrupt or None,
            domain_column=by.removeprefix(COLUMN) if by.startswith(COLUMN) else None,
        )

    def refuse(self, name: str, *allowed: str) -> None:
        """Raise one sentence if something was asked for that a source has no use for."""
        allowed = (*allowed, "domain_column", "test")  # which are checked elsewhere
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in allowed and value not in (None, "eager"):
                flag = f"--{field.name.replace('_', '-')}"
                raise UserError(f"{flag} does not apply to {name}: leave it out.")


def local_folder(data: Path | None, *names: str) -> Path | None:
    """Return the folder of a set under `data`, by one of its names, with or without its owner."""
    if data is None:
        return None
    if not data.is_dir():
        raise UserError(f"{data} is not a folder: name the one that holds the data with --data.")
    for name in names:
        if ".." in name.split("/") or name.startswith("/"):
            raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
    paths = [data / part for name in names for part in (name, name.split("/")[-1])]
    return next((path for path in paths if path.is_dir()), None)


def sought(path: str, data: Path | None, is_there: Callable[[Path], bool]) -> Path:
    """Return the path that a user names: as it stands, or else in the folder of data sets."""
    try:
        here = Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"the home directory in {path} is not known: write the whole path."
        ) from error
    if not is_there(here) and data is not None and not here.is_absolute():
        return data / here
    return here


def sought_file(path: str, data: Path | None, example: str) -> Path:
    """Return the file that a user names, or say how to name one."""
    found = sought(path, data, Path.is_file)
    if not found.is_file():
        raise UserError(f"{path} is not a file: give {example}.")
    return found
