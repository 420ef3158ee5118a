"""Two runs side by side, and what looks wrong, in a real browser."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.corrections import Corrections, read_corrections
from metasp.reports.explorer import Missing
from metasp.reports.suspect_tables import read_scores
from tests.helpers import list_anew
from tests.reports.page_factories import NAMES, made_influence, made_pictures, make_run

pytestmark = pytest.mark.slow


def test_a_class_that_the_other_run_has_not_is_let_go(opened, tmp_path):
    one, two = make_run(tmp_path), make_run(tmp_path, seed=2, influence=False)
    view = opened([one, two], Missing("gone."))
    view.tab("gallery")
    view.page.select_option("#choose-label", "3")
    view.page.click("#run-switch >> text=B:")
    view.page.click("#run-switch >> text=A:")
    assert view.page.input_value("#choose-label") == "all"
    assert view.said == []


def test_suspects_are_ticked_and_saved(opened, tmp_path):
    run = make_run(tmp_path, scores=True)
    scores = read_scores(run).scores
    view = opened([run], made_pictures(60))
    view.tab("suspects")
    wanted = scores.ids[scores.suspects("margin")].tolist()
    assert view.page.inner_text(".badge") == str(len(wanted))
    assert view.ids("#panel-suspects") == wanted
    assert view.page.is_disabled("#download")
    for identity in wanted[:3]:
        view.page.click(f".card[data-id='{identity}'] input")
    with view.page.expect_download() as waiting:
        view.page.click("#download")
    found = read_corrections({"verified": waiting.value.path()}, NAMES, 999)
    assert found == Corrections(exclude=tuple(wanted[:3]))
    view.page.click("#panel-suspects >> text=Loss")
    assert view.ids("#panel-suspects") == scores.ids[scores.suspects("loss")].tolist()[:48]
    assert view.said == []


def test_two_runs_side_by_side(opened, tmp_path):
    runs = [make_run(tmp_path, seed=seed) for seed in (1, 2)]
    view = opened(runs, made_pictures(60))
    view.tab("compare")
    columns = [made_influence(60, seed) for seed in (1, 2)]
    side = [
        [2 * (s >= 0) + (p >= 0) for s, p in zip(c["stability"], c["plasticity"])] for c in columns
    ]
    changes = Counter(zip(*side))
    cells = [int(text) for text in view.all(".changes button", "e => e.textContent")]
    assert cells == [changes[a, b] for a in range(4) for b in range(4)]
    moved = sum(n for (a, b), n in changes.items() if a != b)
    assert view.page.inner_text("#moved").startswith(f"{moved} of 60 measurements")
    view.page.click(".changes button[data-from=both][data-to=neither]")
    wanted = [i for i, a, b in zip(columns[0]["id"], *side) if (a, b) == (0, 3)]
    assert view.ids("#changed") == wanted
    view.shot("compare")
    before = view.all(".side-count", "e => +e.textContent")
    view.page.click("#run-switch >> text=B:")
    assert view.all(".side-count", "e => +e.textContent") == [side[1].count(n) for n in range(4)]
    assert before == [side[0].count(n) for n in range(4)]
    assert view.said == []


def test_compare_says_what_was_corrected_and_whose_label_looks_otherwise(opened, tmp_path):
    said = {"exclude": (3,), "relabel": ((5, 0),), "verified": ((4, 1),)}
    runs = [make_run(tmp_path, scores=True), make_run(tmp_path, seed=2, scores=True, **said)]
    runs[1].attach("trusted.parquet", pa.table({"task": [0, 0], "id": [4, 6], "label": [1, 0]}))
    view = opened(runs, made_pictures(60))
    view.tab("compare")
    each = "e => [+e.dataset.id, e.querySelector('.tile-note').textContent]"
    notes = view.all("#corrected .tile", each)
    assert notes == [
        [3, "as it came → left out"],
        [4, "as it came → verified =1+1"],
        [5, f"as it came → relabelled {NAMES[0]}"],
        [6, f"as it came → verified {NAMES[0]}"],
    ]
    scores = [read_scores(run).scores for run in runs]
    suspects = [set(each.ids[each.suspects("margin")].tolist()) for each in scores]
    more = view.page.locator("#panel-compare .more:visible")
    while more.count():
        more.first.click()
    assert set(view.all("#cleared .tile", "e => +e.dataset.id")) == suspects[0] - suspects[1]
    assert set(view.all("#doubted .tile", "e => +e.dataset.id")) == suspects[1] - suspects[0]
    assert suspects[0] - suspects[1]
    assert suspects[1] - suspects[0]
    assert view.said == []


def test_the_page_says_when_its_own_measure_is_dirty(opened, tmp_path):
    """A quarter of the made labels look wrong; the memory has verified ones, or not."""
    view = opened([make_run(tmp_path, scores=True)], made_pictures(60))
    assert "labels look wrong" in view.page.inner_text("#banner")
    assert "nobody has verified" in view.page.inner_text("#panel-map")
    view.page.click("#banner button")
    assert view.page.is_visible("#deck")
    run = make_run(tmp_path, seed=2, scores=True)
    path = run.path / "memory/task-001.parquet"
    held = pq.read_table(path)
    tasks = [0 if label < 2 else 1 for label in held["label"].to_pylist()]
    held = held.set_column(held.column_names.index("task"), "task", pa.array(tasks))
    pq.write_table(held.append_column("pinned", pa.array([True] * len(held))), path)
    list_anew(run.path)
    view = opened([run], made_pictures(60))
    assert not view.page.is_visible("#banner")
    assert "Measured against the run’s" in view.page.inner_text("#panel-map")
    assert view.said == []
