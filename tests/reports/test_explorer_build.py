"""The page without a browser: its numbers, its pictures, its policy, and what is refused."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from metasp.label_scores import NO_CLASS, WAYS, Scores
from metasp.reports.explorer import Examples, Missing, Texts, build_page
from metasp.reports.explorer.html import embedded
from metasp.reports.explorer.pictures import RIM, packed
from metasp.reports.explorer.points import (
    MEASURES,
    deck,
    helped,
    histograms,
    ids_to_show,
    points_of,
    side_counts,
)
from metasp.reports.explorer.records import goals, read_run
from metasp.reports.suspect_tables import read_scores
from tests.helpers import ROOT, finish, metasp
from tests.reports.page_factories import NAMES, made_influence, made_pictures, make_run

WITHOUT = Missing("the data is gone.")


def data_of(page: bytes) -> dict:
    found = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def sheets_of(page: bytes) -> list[np.ndarray]:
    found = re.search(rb'<script type="application/json" id="sheets">(.*?)</script>', page, re.S)
    return [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))
        for uri in json.loads(found[1])
    ]


def tile(about: dict, sheets: list[np.ndarray], place: int) -> np.ndarray:
    """The picture at a place, found as the page's script finds it."""
    sheet, number = divmod(place, about["perSheet"])
    line, column = divmod(number, about["across"])
    top = line * (about["height"] + 2 * RIM) + RIM
    left = column * (about["width"] + 2 * RIM) + RIM
    return sheets[sheet][top : top + about["height"], left : left + about["width"]]


def two_tasks() -> dict:
    """Some examples measured twice, in shuffled order."""
    parts = [made_influence(40, seed, task) for seed, task in ((3, 1), (4, 2))]
    order = np.random.default_rng(0).permutation(80)
    return {k: [(parts[0][k] + parts[1][k])[i] for i in order] for k in parts[0]}


def test_each_example_counts_once_on_the_side_of_its_last_measurement():
    columns = two_tasks()
    last = {}
    for task, i, s, p in zip(*(columns[k] for k in ("task", "id", "stability", "plasticity"))):
        if i not in last or task > last[i][0]:
            last[i] = (task, s < 0, p < 0)
    wanted = {"both": 0, "remembering": 0, "learning": 0, "neither": 0}
    for _, remembers, learns in last.values():
        name = ("both" if learns else "remembering") if remembers else (
            "learning" if learns else "neither")  # fmt: skip
        wanted[name] += 1
    assert side_counts(points_of(columns, "x")) == wanted
    assert sum(wanted.values()) == 40 < len(columns["id"])


def test_statistics_count_every_measurement():
    columns = two_tasks()
    points = points_of(columns, "x")
    for entry in helped(points):
        rows = zip(columns[entry["measure"]], columns["task"], columns["source"])
        values = [v for v, *of in rows if of == [entry["task"], entry["source"]]]
        assert entry["helps"] == sum(v < 0 for v in values)
        assert entry["hurts"] == sum(v > 0 for v in values)
    assert len(helped(points)) == 2 * 2 * 3
    for entry in histograms(points):
        assert len(entry["counts"]) == 5
        assert np.allclose(np.diff(entry["edges"]), np.diff(entry["edges"])[0])
        assert sum(entry["counts"]) == columns["source"].count(entry["source"])


def test_the_limit_keeps_the_memory_and_both_ends():
    columns = made_influence(3000, 7)
    points = points_of(columns, "x")
    remembered = np.arange(100, 140)
    others = np.arange(6000, 6500)
    shown = ids_to_show(points, [remembered], others, 700)
    assert len(shown) == len(set(shown.tolist())) == 700
    assert set(remembered) <= set(shown.tolist())
    for measure in MEASURES:
        order = np.argsort(columns[measure])
        ends = {columns["id"][i] for i in [*order[:20], *order[-20:]]}
        assert ends <= set(shown.tolist())
    assert (ids_to_show(points, [remembered], others, 700) == shown).all()
    rest = np.setdiff1d(shown, remembered)
    assert 3500 < np.median(rest) < 5500, "the sample of the rest is even over ids 3000..6500"
    assert set(others) & set(shown.tolist())


def made_scores(margins: list[float], labels: list[int]) -> Scores:
    size = len(margins)
    unknown = np.full(size, np.nan)
    ways = {**dict.fromkeys(WAYS, unknown), "margin": np.asarray(margins)}
    tasks, guesses = np.zeros(size, np.int64), np.full(size, NO_CLASS)
    return Scores(10 * np.arange(size), np.asarray(labels), tasks, guesses, ways)


