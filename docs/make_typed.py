"""Write src/metasp/typed.py, the types of our keyword arguments and of a run's scores, from the
settings and metrics themselves: `python docs/make_typed.py`."""

import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from metasp.benchmarks.from_dataset import SETTINGS
from metasp.field_checks import field_types
from metasp.learner.settings import LearnerSettings
from metasp.methods import METHODS
from metasp.metrics import METRICS
from metasp.spec import RunSpec, fields_with

PLACE = Path(__file__).parents[1] / "src" / "metasp" / "typed.py"
HEAD = '''"""The keyword arguments of `metasp.run`, `metasp.split` and `metasp.ContinualLearner`.

Made by docs/make_typed.py from the dataclasses that own these settings: change them there.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict
'''
WORDS = {
    "tuple[tuple[int, int], ...]": "Sequence[tuple[int, int]]",
    "tuple[int, ...]": "Sequence[int]",
    "Mapping": "Mapping[str, object]",
    "NoneType": "None",
}

STORED = (
    (
        "matrix",
        ["list[list[float | None]]"],
        "Row t: accuracy on each task after task t; None: not tested.",
    ),
    ("before", ["list[float]"], "Accuracy on task t just before it was trained."),
    ("S", ["list[list[float]]"], "Stability: row t is the change on each old task after task t."),
    ("P", ["list[float | None]"], "Plasticity: what training on task t has added on it."),
)

Key = tuple[str, Iterable[str], str]
"""A keyword: its name, the types it takes, and what it is for."""


def module() -> str:
    """The text of the module."""
    filled_in = fields_with(RunSpec, owner="run")
    of_spec = [key for key in keys_of(RunSpec) if key[0] not in ("benchmark", *filled_in)]
    parts = [
        typed(
            "SplitKeywords(TypedDict, total=False)",
            "What `metasp.split` may be told about the tasks.",
            [key for key in of_spec if key[0] in SETTINGS],
        ),
        typed(
            "SpecKeywords(SplitKeywords, total=False)",
            "The fields of a `RunSpec`.",
            [key for key in of_spec if key[0] not in SETTINGS],
        ),
        typed(
            "RunKeywords(SpecKeywords, total=False)",
            "What `metasp.run` may be told: the fields of a `RunSpec`, and what single methods "
            "take.",
            of_methods(),
        ),
        typed(
            "LearnerKeywords(TypedDict, total=False)",
            "What a `ContinualLearner` may be told.",
            keys_of(LearnerSettings),
        ),
        typed(
            "Scores(TypedDict)",
            "What one scenario of a run comes to; fractions, not percent.",
            [*STORED, *of_metrics()],
        ),
    ]
    return "\n\n".join([HEAD, *parts])


def keys_of(owner: type) -> list[Key]:
    return [key_of(owner, entry) for entry in fields(owner)]


def key_of(owner: type, entry: "Field[Any]") -> Key:
    words = [entry.metadata["help"]]
    if entry.metadata.get("choices"):
        words.append(f"One of {', '.join(entry.metadata['choices'])}.")
    if entry.default is not MISSING and entry.default is not None:
        words.append(f"Default: {entry.default}.")
    return entry.name, [word_of(kind) for kind in field_types(owner)[entry.name]], " ".join(words)


def word_of(kind: Any) -> str:
    name = str(kind) if getattr(kind, "__args__", None) else kind.__name__
    return next((word for start, word in WORDS.items() if start in name), name)


def of_methods() -> list[Key]:
    """The settings of all methods; one that several have takes whatever one of them takes."""
    kinds: dict[str, dict[str, None]] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for method, recipe in METHODS.items():
        for name, found, text in keys_of(recipe.kind.Settings):
            kinds.setdefault(name, {}).update(dict.fromkeys(found))
            texts.setdefault(name, {}).setdefault(text, []).append(method)
    return [(name, kinds[name], said(texts[name])) for name in sorted(kinds)]


def said(texts: Mapping[str, list[str]]) -> str:
    return " ".join(f"({', '.join(methods)}) {text}" for text, methods in texts.items())


def of_metrics() -> list[Key]:
    hints = {name: typing.get_type_hints(metric.of)["return"] for name, metric in METRICS.items()}
    return [
        (name, [word_of(kind) for kind in alternatives(hints[name])], sentence(metric.help))
        for name, metric in METRICS.items()
    ]


def alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def typed(head: str, about: str, keys: Iterable[Key]) -> str:
    lines = [f"class {head}:", wrapped(about), ""]
    for key, kinds, text in keys:
        lines += [f"    {key}: {' | '.join(kinds)}", wrapped(text)]
    return "\n".join(lines) + "\n"


def wrapped(text: str) -> str:
    indent = " " * 4
    return textwrap.fill(f'"""{text}"""', 99, initial_indent=indent, subsequent_indent=indent,
                         break_on_hyphens=False)  # fmt: skip


if __name__ == "__main__":
    PLACE.write_text(module(), encoding="utf-8")
