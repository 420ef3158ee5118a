"""The page: records and pictures in, one HTML file out, which asks nothing of the network."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metasp.metrics import METRICS
from metasp.reports.changes import refuse_other_data
from metasp.reports.explorer.pictures import Material, neighbours, packed, short
from metasp.reports.explorer.points import ids_to_show
from metasp.reports.explorer.records import Record, read_run, score_columns
from metasp.store import RunDir

if TYPE_CHECKING:
    import pandas as pd

SCRIPTS = (
    "base.js",
    "tiles.js",
    "charts.js",
    "summary.js",
    "map.js",
    "gallery.js",
    "suspects.js",
    "verdicts.js",
    "verify.js",
    "memory.js",
    "scores.js",
    "compare.js",
    "main.js",
)
LIBRARY = "vendor/echarts.common.min.js"
SURE = 3  # examples of each class that are likely right, among the suspects to verify
NOWHERE: Mapping[int, str] = MappingProxyType({})


class Place(NamedTuple):
    """A run as a person at the terminal names it: its folder, and the command that runs it again,
    but for what was verified since; both empty for what no command runs."""

    folder: str
    again: str


@dataclass(frozen=True)
class Built:
    """The page and what it holds."""

    content: bytes
    shown: int
    examples: int
    title: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    sheets: Sequence[str] = ()
    labels: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # of all ids, by run
    class_names: tuple[str, ...] = ()

    def served(self) -> tuple[bytes, bytes]:
        """The page around what the server tells it, which is `embedded` between the two."""
        mark = "\0"
        before, after = assembled(self.title, self.data, self.sheets, served=mark).split(mark)
        return before.encode(), after.encode()

    def names(self) -> tuple[str, ...]:
        """The classes as files name them: by numbers, where nobody knows their names."""
        labels = chain.from_iterable(of_task.values() for of_task in self.labels.values())
        return self.class_names or tuple(map(str, range(max(labels, default=-1) + 1)))


def build_page(
    runs: Sequence[RunDir],
    material: Material,
    class_names: Sequence[str] = (),
    limit: int = 10_000,
    places: Sequence[Place] = (),
    origins: Mapping[int, str] = NOWHERE,
    sure: int = SURE,
) -> Built:
    """The explorer of one run, or of two to compare. Examples beyond `limit` are only counted.
    `places` say where each of the runs is, and how it is run again; `origins` name the file or
    the row of examples, by id."""
    records = [read_run(run) for run in runs]
    refuse_other_data([record.spec for record in records if record.spec is not None])
    where = places or [Place("RUN", "metasp run --spec RUN/spec.toml")] * len(records)
    return page_of(records, material, class_names, limit, where, origins, sure)


def page_of(
    records: Sequence[Record],
    material: Material,
    class_names: Sequence[str],
    limit: int,
    places: Sequence[Place],
    origins: Mapping[int, str] = NOWHERE,
    sure: int = SURE,
) -> Built:
    """The page of what has been read. `sure` examples of each class that are likely right are asked
    about among the suspects."""
    import pandas as pd

    measured = pd.concat([record.points for record in records], ignore_index=True)
    first = [*chain.from_iterable(record.worth_a_look for record in records)]
    scored = np.concatenate([record.scores.scores.ids for record in records])
    shown = ids_to_show(measured, first, scored, limit)
    everything = len(np.unique(np.concatenate([measured.id, scored, *first])))
    visible = material.only(shown)
    pictures, sheets = packed(visible)
    near, twins = neighbours(visible)
    names = next((r.class_names for r in records if r.class_names), tuple(map(str, class_names)))
    data = {
        "classes": list(names),
        "numbers": any(record.scores.scores.of_numbers for record in records),
        "metrics": [
            {"key": key, "name": m.name, "words": m.words, "help": m.help, "change": m.change}
            for key, m in METRICS.items()
        ],
        "pictures": pictures,
        "near": list(near.items()),
        "twins": twins,
        "sure": sure,
        "origins": [(i, origins[i]) for i in shown.tolist() if i in origins],
        "examples": everything,
        "shown": len(shown),
        "runs": [told(record, shown, place) for record, place in zip(records, places)],
    }
    title = " and ".join(str(record.about["method"]) for record in records)
    content = assembled(title, data, sheets).encode()
    labels = {record.name: record.labels for record in records}
    return Built(content, len(shown), everything, title, data, sheets, labels, names)


def told(record: Record, shown: np.ndarray[Any, Any], place: Place) -> dict[str, Any]:
    """One run as the page's script reads it."""
    here = set(shown.tolist())
    wrong = record.scores.wrong
    return {
        "name": record.name,
        **record.about,
        **record.told,
        "points": columns(record.points[record.points["id"].isin(shown)]),
        "scores": score_columns(record.scores, shown),
        "deck": {
            "right": {k: inside(ids, here) for k, ids in record.cards["right"].items()},
            "then": inside(record.cards["then"], here),
        },
        "wrong": None if wrong is None else [[i, wrong[i]] for i in sorted(here & set(wrong))],
        **place._asdict(),
        "stamp": record.stamp,
    }


def inside(ids: Sequence[int], shown: set[int]) -> list[int]:
    return [identity for identity in ids if identity in shown]


def columns(points: "pd.DataFrame") -> dict[str, list[Any]]:
    """Columns with five significant digits, unknown values as null, truth as 0 and 1."""
    made: dict[str, list[Any]] = {}
    for name, column in points.items():
        if column.dtype == np.float64:
            made[str(name)] = [short(value) for value in column.tolist()]
        elif name == "predicted":
            made[str(name)] = [None if value < 0 else value for value in column.tolist()]
        else:
            made[str(name)] = column.astype(np.int64).tolist()
    return made


def assembled(
    title: str, data: Mapping[str, Any], sheets: Sequence[str], served: str | None = None
) -> str:
    """Template, style, scripts and data in one file, with a policy that lets nothing else in; a
    `served` page may also speak to the server that it came from."""
    style = asset("style.css")
    library = asset(LIBRARY)
    script = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in SCRIPTS) + "\n})();"
    policy = [
        "default-src 'none'",
        f"script-src {checksum(library)} {checksum(script)}",
        f"style-src {checksum(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if served is not None:
        policy.append("connect-src 'self'")
    parts = {
        "title": html.escape(title),
        "policy": "; ".join(policy),
        "style": style,
        "data": embedded(data),
        "sheets": embedded(list(sheets)),
        "served": "null" if served is None else served,
        "library": library,
        "script": script,
    }
    template = asset("template.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def embedded(value: Any) -> str:
    """JSON that no HTML parser can mistake for markup, and that can be encoded."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def checksum(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def asset(name: str) -> str:
    # A browser reads a carriage return as a newline before it checks the policy's hash.
    text = (files(__package__) / "page" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")
