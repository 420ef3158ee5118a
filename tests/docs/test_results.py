"""The results page is what the committed results say, and those are of the committed sweeps."""

import importlib.util

import pytest

from metasp.reports.runs import flat_spec, gather
from metasp.sweeps.grid import expand, read_sweep
from tests.helpers import ROOT

NAMES = sorted(path.stem for path in (ROOT / "results").glob("*.parquet"))


def maker():
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs/make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEMPLATES = sorted((ROOT / "docs").glob("*.template"))


@pytest.fixture(scope="module")
def made():
    """Each page with its CSV files, as the script makes them."""
    page = maker().page
    return {template: page(template) for template in TEMPLATES}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_the_page_is_made_from_the_results(template, made):
    content, _ = made[template]
    page = template.with_suffix(".md").read_text(encoding="utf-8")
    assert page == content, "run: python docs/make_results.py"


def test_the_tables_are_made_from_the_results_and_linked_from_a_page(made):
    tables = {}
    for content, written in made.values():
        tables |= written
        assert all(f"(tables/{name})" in content for name in written)
    stored = {path.name: path.read_text() for path in (ROOT / "docs/tables").glob("*.csv")}
    assert stored == tables, "run: python docs/make_results.py"


@pytest.mark.parametrize("name", NAMES)
def test_results_are_runs_of_the_sweep_of_that_name(name):
    file = ROOT / "sweeps" / f"{name}.toml"
    asked = expand(read_sweep(str(file) if file.exists() else name))  # a preset of the paper
    records = gather([ROOT / "results" / f"{name}.parquet"]).records
    assert records
    for record in records:
        assert any(answers(record.spec, wanted) for wanted in asked), record.name


def answers(spec, wanted):
    """Whether a completed spec holds all that was asked for."""
    asked = flat_spec(wanted.as_dict())
    asked.pop("device")  # a run stores what auto became
    if "selection" not in spec:
        asked.pop("memory")  # not kept
    return all(spec.get(key) == value for key, value in asked.items())
