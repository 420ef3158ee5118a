"""Ranking of suspects against hand-made tables, and its area under the curve against all pairs."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import metasp
from metasp.cli import main
from metasp.label_scores import quality, score_examples
from metasp.store import RunDir
from metasp.store.run_tables import INFLUENCE
from tests.reports.run_factories import make_run


def table(rows: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """(task, id, source, influence, count, loss) rows as columns of an influence table, where
    only the influence on the example's own kind tells the truth."""
    columns: dict[str, list[Any]] = {
        "task": [row[0] for row in rows],
        "id": [row[1] for row in rows],
        "label": [row[1] % 3 for row in rows],
        "source": [row[2] for row in rows],
        "stability": [row[3] if row[2] == "memory" else -9.0 for row in rows],
        "plasticity": [row[3] if row[2] == "new" else -9.0 for row in rows],
        "fused": [-9.0] * len(rows),
        "count": [row[4] for row in rows],
        "kept": [True] * len(rows),
        "loss": [row[5] for row in rows],
        "predicted": [None] * len(rows),
    }
    return columns


def test_what_raises_the_validation_loss_comes_first() -> None:
    scores = score_examples({}, table([(0, 5, "new", -1.0, 1, 0.1), (0, 9, "new", 2.0, 1, 0.2),
                                   (0, 7, "new", 0.0, 1, 3.0)]))  # fmt: skip
    assert scores.ids[scores.order("influence")].tolist() == [9, 7, 5]
    assert scores.ids[scores.order("loss")].tolist() == [7, 9, 5]
    # Percentiles 5/6, 1/2, 1/6: id 9 has (5/6 + 1/2) / 2, id 7 has (1/2 + 5/6) / 2, id 5 less.
    assert scores.ways["both"].tolist() == pytest.approx([1 / 6, 2 / 3, 2 / 3])
    assert scores.ids[scores.order("both")].tolist() == [7, 9, 5]


def test_rows_of_several_tasks_are_brought_to_one_scale_and_averaged() -> None:
    """Task 1's values are a thousand times smaller, and count as much."""
    scores = score_examples(
        {},
        table(
            [
                (0, 1, "new", 2.0, 4, None),
                (0, 2, "new", -2.0, 4, None),
                (1, 1, "memory", -0.001, 12, None),
                (1, 2, "memory", 0.003, 12, None),
            ]
        ),
    )
    # Group means of size: 2 and 0.002. Id 1: (4·1 + 12·(-0.5)) / 16, id 2: (4·(-1) + 12·1.5) / 16.
    assert scores.ways["influence"].tolist() == pytest.approx([-0.125, 0.875])
    assert scores.tasks.tolist() == [0, 0]
    assert np.isnan(scores.ways["loss"]).all()
    assert scores.ways["both"].tolist() == pytest.approx([0.25, 0.75])


def test_unknown_values_have_no_say() -> None:
    scores = score_examples(
        {},
        table(
            [
                (0, 1, "new", float("nan"), 0, 5.0),
                (0, 2, "new", 1.0, 1, None),
                (1, 2, "memory", float("nan"), 0, None),
            ]
        ),
    )
    assert np.isnan(scores.ways["influence"][0])
    assert scores.ways["influence"][1] == pytest.approx(1.0)
    assert scores.ids[scores.order("influence")].tolist() == [2, 1]
    columns = table([(0, 1, "new", 1.0, 1, None)])
    del columns["loss"]
    assert np.isnan(score_examples({}, columns).ways["loss"]).all()


def test_quality_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 30, 200) / 10  # with ties
    wrong = rng.random(200) < 0.3
    rows = [(0, i, "new", float(v), 1, float(v)) for i, v in enumerate(values)]
    scores = score_examples({}, table(rows))
    found = quality(scores, "influence", {int(i) for i in np.flatnonzero(wrong)})
    above = [(a > b) + (a == b) / 2 for a in values[wrong] for b in values[~wrong]]
    assert found["area"] == pytest.approx(np.mean(above))
    top = np.argsort(-values, kind="stable")[: wrong.sum()]
    assert found["precision"] == pytest.approx(wrong[top].mean())
    assert found["scored"] == 1.0
    assert quality(scores, "influence", {3, 1000, 1001, 1002})["scored"] == 0.25
    assert quality(scores, "influence", set(range(200)))["area"] is None
    nothing = quality(scores, "influence", set())
    assert {nothing[key] for key in ("precision", "area", "scored", "listed_recall")} == {None}


