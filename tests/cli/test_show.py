"""What a person sees of a finished run."""

from pathlib import Path

import pytest

from metasp.cli.show import balance_table, next_steps, score_table
from metasp.metrics import scores
from metasp.reports.tables import difference_text, plus_minus


def cells(table):
    return [cell for column in table.columns for cell in column.cells]


def test_what_rounds_to_zero_has_no_sign():
    """A task of 30,000 examples loses one of them: BWT is -0.003 %."""
    matrix, before = [[0.9, None], [0.9 - 1 / 30_000, 0.8]], [0.5, 0.5]
    result = {name: scores(matrix, before) for name in ("class_il", "task_il")}
    assert result["class_il"]["BWT"] == pytest.approx(-1 / 30_000)
    assert "0.00" in cells(score_table(result))
    assert "0.0" in cells(balance_table(result))
    assert not [cell for cell in cells(score_table(result)) if cell.startswith("-0.0")]
    assert not [cell for cell in cells(balance_table(result)) if cell.startswith("-0.0")]
    assert (plus_minus(-0.004, 0.1), plus_minus(-0.006, 0.1)) == ("0.00 ± 0.10", "-0.01 ± 0.10")
    assert difference_text(-0.004, None, None) == "0.00"
    assert difference_text(0.004, None, None) == "0.00"
    assert difference_text(-0.006, None, None) == "-0.01"
    assert difference_text(0.006, None, None) == "+0.01"


def test_the_hint_repeats_the_stream_and_names_the_folder_where_it_is_not_the_usual(monkeypatch):
    monkeypatch.delenv("METASP_RUNS", raising=False)
    told = next_steps(Path("runs/a"), "gem", ["--data", "my data"])
    again = "metasp run --spec runs/a/spec.toml --data 'my data' --method er"
    assert f"{again} && metasp report runs" in told
    assert "metasp suspects runs/a --data 'my data'" in told
    monkeypatch.setenv("METASP_RUNS", "mine")
    assert "--method er --runs runs && " in next_steps(Path("runs/a"), "gem")
