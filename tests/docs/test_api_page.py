"""The reference of the Python interface: every public name, from its docstring."""

import importlib
import inspect
import re

import pytest

import metasp
from metasp.errors import UserError
from tests.helpers import ROOT

LISTED = re.findall(
    r"^\.\. auto(?:function|class|exception):: (\S+)$",
    (ROOT / "docs" / "api.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize("name", sorted(metasp.PUBLIC))
def test_every_public_name_is_on_the_page(name):
    assert f"metasp.{name}" in LISTED


@pytest.mark.parametrize("path", LISTED)
def test_what_is_on_the_page_says_what_it_is(path):
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except UserError as error:
        pytest.skip(str(error))
    said = inspect.getdoc(found)
    assert said
    assert not said.startswith(f"{name}("), "the docstring is the one that a dataclass makes"