def stored_run(folder: Path, noise: bool) -> Path:
    run = make_run(folder)
    rows = [(0, i, "new", 1.0 if i % 4 == 0 else -1.0, 3, 1.0 + (i % 4 == 0)) for i in range(40)]
    RunDir(run).attach("influence.parquet", pa.table(table(rows), schema=INFLUENCE))
    if noise:
        ids = list(range(0, 40, 4))
        columns = {"task": [0] * 10, "id": ids, "label": [i % 3 for i in ids]}
        RunDir(run).attach("noise.parquet", pa.table({**columns, "true_label": [9] * 10}))
    return run


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["suspects", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stored_run(tmp_path, noise=True)
    code, out, _ = call(capsys, str(run), "--json", "--top", "10")
    told = json.loads(out)
    assert code == 0
    assert [row["id"] for row in told["suspects"]] == list(range(0, 40, 4))
    assert all(row["true_label"] == 9 for row in told["suspects"])
    assert told["by"] == "loss"
    assert told["quality"]["both"]["area"] == told["quality"]["loss"]["precision"] == 1.0
    assert {row["task"] for row in told["suspects"]} == {0}
    code, out, _ = call(capsys, str(run), "--by", "loss")
    assert code == 0
    assert "100.0" in out
    tasks = [line.split("│")[2].strip() for line in out.splitlines() if line.startswith("│")]
    assert set(tasks[:20]) == {"1"}  # in a table people count from 1


def test_the_command_without_noise_and_without_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored_run(tmp_path, noise=False)
    code, out, _ = call(capsys, str(run), "--json")
    told = json.loads(out)
    assert (code, told["quality"], len(told["suspects"])) == (0, None, told["expected"])
    assert "true_label" not in told["suspects"][0]
    for arguments, words in (
        ([str(run), "--by", "los"], "did you mean 'loss'"),
        ([str(tmp_path)], "is not a run"),
    ):
        code, out, err = call(capsys, *arguments)
        assert (code, out) == (2, "")
        assert words in err
    code, _, err = call(capsys, str(make_run(tmp_path, seed=2)))
    assert code == 2
    assert "no scores of examples yet" in err


def fared(margins: list[float | None], labels: list[int] | None = None, **more: Any) -> dict:
    """A table of how the examples 0, 1, … of a task fared."""
    size = len(margins)
    columns: dict[str, list[Any]] = {
        "id": list(range(size)),
        "label": labels or [0] * size,
        "count": [3] * size,
        "loss": [0.5] * size,
        "margin": margins,
        "weight": [1.0] * size,
        "score": [None] * size,
        "predicted": [1] * size,
        "kept": [False] * size,
    }
    return columns | more


def test_the_best_way_that_is_known_ranks() -> None:
    margins = fared([2.0, -1.0, 0.5, -3.0])
    scores = score_examples({0: margins})
    assert scores.best == "margin"
    assert scores.ids[scores.order("margin")].tolist() == [3, 1, 2, 0]
    judged = score_examples({0: fared([2.0, -1.0, 0.5, -3.0], score=[-0.9, 0.8, None, 0.1])})
    assert judged.best == "score"
    assert judged.ids[judged.order("score")].tolist() == [0, 3, 1, 2]
    fitted = score_examples(
        {0: fared([2.0, -1.0, 0.5], score=[-0.9, 0.8, 0.1], odds=[3.0, 9.0, -1.0])}
    )
    assert fitted.best == "odds"
    assert fitted.ids[fitted.order("odds")].tolist() == [2, 0, 1]
    rarely = score_examples({0: fared([1.0] * 4, score=[-0.9, None, None, None])})
    assert rarely.best == "margin"
    unknown = score_examples({0: fared([None] * 3, loss=[0.1, 2.0, 0.3])})
    assert unknown.best == "loss"
    assert unknown.ids[unknown.order("loss")].tolist() == [1, 2, 0]


def test_tasks_follow_each_other_and_the_last_word_counts() -> None:
    first, again = fared([1.0, -1.0]), fared([3.0], count=[1], predicted=[7], label=[4])
    scores = score_examples({0: first, 1: again})
    assert scores.tasks.tolist() == [0, 0]
    assert scores.margins.tolist() == [(3 * 1.0 + 3.0) / 4, -1.0]
    assert scores.predicted.tolist() == [7, 1]
    assert scores.labels.tolist() == [4, 0]


def test_margins_are_ranked_beside_those_of_their_label() -> None:
    """The network doubts all of label 1, and of label 0 the last alone is far below the others."""
    margins = [4.0, 4.5, 5.0, 1.0, -2.0, -2.5, -3.0, None]
    labels = [0, 0, 0, 0, 1, 1, 1, 1]
    scores = score_examples({0: fared(margins, labels)})
    beside = [4.0 - 4.25, 4.5 - 4.25, 5.0 - 4.25, 1.0 - 4.25, 0.5, 0.0, -0.5]
    assert scores.ways["margin"].tolist()[:7] == pytest.approx(beside)
    assert scores.order("margin").tolist() == [3, 6, 0, 5, 1, 4, 2, 7]
    assert scores.support("margin").tolist()[:7] == margins[:7]  # what the number of wrong goes by
    assert quality(scores, "margin", {3})["area"] == 1.0


def test_as_many_are_expected_wrong_as_stand_out() -> None:
    """Right examples lie around 10 to both sides; 30 of 100 wrong ones around -10."""
    rng = np.random.default_rng(3)
    right, wrong = 10 + 5 * rng.standard_normal(700), -10 + 3 * rng.standard_normal(300)
    scores = score_examples({0: fared([*right.tolist(), *wrong.tolist()])})
    assert scores.expected("margin") == pytest.approx(300, abs=15)
    found = quality(scores, "margin", set(range(700, 1000)))
    assert found["listed"] == scores.expected("margin")
    listed = set(scores.ids[scores.suspects("margin")].tolist())
    hits = len(listed & set(range(700, 1000)))
    assert (found["listed_precision"], found["listed_recall"]) == (hits / len(listed), hits / 300)
    clean = score_examples({0: fared(right.tolist())})
    assert clean.expected("margin") <= 15


def test_chances_beside_odds_add_up_to_how_many_are_wrong() -> None:
    odds, wrong = [2.0, -1.0, -4.0, 5000.0], [0.25, 0.5, 0.9, 0.0]
    scores = score_examples({0: fared([0.0] * 4, [0, 0, 1, 1], odds=odds, wrong=wrong)})
    assert [share.expected for share in scores.shares("odds")] == pytest.approx([0.75, 0.9])
    assert scores.expected("odds") == 2
    assert scores.ids[scores.suspects("odds")].tolist() == [2, 1]
    assert scores.support("odds").tolist() == odds


def test_a_run_of_one_task_of_a_folder_names_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures of two kinds, some in the folder of the other: the files found are those."""
    rng = np.random.default_rng(0)
    moved = set()
    for kind, shade in (("dark", 60), ("light", 190)):
        for number in range(40):
            pixels = rng.integers(shade - 40, shade + 40, (8, 8), dtype=np.uint8)
            wrong = number % 10 == 3
            other = {"dark": "light", "light": "dark"}[kind] if wrong else kind
            path = tmp_path / "pictures" / other / f"{kind}-{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
            if wrong:
                moved.add(f"{other}/{path.name}")
    benchmark = f"folder:{tmp_path / 'pictures'}"
    run = metasp.run(benchmark, runs=tmp_path / "runs", method="er", tasks=1, epochs=8, threads=1)
    code, out, err = call(capsys, run["run"], "--format", "csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(out.splitlines()))
    held = {str(p.relative_to(tmp_path / "pictures")) for p in (tmp_path / "pictures").rglob("*")}
    assert {row["file"] for row in rows} <= held
    assert all(row["file"].startswith(row["label"] + "/") for row in rows)
    trained = {row["file"] for row in csv.DictReader(call(capsys, run["run"], "--top", "99",
               "--format", "csv")[1].splitlines())}  # fmt: skip
    assert {row["file"] for row in rows} == moved & trained
    assert [row["suggested"] for row in rows] == [Path(r["file"]).stem[:-3] for r in rows]
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["explore", run["run"], "--out", str(page)])
    assert not ended.value.code
    told = page.read_text().partition('id="data">')[2].partition("</script>")[0]
    assert (
        dict(json.loads(told)["origins"]).items() >= {int(r["id"]): r["file"] for r in rows}.items()
    )


def test_rows_of_one_file_are_numbers_in_a_terminal_of_eighty_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long name of a file stands once, below the table, and names of classes stay whole."""
    names = ["accept_reservations", "cancel_reservation"]
    rows = np.random.default_rng(0).normal(size=(60, 3))
    labels = (rows[:, 0] > 0).astype(int)
    labels[:4] = 1 - labels[:4]
    file = tmp_path / "the-answers-of-all-customers.npz"
    np.savez(file, inputs=rows, labels=labels, class_names=names)
    monkeypatch.chdir(tmp_path)
    run = metasp.run(
        f"arrays:{file.name}", method="er", tasks=1, backbone="mlp", epochs=9, threads=1
    )
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = call(capsys, str(run["run"]), "--top", "5")
    lines = out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines if line[:1] in "┏┃│└")
    assert f"row: in {file.name}" in " ".join(out.split())
    table = "\n".join(line for line in lines if line.startswith("│"))
    assert any(name in table for name in names)
    assert "…" not in table
