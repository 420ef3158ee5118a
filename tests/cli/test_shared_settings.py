"""Two methods may have a setting of one name, each with its own meaning."""

import json
from typing import Literal, final

import pytest

from metasp.cli import main
from metasp.config import setting
from metasp.errors import UserError
from metasp.methods import METHODS, Recipe, Settings
from metasp.methods.base import Method
from metasp.sweeps.grid import expand, parse


class MineSettings(Settings):
    candidates: Literal["few", "many"] = setting("few", "How many of them, in words.")


@final
class Mine(Method):
    Settings = MineSettings

    def step(self, new, phase):
        return self.learner.update(self.learner.with_replay(new))


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Recipe(Mine))


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return stop.value.code, shown.out, shown.err


QUICK = ("--epochs", 1, "--limit-per-class", 6, "--memory", 20, "--threads", 1, "--tasks", 2)


def test_the_chosen_method_decides_what_will_do(mine, capsys, tmp_path):
    def run(method, value):
        choice = ("--method", method, "--set", f"candidates={value}")
        code, out, err = said(capsys, "run", *choice, *QUICK, "--runs", tmp_path, "--json")
        return json.loads(out)["spec"]["method"] if code == 0 else (code, err)

    assert run("mine", "many") == {"name": "mine", "candidates": "many"}
    assert run("mir", 40) == {"name": "mir", "candidates": 40}
    for method, value, words in (
        ("mine", 40, "unknown candidates '40'"),
        ("mir", "many", "candidates must be a whole number, not 'many'"),
    ):
        code, err = run(method, value)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


def test_a_sweep_gives_each_method_its_own(mine):
    tables = {
        "grid": {"method": ["mir", "mine"]},
        "override": {"mine": {"method.candidates": "many"}, "mir": {"method.candidates": 40}},
    }
    specs = expand(parse(tables, "my.toml"))
    assert [spec.settings for spec in specs] == [{"candidates": 40}, {"candidates": "many"}]
    with pytest.raises(UserError, match="candidates"):
        expand(
            parse(
                {"grid": {"method": ["mine"]}, "override": {"mine": {"method.candidate": 1}}}, "x"
            )
        )
