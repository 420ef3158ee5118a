"""Each format holds the same numbers and is what its readers expect."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from rich.cells import cell_len

from metasp.cli import main
from metasp.console import text_console
from metasp.reports.groups import group
from metasp.reports.notes import Comparison
from metasp.reports.runs import gather
from metasp.reports.scores import matrix_tables, score_tables
from metasp.reports.tables import Cell, Table, latex, md, terminal, tex
from tests.reports.run_factories import ablated_selections


@pytest.fixture
def runs(tmp_path):
    return ablated_selections(tmp_path)


def report(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return captured.out


def test_every_format_tells_the_same_means(runs, capsys):
    truth = json.loads(report(capsys, runs, "--format", "json"))
    entries = [row for table in truth["tables"] for row in table["rows"]]
    lines = list(csv.DictReader(io.StringIO(report(capsys, runs, "--format", "csv"))))
    assert [float(line["mean"]) for line in lines] == [entry["mean"] for entry in entries]
    for form in ("terminal", "markdown", "latex"):
        text = report(capsys, runs, "--format", form)
        for entry in entries:
            assert f"{entry['mean']:.2f}" in text


def test_latex_is_balanced_and_escaped(runs, capsys):
    text = report(capsys, runs, "--format", "latex")
    assert text.count("{") == text.count("}")
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") > 0
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == text.count(r"\begin{tabular}")
    for block in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(block[0])}
    assert text.isascii(), "only what every TeX can set"


@pytest.mark.slow
def test_latex_compiles_with_booktabs(runs, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed: apt-get install texlive-latex-recommended")
    how = Comparison(against="er")
    tables = score_tables(group(gather([runs]).records), how)
    body = latex([*tables, *matrix_tables(gather([runs]).records[:1])])
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "table.tex").write_text(document + body + "\\end{document}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_matrices_of_many_runs_are_one_tidy_csv(runs, capsys):
    text = report(capsys, runs, "--table", "matrix", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    names = ["run", "method", "seed", "trained_task", "tested_task", "class_il", "task_il"]
    assert list(lines[0]) == names
    found = {tuple(line[name] for name in names[:5]): line for line in lines}
    assert len(found) == len(lines) == 6 * len(list(runs.iterdir()))
    for run in runs.iterdir():
        stored = json.loads((run / "result.json").read_text())
        spec = stored["spec"]
        line = found[run.name, spec["method"]["name"], str(spec["seed"]), "3", "2"]
        for scenario in ("class_il", "task_il"):
            assert float(line[scenario]) == pytest.approx(
                stored[scenario]["matrix"][2][1], rel=1e-5
            )


@pytest.mark.parametrize("form", ["terminal", "latex", "markdown"])
def test_p_values_stand_in_every_form_for_people(runs, capsys, form):
    entries = json.loads(report(capsys, runs, "--against", "er", "--format", "json"))["tables"]
    text = report(capsys, runs, "--against", "er", "--format", form)
    for entry in (row for table in entries for row in table["rows"]):
        if entry["p"] is not None and entry["p"] >= 0.001:
            assert f"({entry['p']:.3f}".replace("(0.", "(.") in text


def test_columns_on_a_terminal_stand_below_each_other(runs):
    """Also of letters that take two columns; and names that hold markup are text."""
    groups = group(gather([runs]).records)
    odd = Table("[red]odd", ("row", "A"), ((Cell("漢字 [b]"), Cell("1.0 ●", True)),), (), ("note",))
    tables = [*score_tables(groups, Comparison(against="er")), odd]
    out = io.StringIO()
    text_console(file=out).print(terminal(tables), soft_wrap=True)
    shown = iter(out.getvalue().splitlines())
    for table in tables:
        assert next(shown) == table.title
        lines = [next(shown) for _ in range(len(table.rows) + 2)]
        assert len({cell_len(line) for line in lines}) == 1
        for line, row in zip(lines[2:], table.rows):
            assert re.split(r"\s{2,}", line.strip()) == [cell.text for cell in row]
        assert [next(shown).strip() for _ in (*table.notes, *table.cautions)] == [
            *table.notes,
            *table.cautions,
        ]
        next(shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "erx"], "did you mean"),
        (["--by", "memori"], "did you mean 'memory'"),
        (["--by", "memory", "--table", "matrix"], "--table scores"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(runs, capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(["report", str(runs), *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_names_are_text_in_every_format():
    odd = "<img src=x> [a](b) `c` | d_e\n\nf"
    assert md(odd) == "\\<img src=x> \\[a](b) \\`c\\` \\| d\\_e f"
    assert "\n" not in tex(odd)
