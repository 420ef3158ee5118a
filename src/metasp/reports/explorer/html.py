"""The page: records and pictures in, one HTML file out, which asks nothing of the network."""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from metasp.metrics import METRICS
from metasp.reports.compare import refuse_other_data
from metasp.reports.explorer.pictures import Material, Missing, packed, short
from metasp.reports.explorer.points import Points, ids_to_show
from metasp.reports.explorer.records import Record, read_run
from metasp.store import RunDir

SCRIPTS = (
    "base.js",
    "tiles.js",
    "charts.js",
    "summary.js",
    "map.js",
    "gallery.js",
    "suspects.js",
    "memory.js",
    "scores.js",
    "compare.js",
    "main.js",
)
LIBRARY = "vendor/echarts.common.min.js"


@dataclass(frozen=True)
class Built:
    """The page and what it holds."""

    content: bytes
    shown: int
    examples: int


def build_page(
    runs: Sequence[RunDir], material: Material, class_names: Sequence[str] = (), limit: int = 10_000
) -> Built:
    """The explorer of one run, or of two to compare. Examples beyond `limit` are only counted."""
    records = [read_run(run) for run in runs]
    refuse_other_data([record.spec for record in records])
    measured = joined([record.points for record in records])
    remembered = np.concatenate([record.remembered for record in records])
    shown = ids_to_show(measured, remembered, limit)
    everything = len(np.unique(np.concatenate([measured.id, remembered])))
    pictures, sheets = packed(material if isinstance(material, Missing) else material.only(shown))
    names = next((r.class_names for r in records if r.class_names), tuple(class_names))
    data = {
        "classes": [str(name) for name in names],
        "metrics": [
            {"key": key, "name": m.name, "words": m.words, "help": m.help, "change": m.change}
            for key, m in METRICS.items()
        ],
        "pictures": pictures,
        "examples": everything,
        "shown": len(shown),
        "runs": [told(record, shown) for record in records],
    }
    title = " and ".join(record.spec.method for record in records)
    return Built(assembled(title, data, sheets), len(shown), everything)


def told(record: Record, shown: np.ndarray[Any, Any]) -> dict[str, Any]:
    """One run as the page's script reads it."""
    spec = record.spec
    return {
        "name": record.name,
        "method": spec.method,
        "benchmark": spec.benchmark,
        "seed": spec.seed,
        "budget": spec.memory,
        "epochs": spec.epochs,
        "backbone": spec.backbone,
        "selection": spec.selection,
        **record.told,
        "points": columns(record.points.only(np.isin(record.points.id, shown))),
    }


def columns(points: Points) -> dict[str, list[Any]]:
    """Columns with five significant digits, unknown values as null, truth as 0 and 1."""
    made: dict[str, list[Any]] = {}
    for name, column in vars(points).items():
        if column.dtype == np.float64:
            made[name] = [short(value) for value in column.tolist()]
        elif name == "predicted":
            made[name] = [None if value < 0 else value for value in column.tolist()]
        else:
            made[name] = column.astype(np.int64).tolist()
    return made


def joined(parts: Sequence[Points]) -> Points:
    return Points(
        **{name: np.concatenate([vars(p)[name] for p in parts]) for name in vars(parts[0])}
    )


def assembled(title: str, data: dict[str, Any], sheets: Sequence[str]) -> bytes:
    """Template, style, scripts and data in one file, with a policy that lets nothing else in."""
    style = asset("style.css")
    library = asset(LIBRARY)
    script = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in SCRIPTS) + "\n})();"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {checksum(library)} {checksum(script)}",
            f"style-src {checksum(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    parts = {
        "title": html.escape(title),
        "policy": policy,
        "style": style,
        "data": embedded(data),
        "sheets": embedded(list(sheets)),
        "library": library,
        "script": script,
    }
    page = asset("template.html")
    pieces = page.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        out += [parts[name], rest]
    return "".join(out).encode()


def embedded(value: Any) -> str:
    """JSON that no HTML parser can mistake for markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def checksum(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def asset(name: str) -> str:
    # A browser reads a carriage return as a newline before it checks the policy's hash.
    text = (files(__package__) / "page" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")
