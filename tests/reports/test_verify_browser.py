"""The verify tab in a real browser: keys, reload, undo, the file, what is saved beside a run."""

import csv
import io
import json
import threading
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
import torch

from metasp import ContinualLearner
from metasp.corrections import Corrections, read_corrections, read_rows
from metasp.reports.explorer import Examples, Missing, Texts, build_page
from metasp.reports.explorer.desk import Desk, Drawer, as_csv
from metasp.reports.explorer.html import Place, embedded
from metasp.reports.explorer.serve import server_of
from metasp.reports.suspect_tables import read_scores
from tests.reports.browser import Opened
from tests.reports.page_factories import NAMES, made_pictures, make_run

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, scores=True)


@pytest.fixture
def opened(browser, run, tmp_path):
    """The page of a run with made scores, from disk, at its verify tab."""
    views = []

    def make(material=None, **options) -> Opened:
        path = tmp_path / "page.html"
        place = Place("runs/one two", "metasp run --spec 'runs/one two/spec.toml'")
        path.write_bytes(build_page([run], material or made_pictures(60), places=[place]).content)
        views.append(Opened(browser, path, **options))
        views[-1].tab("verify")
        return views[-1]

    yield make
    for view in views:
        view.context.close()


@contextmanager
def serving(run):
    """The page of a run, served as `metasp explore --serve` does; gives desk and address."""
    built = build_page([run], made_pictures(60))
    drawer = Drawer(run.verdicts, built.labels[run.path.name], built.names(), "RUN/verified.csv")
    desk = Desk({run.path.name: drawer})
    before, after = built.served()
    server = server_of(lambda: before + embedded(desk.told()).encode() + after, desk=desk)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield desk, server.address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def card(view: Opened) -> int:
    return int(view.page.get_attribute("#deck", "data-id"))


def press(view: Opened, *keys: str) -> list[int]:
    """Press keys, and say which card lay on the table at each."""
    seen = []
    for key in keys:
        seen.append(card(view))
        view.page.keyboard.press(key)
    return seen


def saved(view: Opened) -> Corrections:
    with view.page.expect_download() as waiting:
        view.page.click("#download")
    assert waiting.value.suggested_filename == "verified.csv"
    return read_corrections({"verified": waiting.value.path()}, NAMES, 999)


def right_of_each_class(run) -> dict[int, list[int]]:
    """An independent answer to which come first: sorted by margin within each label."""
    scores = read_scores(run).scores
    rows = sorted(range(len(scores.ids)), key=lambda row: -scores.ways["margin"][row])
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(int(scores.labels[row]), []).append(int(scores.ids[row]))
    return found


def test_each_verdict_is_a_key_and_every_third_card_is_a_sure_one(run, opened):
    view = opened()
    best = right_of_each_class(run)
    scores = read_scores(run).scores
    suspects = scores.ids[scores.order("margin")].tolist()
    assert view.page.inner_text("#progress") == "0 verdicts; 12 sure ones to come, 3 per class"
    asked = press(view, "w", "ArrowRight", "r", "2", "ArrowLeft", "r")
    assert asked[:5] == [*suspects[:2], best[0][0], *suspects[2:4]]
    assert asked[5] in {ids[0] for ids in best.values()} - {asked[2]}
    found = saved(view)
    label = dict(zip(scores.ids.tolist(), scores.labels.tolist()))
    assert found.exclude == tuple(sorted([asked[0], asked[4]]))
    sure = {asked[1]: label[asked[1]], asked[2]: 0, asked[3]: 1, asked[5]: label[asked[5]]}
    assert dict(found.verified) == sure
    assert "of the last 4 suspects" in view.page.inner_text("#progress")
    titles = view.all("#deck .strip figcaption", "e => e.textContent")
    assert titles[0].startswith("labelled ")
    assert titles[-1] == "nearest"
    assert view.said == []


def test_twenty_suspects_that_are_right_are_enough(opened):
    view = opened()
    for _ in range(40):
        view.page.keyboard.press("ArrowRight")
    assert view.page.inner_text("#progress").startswith(
        "Enough: of the last 20 suspects you called"
    )


def test_a_pair_of_classes_is_filtered_taken_at_once_and_undone(run, opened):
    view = opened()
    view.tab("suspects")
    pair = view.all("#pairs button", "e => [e.dataset.pair, +e.textContent]")[0]
    view.page.click("#pairs button >> nth=0")
    shown = view.ids("#panel-suspects .cards")
    given, taken = map(int, pair[0].split(">"))
    scores = read_scores(run).scores
    row = {identity: place for place, identity in enumerate(scores.ids.tolist())}
    assert len(shown) == pair[1]
    assert {(int(scores.labels[row[i]]), int(scores.predicted[row[i]])) for i in shown} == {
        (given, taken)
    }
    view.page.click("#bulk")
    assert dict(saved(view).verified) == dict.fromkeys(shown, taken)
    with view.page.expect_download() as waiting:
        view.page.click("#cleaned")
    lines = list(csv.DictReader(waiting.value.path().open(encoding="utf-8")))
    assert len(lines) == len(scores.ids)
    assert {int(line["id"]) for line in lines if line["verdict"] == "verified"} == set(shown)
    view.tab("verify")
    view.page.click("#verdict-undo")
    assert view.page.inner_text("#progress").startswith("0 verdicts")