def test_the_deck_has_the_likely_right_of_each_class_then_doubts_in_turn():
    scores = made_scores([3, -2, 5, 0.1, -4, np.nan, 1], [0, 0, 1, 1, 1, 0, 0])
    cards = deck(scores, "margin")
    assert cards["right"] == {"0": [0, 60, 10], "1": [20, 30, 40]}
    # Expected wrong: −4 and −2; then the next, 0.1, 1, …, and those nearest to 0; each once.
    assert cards["then"] == [40, 10, 30, 60, 0, 20]


def test_suspects_of_the_page_are_those_of_the_terminal(tmp_path):
    run = make_run(tmp_path, scores=True)
    told = data_of(build_page([run], WITHOUT).content)["runs"][0]["scores"]
    found = read_scores(run)
    assert told["best"] == found.scores.best == "margin"
    assert told["all"] == len(found.scores.ids) == 120
    for way, entry in told["ways"].items():
        wanted = [found.row(int(place)) for place in found.scores.suspects(way)]
        rows = entry["order"][: entry["expected"]]
        assert [told["id"][row] for row in rows] == [row["id"] for row in wanted]
        assert [told["predicted"][row] for row in rows] == [row["predicted"] for row in wanted]
        values = [entry["values"][row] for row in rows]
        assert values == pytest.approx([row[way] for row in wanted], rel=1e-4)
    assert {"margin", "loss", "influence", "both"} == set(told["ways"])


def test_against_what_influence_was_measured():
    """Verified examples alone, where every class of the task, or of the past, has some."""
    tasks = [{"classes": [0, 1]}, {"classes": [2, 3]}]
    table = {"label": [0, 1, 2, 3, 3], "task": [0, 0, 1, 1, 1]}
    cases = [
        ([1, 1, 1, 1, 0], True, True),
        ([1, 0, 1, 1, 1], False, True),
        ([1, 1, 1, 0, 0], True, False),
        ([None] * 5, False, False),
    ]
    for pinned, old, new in cases:
        told = goals({1: {**table, "pinned": pinned}}, tasks)
        assert told == [{"task": 1, "old": old, "new": new}]
    assert goals({1: table}, tasks) == [{"task": 1, "old": False, "new": False}]


def test_sentences_are_shown_as_they_are(tmp_path):
    texts = {number: f"<b>sentence</b> {number}" for number in range(120)}
    page = build_page([make_run(tmp_path)], Texts(texts)).content
    about = data_of(page)["pictures"]
    assert about["kind"] == "texts"
    assert about["values"][about["ids"].index(7)] == texts[7]
    assert b"<b>sentence" not in page


def test_what_entered_and_left_the_memory(tmp_path):
    steps = read_run(make_run(tmp_path)).told["memory"]
    first, second = steps
    assert {entry[0] for entry in first["entered"]} == set(range(20))
    assert first["left"] == []
    assert {entry[0] for entry in second["entered"]} == set(range(20, 30))
    assert {entry[0] for entry in second["left"]} == set(range(10))
    assert (second["held"], second["stayed"]) == (20, 10)
    columns = made_influence(60, 1)
    told = dict(zip(columns["id"], columns["fused"]))
    for identity, label, value in second["left"]:
        assert (label, value) == (identity % 4, told[identity])
    known = [entry[2] for entry in second["left"]]
    assert known == sorted(known), "the most helpful first"
    unknown = [entry[0] for entry in first["entered"] if entry[2] is None]
    assert unknown == [0, 5, 10, 15], "what was never measured comes last"


def test_few_pictures_are_exact_and_in_their_place(tmp_path):
    material = made_pictures(60)
    page = build_page([make_run(tmp_path)], material).content
    about, sheets = data_of(page)["pictures"], sheets_of(page)
    assert len(about["ids"]) > 60
    for place, identity in enumerate(about["ids"]):
        picture = tile(about, sheets, place)
        assert (picture == material.inputs[identity, 0][:, :, None]).all()


def test_ten_thousand_pictures_of_32_pixels_stay_below_15_megabytes(tmp_path):
    material = made_pictures(10_000, side=32, channels=3)
    built = build_page([make_run(tmp_path, size=10_000)], material)
    assert built.shown == 10_000 < built.examples
    assert len(built.content) < 15_000_000
    about, sheets = data_of(built.content)["pictures"], sheets_of(built.content)
    for place in (0, 2_499, 2_500, 9_999):
        wanted = material.inputs[about["ids"][place]].transpose(1, 2, 0).astype(float)
        assert np.abs(tile(about, sheets, place) - wanted).mean() < 20
        other = material.inputs[about["ids"][place - 1]].transpose(1, 2, 0).astype(float)
        assert np.abs(tile(about, sheets, place) - other).mean() > 40


