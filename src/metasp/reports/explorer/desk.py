"""Where the verdicts of a served page go: a CSV file in the run's folder, which
`metasp run --verified` takes. What arrives is believed only as far as it can be checked."""

import csv
import io
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasp.corrections import as_cell, class_of, read_rows, words
from metasp.errors import UserError
from metasp.store.files import sha256, write_atomic

BYTES = 4_000_000  # of a request: 100,000 verdicts and more

Verdicts = list[tuple[int, int | None]]
"""Ids with the class that each is; None: its label is wrong, and nobody knows what it is."""


@dataclass(frozen=True)
class Drawer:
    """The verdicts about one run: their file, the class of each id that there is, all classes;
    `shown` is the file as a person at the terminal would name it."""

    path: Path
    labels: Mapping[int, int]
    class_names: tuple[str, ...]
    shown: str

    def version(self) -> str:
        """What tells one state of the file from another."""
        return sha256(self.path.read_bytes()) if self.path.is_file() else ""

    def saved(self) -> Verdicts:
        """What the file holds, or one sentence about what is amiss with it."""
        if not self.path.exists():
            return []
        rows = read_rows(self.path, len(self.labels), ("label",))
        strangers = [identity for identity in rows if identity not in self.labels]
        if strangers:
            raise UserError(f"{self.path} has {words(strangers)}, which this run does not have.")
        number = {
            cell: class_of(cell, self.class_names, self.path) for cell in {*rows.values()} - {""}
        }
        return [(identity, number.get(cell)) for identity, cell in rows.items()]

    def save(self, verdicts: Verdicts) -> None:
        """Write the file anew, in one step."""
        text = as_csv(verdicts, self.labels, self.class_names)
        try:
            content = text.encode()
        except UnicodeEncodeError as error:  # from the name of a folder whose bytes are no text
            raise UserError(
                "a class has a name that is not UTF-8 text, and cannot be saved: rename it."
            ) from error
        write_atomic(self.path, content, private=True)


@dataclass(frozen=True)
class Desk:
    """What a served page may save, for who knows the token that only the page holds."""

    drawers: Mapping[str, Drawer]  # by the name of the run
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def told(self) -> dict[str, Any]:
        """What the page must know: the token, and of each run what is saved already."""
        runs = {}
        for name, drawer in self.drawers.items():
            saved, amiss = [], None
            try:
                saved = drawer.saved()
            except UserError as error:
                amiss = str(error)
            about = {"file": drawer.shown, "version": drawer.version(), "amiss": amiss}
            runs[name] = {**about, "saved": saved}
        return {"token": self.token, "runs": runs}

    def take(self, content: bytes) -> dict[str, Any]:
        """Save what a request holds, or one sentence about why not."""
        try:
            said = json.loads(content)
            name, version, rows = said["run"], said["version"], said["verdicts"]
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise UserError("the request is not a run's verdicts as JSON.") from error
        drawer = self.drawers.get(name) if isinstance(name, str) else None
        if drawer is None:
            raise UserError("this page is not of that run: load it again.")
        verdicts = checked(rows, drawer)
        with self._writing:
            drawer.saved()  # what a person has edited and we cannot read is not written over
            if version != drawer.version():
                raise UserError(
                    f"{drawer.shown} was changed since this page read it: load the page again, "
                    "which adds your verdicts to what is there."
                )
            drawer.save(verdicts)
            return {"saved": len(verdicts), "version": drawer.version()}


def checked(rows: Any, drawer: Drawer) -> Verdicts:
    """Pairs of an id and a class or None, each id once and among those that there are."""
    if not isinstance(rows, list):
        raise UserError("verdicts are a list.")
    found: dict[int, int | None] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and type(row[0]) is int):
            raise UserError("a verdict is an id and a class.")
        identity, label = row
        if identity not in drawer.labels:
            raise UserError(f"there is no {words([identity])} in this run.")
        if not (label is None or (type(label) is int and 0 <= label < len(drawer.class_names))):
            raise UserError(f"the verdict about {words([identity])} names an unknown class.")
        if identity in found:
            raise UserError(f"there are two verdicts about {words([identity])}.")
        found[identity] = label
    return list(found.items())


def as_csv(verdicts: Verdicts, labels: Mapping[int, int], names: Sequence[str]) -> str:
    """Verdicts by id, with the class that each example was given before: classes by their names,
    in cells that no spreadsheet takes for a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(["id", "label", "was"])
    for identity, label in sorted(verdicts):
        cells = [
            None if each is None else as_cell(names[each]) for each in (label, labels[identity])
        ]
        writer.writerow([identity, *cells])
    return out.getvalue()
