"""The influence check as a command, on the embedded digits."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
from reproduce.__main__ import main
from reproduce.approximation import Counts, InfluenceCheck, Point
from reproduce.influence_check import mean_counts

from tests.helpers import metasp


@pytest.mark.slow
def test_the_command_counts_signs():
    done = metasp("influence-check", "--seeds", 1, "--json", module="reproduce", METASP_DATA="")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {row["method"]: row for row in found["methods"]}
    assert {row["examples"] for row in rows.values()} == {1000}
    counts = found["counts"]["MetaSP"][0]
    assert sum(counts.values()) == 1000
    assert set(rows) == {"Larsen", "Luketina", "Neumann", "MetaSP"}


def test_mean_counts_add_up_to_the_examples():
    by_seed = (Counts(501, 499, 0, 0), Counts(500, 497, 1, 2))
    (row,) = mean_counts(SimpleNamespace(counts={"MetaSP": by_seed}))
    assert row["examples"] == 1000
    whole = [row[entry.name] for entry in fields(Counts)]
    assert sum(whole) == 1000
    for count, name in zip(whole, [entry.name for entry in fields(Counts)]):
        assert abs(count - sum(getattr(one, name) for one in by_seed) / 2) < 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "nowhere"], "has no folder fashion_mnist"),
        (["--damping", "nan"], "nan is not a finite number"),
        (["--damping", "inf"], "inf is not a finite number"),
        (["--figure", "nowhere/a.png"], "not a PNG or SVG file in a folder that exists"),
        (["--figure", "a.doc"], "not a PNG or SVG file in a folder that exists"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(["influence-check", *arguments])
    heard = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in heard
    assert len(heard.strip().splitlines()) == 1


def test_a_figure_that_cannot_be_drawn_costs_no_measurement(monkeypatch, capsys, tmp_path):
    """The disk fills up while we measure: what was measured is printed all the same."""
    monkeypatch.delenv("METASP_DATA", raising=False)
    counts = {"MetaSP": (Counts(600, 400, 0, 0),)}
    points = (Point("MetaSP", 3.0, 20, (1.0,)),)
    check = InfluenceCheck((1231,), 3.0, 20, counts, points, {"as is": (1.0,)}, (0.9,))
    monkeypatch.setattr("reproduce.approximation.influence_check", lambda *_, **__: check)
    monkeypatch.setattr("reproduce.approximation.render", lambda _: ["MetaSP: 1000 agree"])
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full_disk)
    for form in ([], ["--json"]):
        with pytest.raises(SystemExit) as stop:
            main(["influence-check", "--figure", str(tmp_path / "a.png"), *form])
        heard = capsys.readouterr()
        assert stop.value.code == 2
        assert "MetaSP" in heard.out
        assert "cannot draw" in heard.err


def full_disk(*_, **__):
    raise OSError(28, "No space left on device")