def test_the_class_can_be_chosen_and_undone(run, opened):
    view = opened()
    (first,) = press(view, "i")
    view.page.click(".classes button[data-label='3']")
    assert card(view) != first
    assert dict(saved(view).verified) == {first: 3}
    view.page.keyboard.press("Backspace")
    assert card(view) == first
    assert view.page.is_visible("#saved")
    (second,) = press(view, "r")
    assert second == first
    press(view, "w", "s")
    for _ in range(2):
        view.page.keyboard.press("Control+z")
    assert dict(saved(view).verified) == {first: 0}
    assert not saved(view).exclude
    view.page.keyboard.press("u")
    assert card(view) == first
    assert view.page.is_disabled("#verdict-undo")
    assert view.said == []


def test_a_reload_loses_nothing_and_undo_reaches_behind_it(run, opened):
    view = opened()
    press(view, "r", "w", "r")
    before = saved(view)
    at = card(view)
    view.page.reload()
    view.tab("verify")
    assert card(view) == at
    assert saved(view) == before
    view.page.keyboard.press("u")
    assert len(saved(view).verified) == len(before.verified) - 1
    view.page.evaluate("localStorage.setItem(Object.keys(localStorage)[0], '{\"said\": 7}')")
    view.page.reload()
    view.tab("verify")
    assert view.page.is_disabled("#download"), "what is no verdict is not believed"
    assert view.said == []


def test_keys_are_for_the_deck_alone(run, opened):
    view = opened()
    first = card(view)
    view.page.focus("#tab-verify")
    view.page.keyboard.press("ArrowRight")
    assert view.page.get_attribute("#tab-memory", "aria-selected") == "true"
    view.page.keyboard.press("w")
    view.tab("verify")
    assert card(view) == first
    view.page.keyboard.press("Alt+w")
    view.page.keyboard.press("Control+r")
    view.page.wait_for_selector("#deck", state="attached")
    assert view.page.is_disabled("#download")


def test_the_command_is_shown_and_nothing_started(opened):
    view = opened()
    press(view, "r")
    view.page.click("#command")
    lines = view.all("#commands pre", "e => e.textContent")
    again = "--spec 'runs/one two/spec.toml'"
    assert lines == [
        "metasp suspects 'runs/one two' --format csv > suspects.csv",
        f"metasp run --method er {again} --exclude suspects.csv --verified verified.csv",
        f"metasp run --method metasp-robust {again} --verified verified.csv",
        "metasp explore 'runs/one two' NEW_RUN",
    ]
    assert [url for url in view.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_page_and_the_server_write_the_same_file(run, opened):
    view = opened()
    press(view, "r", "w", "2", "r", "3")
    with view.page.expect_download() as waiting:
        view.page.click("#download")
    text = waiting.value.path().read_bytes().decode()
    built = build_page([run], Missing("gone."))
    rows = csv.reader(io.StringIO(text, newline=""))
    found = read_corrections({"verified": waiting.value.path()}, NAMES, 999)
    verdicts = [*found.verified, *((identity, None) for identity in found.exclude)]
    assert text == as_csv(verdicts, built.labels[run.path.name], NAMES)
    for line in rows:
        assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in line)


def test_rows_and_sentences_instead_of_pictures(run, opened):
    values = np.arange(120 * 6, dtype=float).reshape(120, 6)
    view = opened(Examples(np.arange(120), np.arange(120), values))
    assert view.all(".deck-picture dd", "e => +e.textContent") == values[card(view)].tolist()
    texts = {number: f"how <do> I pay bill {number}?" for number in range(120)}
    view = opened(Texts(texts))
    assert view.page.inner_text(".deck-picture").strip("“”") == texts[card(view)]
    view.shot("verify-text")