@pytest.mark.parametrize(("shape", "kind"), [((84, 60), np.uint8), ((84, 60), np.float32)])
def test_large_or_real_valued_pictures_become_small_ones(shape, kind):
    ramp = np.linspace(0, 1, shape[1])[None, None, None] * np.ones((3, 3, *shape))
    images = (255 * ramp).astype(kind) if kind == np.uint8 else (4 * ramp - 2).astype(kind)
    about, sheets = packed(Examples(np.arange(3), np.arange(3), images))
    assert (about["height"], about["width"]) == (64, 46)
    page = b'<script type="application/json" id="sheets">' + json.dumps(sheets).encode()
    row = tile(about, sheets_of(page + b"</script>"), 2)[30, :, 0].astype(float)
    assert np.abs(row - np.linspace(0, 255, 46)).max() < 12


def test_rows_of_a_table_are_shown_as_they_are(tmp_path):
    values = np.random.default_rng(1).normal(size=(120, 45))
    values[7, 3] = np.nan
    page = build_page(
        [make_run(tmp_path)], Examples(np.arange(120), np.arange(120), values)
    ).content
    about = data_of(page)["pictures"]
    assert (about["kind"], about["columns"]) == ("rows", 45)
    place = about["ids"].index(7)
    assert about["values"][place][3] is None
    assert np.allclose(about["values"][place][4:40], values[7, 4:40], rtol=1e-4)


def test_the_page_lets_nothing_in_but_itself(tmp_path):
    text = build_page([make_run(tmp_path)], made_pictures(60)).content.decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"
    assert parts["img-src"] == "data:"
    for tag, key in (("script", "script-src"), ("style", "style-src")):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        hashes = [base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in inline]
        assert parts[key].split() == [f"'sha256-{h}'" for h in hashes]
    head = text[: text.index('<script type="application/json"')]
    assert not re.search(r"(src|href)=(?!\"#)", head)
    assert "<script>window.pwned" not in text


def test_embedded_json_cannot_close_its_element():
    nasty = {"a": "</script><!-- & ]]>", "b": ["<", "é\u2028"], "folder": "caf\udce9"}
    text = embedded(nasty)
    assert text.encode(), "half a surrogate pair, as an undecodable file name has, is escaped"
    assert not set("<>&") & set(text)
    assert json.loads(text) == nasty


def test_an_unfinished_run_tells_what_it_has(tmp_path):
    run = make_run(tmp_path, finish=False)
    with open(run.path / "events.jsonl", "ab") as log:
        log.write(b'{"event": "Eval')
    told = data_of(build_page([run], WITHOUT).content)
    assert told["runs"][0]["finished"] is False
    assert told["runs"][0]["scenarios"]["class_il"]["matrix"] == [[0.9]]
    assert told["pictures"] == {"kind": "none", "why": "the data is gone."}


@pytest.mark.slow
def test_the_command_writes_the_page_and_forgets_it_when_the_run_is_made_anew(tiny):
    experiment = tiny(method="metasp-rehsel")
    run = finish(experiment)
    done = metasp("explore", run.path, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["page"] == str(run.path / "explorer.html")
    page = (run.path / "explorer.html").read_bytes()
    assert told["bytes"] == len(page)
    assert told["without_pictures"] is None
    data = data_of(page)
    assert data["classes"] == [str(digit) for digit in range(10)]
    source = experiment.benchmark.source
    sheets = sheets_of(page)
    row = {int(i): at for at, i in enumerate(source.ids)}
    for place, identity in enumerate(data["pictures"]["ids"]):
        wanted = source.inputs[row[identity], 0].numpy()
        assert (tile(data["pictures"], sheets, place)[:, :, 0] == wanted).all()
    with experiment.directory.open(experiment.spec, fresh=True):
        assert not (run.path / "explorer.html").exists()


def test_without_the_data_the_page_is_made_and_says_so(tmp_path):
    run = make_run(tmp_path)
    done = metasp("explore", run.path, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "page.html")
    assert "no pictures" in done.stderr
    data = data_of((tmp_path / "page.html").read_bytes())
    assert data["pictures"]["kind"] == "none"
    assert data["classes"] == list(NAMES)


def test_what_the_page_is_made_of_is_shipped():
    """Every asset is named in the package data, the library with its licence."""
    page = ROOT / "src/metasp/reports/explorer/page"
    shipped = {p.name for p in page.glob("*") if p.is_file()} | {
        p.name for p in (page / "vendor").glob("*")
    }
    assert {"template.html", "style.css", "main.js", "echarts.common.min.js"} <= shipped
    assert {"echarts.LICENSE", "echarts.NOTICE"} <= shipped
    text = (ROOT / "pyproject.toml").read_text()
    assert "reports/explorer/page/*" in text
    assert "reports/explorer/page/vendor/*" in text
