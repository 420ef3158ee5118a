"""What is read from a method's source is what its class says."""

from dataclasses import dataclass, fields

import pytest

from metasp.field_checks import field_types
from metasp.methods import METHODS, Recipe
from metasp.methods.declared import NotPlain, declared, of_class, of_source

SHIPPED = sorted({recipe.of for recipe in METHODS.values() if isinstance(recipe.of, str)})


def told(found):
    types = field_types(found.Settings)
    entries = [(e.name, types[e.name], e.default, dict(e.metadata)) for e in fields(found.Settings)]
    return found.what, found.selection, entries


@pytest.mark.parametrize("place", SHIPPED)
def test_source_and_class_agree(place):
    kind = Recipe(place).kind
    assert told(of_source(place)) == told(of_class(kind))
    assert told(declared(place)) == told(of_class(kind))


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_those_of_the_class(name):
    recipe = METHODS[name]
    settings = recipe.kind.Settings(**recipe.preset)
    assert recipe.settings == vars(settings)


NOT_PLAIN = {
    "another parent": "class Mine(ER):\n    pass",
    "a computed choice": "class Mine(Method):\n    selection = CHOSEN",
    "a computed default": (
        "class Own(Settings):\n    times: int = setting(TWO, '')\n"
        "class Mine(Method):\n    Settings = Own"
    ),
    "a type of its own": (
        "class Own(Settings):\n    times: Count = setting(2, '')\n"
        "class Mine(Method):\n    Settings = Own"
    ),
    "a field that is no setting": (
        "class Own(Settings):\n    times: int = 2\nclass Mine(Method):\n    Settings = Own"
    ),
    "no such class": "",
}


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_what_only_python_understands_is_not_guessed(words, tmp_path, monkeypatch):
    (tmp_path / "written_otherwise.py").write_text(NOT_PLAIN[words])
    monkeypatch.syspath_prepend(tmp_path)
    of_source.cache_clear()
    with pytest.raises(NotPlain):
        of_source("written_otherwise:Mine")


def test_a_method_of_ones_own_needs_no_file():
    @dataclass(frozen=True)
    class Own:
        times: int = 2

    class Mine:
        selection = None
        Settings = Own

    assert Recipe(Mine).settings == {"times": 2}
    assert Recipe(Mine, {"times": 3}).settings == {"times": 3}
    assert Recipe(Mine).selection is None


@pytest.mark.parametrize("place", ["sys:Method", "_json:Method", "nowhere_at_all:Method"])
def test_what_is_not_written_in_python_cannot_be_read(place):
    """Built in, compiled, or not there: the class is loaded instead, which tells what is wrong."""
    with pytest.raises(NotPlain):
        of_source(place)


def test_a_folder_that_holds_packages_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotPlain):
        of_source("only_a_folder:Method")
