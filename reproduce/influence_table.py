"""The approximation table as a report: a stored check above the published counts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metasp.errors import UserError
from metasp.reports.tables import Cell, Table
from reproduce.published import rows

COUNTS = ("true_positive", "true_negative", "false_positive", "false_negative")


def influence_table(file: Path | None) -> Table:
    """How often the sign of an influence agrees with the exact one: ours (from the file that
    `python -m reproduce influence-check --json` wrote) above the published figures."""
    ours = [] if file is None else read_check(file)
    entries = [("here", entry) for entry in ours]
    entries += [("published", entry) for entry in rows("influence_approximation")]
    lines, data = [], []
    for where, entry in entries:
        counts = [int(entry[name]) for name in COUNTS]
        right, examples = counts[0] + counts[1], int(entry["examples"])
        texts = [entry["method"], where, *counts, f"{right} of {examples}"]
        lines.append(tuple(Cell(str(text)) for text in texts))
        data.append({"method": entry["method"], "where": where, "examples": examples,
                     **dict(zip(COUNTS, counts)), "agree": right})  # fmt: skip
    header = ("method", "where", *(name.replace("_", " ") for name in COUNTS), "signs agree")
    notes = ["positive: the exact influence lowers the loss; 1000 training examples published."]
    if file is None:
        notes.append(
            "none of ours: `python -m reproduce influence-check --json > check.json`, then "
            "`python -m reproduce report --table influence --check check.json`."
        )
    return Table("influence approximation against the exact one", header, tuple(lines),
                 tuple(data), tuple(notes))  # fmt: skip


def read_check(file: Path) -> list[Mapping[str, Any]]:
    """The rows of a stored influence check, or one sentence about what is wrong with it."""
    try:
        entries = json.loads(file.read_bytes())["methods"]
        for entry in entries:
            _ = str(entry["method"]), [int(entry[name]) for name in ("examples", *COUNTS)]
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}.") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is not what `python -m reproduce influence-check --json` writes."
        ) from error
    return list(entries)
