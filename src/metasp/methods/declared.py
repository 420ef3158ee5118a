"""What a method's file says of it, read from its source: to list methods, torch is not needed."""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from metasp.lazy import load
from metasp.spec import setting

BASE = "metasp.methods.method:Method"
TYPES = {"int": int, "float": float, "str": str, "bool": bool}


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
    if place.partition(":")[0] in sys.modules:
        return of_class(load(place))
    try:
        return of_source(place)
    except NotPlain:
        return of_class(load(place))


def of_class(kind: type[Any]) -> Declared:
    lines = (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")
    return Declared(lines[0], kind.selection, kind.Settings)


@cache
def of_source(place: str) -> Declared:
    """The same from the file that defines the class."""
    tree = parsed(place)
    kind = class_in(tree, place.partition(":")[2])
    own, base = assigned(kind), assigned(class_in(parsed(BASE), "Method"))
    if [ast.unparse(parent) for parent in kind.bases] != ["Method"]:
        raise NotPlain
    lines = (ast.get_docstring(tree) or "").split("\n")
    chosen = value_of(own.get("selection", base["selection"]))
    if "Settings" not in own:
        return Declared(lines[0], chosen, make_dataclass("Settings", []))
    settings = class_in(tree, ast.unparse(own["Settings"]))
    if [ast.unparse(parent) for parent in settings.bases] != ["Settings"]:
        raise NotPlain
    entries = [field_of(node) for node in settings.body if isinstance(node, ast.AnnAssign)]
    return Declared(lines[0], chosen, make_dataclass(settings.name, entries, kw_only=True))


def parsed(place: str) -> ast.Module:
    found = importlib.util.find_spec(place.partition(":")[0])
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise NotPlain
    return ast.parse(Path(found.origin).read_text(encoding="utf-8"))


def class_in(tree: ast.Module, name: str) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise NotPlain


def assigned(kind: ast.ClassDef) -> Mapping[str, ast.expr]:
    """The values of a class's attributes, as written."""
    found: dict[str, ast.expr] = {}
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            found |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
    return found


def field_of(node: ast.AnnAssign) -> tuple[str, Any, Any]:
    """A field that is written `name: type = setting(default, "Help.", min=…)`."""
    call = node.value
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "setting":
        raise NotPlain
    given = {word.arg: value_of(word.value) for word in call.keywords if word.arg}
    made = setting(*(value_of(part) for part in call.args), **given)
    return ast.unparse(node.target), type_of(node.annotation), made


def type_of(node: ast.expr) -> Any:
    """int, float, str, bool, None and unions of them."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return type_of(node.left) | type_of(node.right)
    words = ast.unparse(node)
    if words == "None":
        return type(None)
    if words not in TYPES:
        raise NotPlain
    return TYPES[words]


def value_of(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise NotPlain from error
