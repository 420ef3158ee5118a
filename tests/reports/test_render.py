"""Each format holds the same numbers and is what its readers expect."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pytest

from metasp.cli import main
from metasp.paper.influence_table import influence_table
from metasp.paper.published import published_scores
from metasp.reports.configurations import group
from metasp.reports.matrix import matrix_tables
from metasp.reports.records import gather
from metasp.reports.render import latex, md, tex
from metasp.reports.scores import Comparison, score_tables
from tests.reports.made import ablated_selections


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


def test_markdown_rows_have_as_many_cells_as_the_header(runs, capsys):
    text = report(capsys, runs, "--format", "markdown", "--paper")
    for block in text.split("### ")[1:]:
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len(rows) >= 3
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in rows}) == 1


def test_latex_is_balanced_and_escaped(runs, capsys):
    text = report(capsys, runs, "--format", "latex", "--paper")
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
    how = Comparison(against="er", published=published_scores())
    tables = score_tables(group(gather([runs]).records), how)
    body = latex([*tables, influence_table(None), *matrix_tables(gather([runs]).records[0])])
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "table.tex").write_text(document + body + "\\end{document}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_matrix_of_one_run_is_the_stored_one(runs, capsys):
    (run, *_) = sorted(runs.iterdir())
    text = report(capsys, run, "--table", "matrix", "--json")
    rows = json.loads(text)["tables"][0]["rows"]
    matrix = json.loads((run / "result.json").read_text())["class_il"]["matrix"]
    assert {(r["after_task"], r["task"]): r["accuracy"] for r in rows} == {
        (t + 1, k + 1): matrix[t][k] for t in range(3) for k in range(t + 1)
    }


def test_damage_is_counted_on_stderr(runs, capsys):
    (run, *_) = sorted(runs.iterdir())
    (run / "result.json").write_text("{")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(runs)])
    assert ended.value.code == 0
    assert "1 damaged run left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "matrix"], "of one run"),
        (["--against", "erx"], "did you mean"),
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


def test_a_report_never_imports_torch(runs):
    code = (
        "import sys; from metasp.cli import main\n"
        "try: main(['report', sys.argv[1]])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    command = [sys.executable, "-c", code, str(runs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "A_1" in done.stdout
