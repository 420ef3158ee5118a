"""The command reference is what the commands say of themselves."""

import importlib.util

from tests.helpers import ROOT


def test_the_command_reference_is_fresh():
    place = ROOT / "docs" / "make_cli.py"
    module = importlib.util.module_from_spec(
        spec := importlib.util.spec_from_file_location("make_cli", place)
    )
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == module.reference(), (
        "run `make docs`, or `python docs/make_cli.py`, and commit docs/cli.md"
    )
