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
    import metasp.cli.run as module  # its flags are made of METHODS when it is loaded

    monkeypatch.setattr(module, "command", None)
    import importlib

    importlib.reload(module)
    yield
    monkeypatch.undo()
    importlib.reload(module)


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return stop.value.code, shown.out, shown.err


QUICK = ("--epochs", 1, "--limit-per-class", 6, "--memory", 20, "--threads", 1, "--tasks", 2)


def test_one_flag_says_what_it_is_to_each(mine, capsys):
    words = " ".join(said(capsys, "run", "--help")[1].split())
    assert words.count("--candidates ") == 1
    _, _, flag = words.partition("--candidates ")
    flag = flag.split(" --")[0]
    assert "[default: 50] [mir]" in flag
    assert "How many of them, in words. (few | many) [default: few] [mine]" in flag


def test_the_chosen_method_decides_what_will_do(mine, capsys, tmp_path):
    place = ("--runs", tmp_path, "--json")
    code, out, _ = said(capsys, "run", "--method", "mine", "--candidates", "many", *QUICK, *place)
    assert (code, json.loads(out)["spec"]["settings"]) == (0, {"candidates": "many"})
    code, out, _ = said(capsys, "run", "--method", "mir", "--candidates", 40, *QUICK, *place)
    assert (code, json.loads(out)["spec"]["settings"]) == (0, {"candidates": 40})
    code, _, err = said(capsys, "run", "--method", "mine", "--candidates", 40, *QUICK, *place)
    assert (code, err.count("\n")) == (2, 1)
    assert "unknown candidates '40'" in err
    code, _, err = said(capsys, "run", "--method", "mir", "--candidates", "many", *QUICK, *place)
    assert "candidates must be a whole number, not 'many'" in err


def test_a_sweep_gives_each_method_its_own(mine):
    tables = {
        "grid": {"method": ["mir", "mine"]},
        "override": {"mine": {"candidates": "many"}, "mir": {"candidates": 40}},
    }
    specs = expand(parse(tables, "my.toml"))
    assert [spec.settings for spec in specs] == [{"candidates": 40}, {"candidates": "many"}]
    with pytest.raises(UserError, match="candidates"):
        expand(parse({"grid": {"method": ["mine"]}, "override": {"mine": {"candidate": 1}}}, "x"))
