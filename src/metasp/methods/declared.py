"""What a method's file says of it, read from its source: to list methods, torch is not needed."""

import ast
import importlib.util
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

from metasp.lazy import load
from metasp.spec import setting

BASE = "metasp.methods.method:Method"
TYPES: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "None": type(None),
}  # fmt: skip


@dataclass(frozen=True)
class Declared:
    """What can be said of a method before it is used."""

    what: str  # the first line of its file
    selection: str | None  # what its memory keeps; None: it has no memory
    Settings: type[Any]  # a dataclass with the fields of its settings


class NotPlain(Exception):
    """A declaration that only Python itself understands."""


def declared(place: "str | type[Any]") -> Declared:
    """What a method declares, by its class or by "module:Class". A file that is not loaded yet is
    read, not run; where its declarations are not plain, it is loaded after all."""
    if not isinstance(place, str):
        return of_class(place)
    if place.partition(":")[0] not in sys.modules:
        with suppress(NotPlain):
            return of_source(place)
    return of_class(load(place))


def of_class(kind: type[Any]) -> Declared:
    lines = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")
    return Declared(lines[0], kind.selection, kind.Settings)


@cache
def of_source(place: str) -> Declared:
    """The same from the file that defines the class."""
    tree = parsed(place)
    own = assigned(class_in(tree, place.partition(":")[2], "Method"))
    selection = (
        own.get("selection") or assigned(class_in(parsed(BASE), "Method", "ABC"))["selection"]
    )
    what = (ast.get_docstring(tree) or "").split("\n")[0]
    entries = []
    if "Settings" in own:
        body = class_in(tree, ast.unparse(own["Settings"]), "Settings").body
        entries = [field_of(node) for node in body if isinstance(node, ast.AnnAssign)]
    return Declared(what, value_of(selection), make_dataclass("Settings", entries, kw_only=True))


def parsed(place: str) -> ast.Module:
    found = importlib.util.find_spec(place.partition(":")[0])
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise NotPlain
    return ast.parse(Path(found.origin).read_text(encoding="utf-8"))


def class_in(tree: ast.Module, name: str, parent: str) -> ast.ClassDef:
    """A class of that name with that parent alone."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            parents = [ast.unparse(base) for base in node.bases]
            if parents == [parent]:
                return node
    raise NotPlain


def assigned(kind: ast.ClassDef) -> dict[str, ast.expr]:
    """The values of a class's attributes, as written."""
    found = dict[str, ast.expr]()
    for node in kind.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {ast.unparse(target): node.value for target in targets}
    return found


def field_of(node: ast.AnnAssign) -> tuple[str, Any, Any]:
    """A field that is written `name: type = setting(default, "Help.", min=…)`, where the type is
    one of TYPES or a union of them."""
    call, types = node.value, ast.unparse(node.annotation).split(" | ")
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "setting":
        raise NotPlain
    if not TYPES.keys() >= set(types):
        raise NotPlain
    given = {word.arg: value_of(word.value) for word in call.keywords if word.arg}
    made = setting(*(value_of(part) for part in call.args), **given)
    return ast.unparse(node.target), reduce(or_, (TYPES[name] for name in types)), made


def value_of(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise NotPlain from error