def test_numbers_are_verified_with_the_same_keys(browser, tmp_path):
    """A regression: its deck, the file, and a learner that has learned what the file says."""
    inputs = torch.rand(80, 3, generator=torch.Generator().manual_seed(1))
    true = inputs.sum(1, keepdim=True)
    targets = true.clone()
    targets[7], targets[31] = -9.0, 12.5

    def learned(inputs, labels):
        torch.manual_seed(0)
        learner = ContinualLearner(
            torch.nn.Linear(3, 1), "er", loss_fn=lambda out, y: (out - y).square().mean(1),
            selection="reservoir", memory=20, epochs=20, lr=0.05,
        )  # fmt: skip
        return learner.learn((inputs, labels), progress=False)

    before = learned(inputs, targets)
    place = before.explore(tmp_path / "page.html", words={7: "the seventh"})
    view = Opened(browser, place)
    view.tab("verify")
    view.page.click("#panel-verify [data-value='3']")
    assert view.page.inner_text("#progress") == "0 verdicts; 3 sure ones to come, 3"
    assert card(view) == 31
    assert view.page.inner_text("#label") == "12.5"
    view.page.keyboard.press("ArrowUp")
    view.page.keyboard.type("two")
    view.page.keyboard.press("Enter")
    assert card(view) == 31  # that is no number
    for _ in "two":
        view.page.keyboard.press("Backspace")
    view.page.keyboard.type(str(float(true[31])))
    view.page.keyboard.press("Enter")
    while card(view) != 7:
        view.page.keyboard.press("ArrowDown")
    assert "the seventh" in view.page.inner_text("#deck")
    view.page.keyboard.press("ArrowLeft")
    with view.page.expect_download() as waiting:
        view.page.click("#download")
    rows = read_rows(waiting.value.path(), 80, ("label",))
    assert {i: float(cell) for i, cell in rows.items() if cell} == {
        31: float(true[31]),
    }
    assert rows[7] == ""
    assert view.said == []
    view.context.close()
    for identity, cell in rows.items():
        targets[identity] = float(cell or "nan")
    kept = ~targets[:, 0].isnan()
    after = learned(inputs[kept], targets[kept])
    assert after.score((inputs, true)) < 0.5 * before.score((inputs, true))


def test_served_verdicts_are_saved_beside_the_run(browser, run):
    with serving(run) as (desk, address):
        view = Opened(browser, address)
        view.tab("verify")
        press(view, "r", "w")
        view.page.click("#save")
        view.page.wait_for_selector("text=Saved 2 verdicts in RUN/verified.csv.")
        drawer = desk.drawers[run.path.name]
        assert run.verdicts.read_bytes() == as_csv(drawer.saved(), drawer.labels, NAMES).encode()
        assert len(drawer.saved()) == 2
        press(view, "r")
        view.page.click("#save")
        view.page.wait_for_selector("text=Saved 3 verdicts")
        # Another browser goes on from the file; and then the first does not write over it.
        other = Opened(browser, address)
        other.tab("verify")
        assert card(other) == card(view)
        press(other, "w")
        other.page.click("#save")
        other.page.wait_for_selector("text=Saved 4 verdicts")
        press(view, "r", "r")
        view.page.click("#save")
        view.page.wait_for_selector("text=Not saved")
        assert len(drawer.saved()) == 4
        view.page.reload()
        view.tab("verify")
        view.page.click("#save")
        view.page.wait_for_selector("text=Saved 5 verdicts")
        page = address.split("?")[0]
        asked = {url for url in view.asked if not url.startswith("data:")}
        assert asked == {address, page, f"{page}verified"}
        command = "--verified RUN/verified.csv"
        view.page.click("#command")
        assert view.page.inner_text("#commands pre >> nth=1").endswith(command)
        # The refused save is the browser's own note; nothing else was said.
        assert [words for words in view.said if "400" not in words] == []
        for each in (view, other):
            each.context.close()
    assert json.loads(json.dumps(desk.told()))["runs"][run.path.name]["amiss"] is None


def test_another_site_cannot_save(browser, run):
    """A page of another origin, with the token even, in the same browser."""
    foreign = server_of(b"<!doctype html><title>other</title>")
    thread = threading.Thread(target=foreign.serve_forever)
    thread.start()
    try:
        with serving(run) as (desk, address):
            view = Opened(browser, foreign.address)
            script = """async ([address, token, run]) => {
              const body = JSON.stringify({ run, version: '', verdicts: [] });
              const send = (headers, mode) =>
                fetch(address + 'verified', { method: 'POST', mode, headers, body })
                  .then((answer) => answer.type, () => 'refused');
              return [
                await send({ 'Content-Type': 'application/json', 'X-Metasp-Token': token }, 'cors'),
                await send({ 'Content-Type': 'text/plain' }, 'no-cors'),
              ];
            }"""
            page = address.split("?")[0]
            found = view.page.evaluate(script, [page, desk.token, run.path.name])
            assert found == ["refused", "opaque"]
            assert not run.verdicts.exists()
            view.context.close()
    finally:
        foreign.shutdown()
        thread.join()
        foreign.server_close()


def test_what_is_known_is_shown_only_when_asked_for(browser, tmp_path):
    run = make_run(tmp_path, scores=True, label_noise=0.1)
    noise = {"task": [0, 0], "id": [4, 5], "label": [0, 1], "true_label": [1, 0]}
    run.attach("noise.parquet", pa.table(noise))
    path = tmp_path / "page.html"
    path.write_bytes(build_page([run], made_pictures(60)).content)
    view = Opened(browser, path)
    view.tab("suspects")
    assert view.page.locator(".truth").count() == 0
    view.page.click("#truth")
    view.page.click("#wide")
    while view.page.locator("#panel-suspects .more").is_visible():
        view.page.click("#panel-suspects .more")
    wrong = view.all(".card:has(.known-wrong)", "e => +e.dataset.id")
    assert sorted(wrong) == [4, 5]
    assert "2 are known to be wrong" in view.page.inner_text("#found-wrong")
    view.page.click("#truth")
    assert view.page.locator(".truth").count() == 0
    view.context.close()
