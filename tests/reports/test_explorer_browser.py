"""The explorer in a real browser, on a real run and on made ones."""

import io
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from metasp.experiment import prepare
from metasp.reports.explorer import Examples, Missing
from metasp.spec import RunSpec
from metasp.store import RunDir
from tests.helpers import finish, metasp
from tests.reports.page_factories import NAMES, made_pictures, make_run

pytestmark = pytest.mark.slow

MAP = "() => echarts.getInstanceByDom(document.querySelector('#map')).getOption()"


BOUNDS = """(name) => {
  const { top, bottom } = document.querySelector(name).getBoundingClientRect();
  return [top, bottom];
}"""


@pytest.fixture(scope="module")
def real(browser, tmp_path_factory):
    """A small run on real pictures, its page made by the command line."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {"epochs": 2, "limit_per_class": 40, "threads": 1, "memory": 50}
    experiment = prepare(RunSpec(method="metasp-rehsel", **changes), folder)
    run = finish(experiment)
    done = metasp("explore", run.path)
    assert done.returncode == 0, done.stderr
    return experiment, run


def table(run: RunDir) -> dict:
    return pq.read_table(run.path / "influence.parquet").to_pydict()


def test_it_loads_without_a_complaint_and_asks_nothing_of_the_network(real, opened):
    view = opened(real[1])
    assert view.tabs == ["map", "gallery", "suspects", "verify", "memory", "scores"]
    for name in view.tabs:
        view.tab(name)
        assert view.page.is_visible(f"#panel-{name} h2")
        assert len(view.all("main section:not([hidden])", "e => e.id")) == 1
    assert view.said == []
    assert [url for url in view.asked if not url.startswith(("file:", "data:"))] == []
    assert "metasp-rehsel on split-digits" in view.page.inner_text("h1")
    counted = [int(text) for text in view.all(".side-count", "e => e.textContent")]
    assert sum(counted) == len(set(table(real[1])["id"]))


def test_the_policy_stops_a_script_and_a_request(real, opened):
    view = opened(real[1])
    stopped = view.page.evaluate(
        """async () => {
          const stopped = [];
          const note = (event) => stopped.push(event.effectiveDirective);
          document.addEventListener('securitypolicyviolation', note);
          const script = document.createElement('script');
          script.textContent = 'window.pwned = 1';
          document.body.append(script);
          await fetch('http://127.0.0.1:9/').catch(() => null);
          await new Promise((done) => setTimeout(done, 50));
          return [window.pwned === undefined, ...stopped];
        }"""
    )
    assert stopped[0] is True
    assert {"connect-src"} < set(stopped[1:])


def test_filters_change_what_is_shown(real, opened):
    columns, view = table(real[1]), opened(real[1])
    view.tab("gallery")
    view.page.select_option("#choose-task", "all")
    view.page.select_option("#choose-label", "3")
    view.page.click("text=Most helpful first")
    wanted = [i for i, label in zip(columns["id"], columns["label"]) if label == 3]
    assert view.page.inner_text("#found") == f"{len(wanted)} measurements"
    assert sorted(view.ids("#all")) == sorted(wanted)
    view.page.select_option("#choose-source", "memory")
    rows = zip(columns["id"], columns["label"], columns["source"])
    wanted = [i for i, *of in rows if of == [3, "memory"]]
    assert wanted
    assert sorted(view.ids("#all")) == sorted(wanted)
    view.page.select_option("#choose-kept", "kept")
    kept = zip(columns["id"], columns["label"], columns["source"], columns["kept"])
    assert sorted(view.ids("#all")) == sorted(i for i, *of in kept if of == [3, "memory", True])
    view.page.select_option("#choose-task", "1")
    view.page.select_option("#choose-label", "9")
    assert "No example fits" in view.page.inner_text("#panel-gallery")
    view.page.click("text=Show all examples")
    assert view.page.inner_text("#found") == f"{len(columns['id']):,} measurements"


def test_an_unfinished_run_is_told_as_far_as_it_came(opened, tmp_path):
    view = opened([make_run(tmp_path, finish=False)], Missing("gone."))
    words = view.page.inner_text("#summary")
    assert "learned 2 classes in 1 task," in words
    assert "So far it is right on 90.0 % of the test examples of these tasks" in words


@pytest.mark.parametrize("words", ["Learning", "Both together"])
def test_the_gallery_is_sorted(real, opened, words):
    name = {"Remembering": "stability", "Learning": "plasticity", "Both together": "fused"}[words]
    columns, view = table(real[1]), opened(real[1])
    view.tab("gallery")
    view.page.select_option("#choose-task", "3")
    view.page.click(f"#panel-gallery >> text={words}")
    rows = [
        (v, i) for v, i, task in zip(columns[name], columns["id"], columns["task"]) if task == 3
    ]
    best = [i for _, i in sorted(rows)]
    assert view.ids("#top") == best[:18]
    assert view.ids("#bottom") == best[:-19:-1]
    view.page.click("text=Most harmful first")
    more = view.page.locator("#panel-gallery .more")
    while more.is_visible():
        more.click()
    assert view.ids("#all") == best[::-1]


def nearest(picture: bytes, source) -> int:
    """The id of the example that looks most like a screenshot."""
    shown = np.asarray(
        Image.open(io.BytesIO(picture)).convert("L").resize((8, 8), Image.Resampling.BOX)
    )
    apart = np.abs(source.inputs[:, 0].numpy().astype(float) - shown).mean((1, 2))
    return int(source.ids[int(apart.argmin())])


def test_hovering_a_point_shows_its_picture_and_a_click_tells_all(real, opened):
    experiment, run = real
    view = opened(run)
    series = view.page.evaluate(MAP)["series"]
    points = np.array([value for entry in series for value in entry["data"]])
    assert len(points) == sum(task == 4 for task in table(run)["task"])
    spots = np.array(view.places("#map", points[:, :2].tolist()))
    gaps = np.abs(spots[:, None] - spots[None]).max(-1) + 1e9 * np.eye(len(spots))
    alone = np.argsort(-gaps.min(1))[:3]
    for at in alone:
        row = int(points[at][2])
        identity = table(run)["id"][row]
        view.page.mouse.move(*spots[at])
        view.page.wait_for_selector(f".tip[data-id='{identity}']")
        assert (
            nearest(view.page.locator(".tip .thumb").screenshot(), experiment.benchmark.source)
            == identity
        )
        values = [-table(run)[name][row] for name in ("stability", "plasticity")]
        assert np.allclose(np.sign(points[at][:2]) * points[at][:2] ** 2, values, rtol=1e-3)
    view.page.mouse.click(*spots[alone[0]])
    view.page.wait_for_selector("dialog[open]")
    assert f"example {table(run)['id'][int(points[alone[0]][2])]}" in view.page.inner_text(
        "#detail-title"
    )
    view.page.keyboard.press("Escape")
    assert not view.page.is_visible("dialog")
    assert view.said == []


def test_the_memory_through_time(real, opened):
    view = opened(real[1])
    view.tab("memory")
    held = [
        set(pq.read_table(real[1].path / f"memory/task-{t:03d}.parquet")["id"].to_pylist())
        for t in range(5)
    ]
    for task in (1, 3):
        view.page.click(f"text=After task {task + 1}")
        assert set(view.ids("#entered")) == held[task] - held[task - 1]
        assert set(view.ids("#left")) == held[task - 1] - held[task]
    view.page.click("text=After task 1")
    assert "The memory was empty before" in view.page.inner_text("#panel-memory")


def test_the_scores_are_those_of_the_result(real, opened):
    view, result = opened(real[1]), real[1].result()
    view.tab("scores")
    for words, name in (("Task given", "task_il"), ("Any class", "class_il")):
        view.page.click(f"text={words} (")
        cells = [text for text in view.all("td.heat", "e => e.textContent") if text]
        wanted = [f"{100 * v:.1f}" for row in result[name]["matrix"] for v in row if v is not None]
        assert cells == wanted
        assert f"{100 * result[name]['A_inf']:.1f} %" in view.page.inner_text(".facts")
    assert view.said == []


def is_dark(colour: str) -> bool:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) < 150


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_it_looks_right(real, opened, look):
    """Stored in build/explorer to be looked at; what can be measured is measured."""
    options = {
        "light": {"height": 800},
        "dark": {"color_scheme": "dark"},
        "phone": {"width": 390, "height": 844},
    }
    view = opened(real[1], **options[look])
    shade = "getComputedStyle(document.body).backgroundColor"
    assert is_dark(view.page.evaluate(shade)) == (look == "dark")
    if look == "light":
        top, bottom = view.page.evaluate(BOUNDS, "#map")
        assert bottom - top > 250
        assert bottom <= 800, "the whole map is seen before anything is scrolled"
    edges = view.all("[role=tab]", "e => e.getBoundingClientRect().right")
    assert max(edges) <= view.page.viewport_size["width"], "all tabs can be tapped"
    for name in view.tabs:
        view.tab(name)
        top, bottom = view.page.evaluate(BOUNDS, f"#panel-{name}")
        tall = view.page.viewport_size["height"]
        assert 0 <= top < 0.6 * tall, f"what {name} shows is in view after a tap"
        wide, window = view.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window, f"{name} is wider than the window"
        picture = np.asarray(Image.open(view.shot(f"{look}-{name}")).convert("L"))
        assert picture.std() > 10
    view.page.click("#theme")
    assert is_dark(view.page.evaluate(shade)) == (look != "dark")


def test_names_from_the_data_are_only_text(opened, tmp_path):
    view = opened([make_run(tmp_path)], made_pictures(60))
    for name in view.tabs:
        view.tab(name)
    view.tab("gallery")
    view.page.select_option("#choose-task", "all")
    view.page.select_option("#choose-label", "0")
    assert set(view.all("#top .tile-name", "e => e.textContent")) == {NAMES[0]}
    view.page.click("#top .tile >> nth=0")
    assert view.page.inner_text("#detail-title").startswith(NAMES[0])
    assert view.page.evaluate("window.pwned === undefined")
    assert view.said == []


def test_a_run_without_influences_still_shows_its_memory_and_scores(opened, tmp_path):
    run = make_run(tmp_path, influence=False, method="er")
    view = opened([run], made_pictures(60))
    assert view.page.get_attribute("#tab-memory", "aria-selected") == "true"
    assert set(view.ids("#entered")) == set(range(20, 30))
    assert not view.page.is_visible("#filters")
    assert "map" not in view.tabs, "there is nothing to draw on it"
    view.tab("gallery")
    assert "Nothing to show yet" in view.page.inner_text("#panel-gallery")
    view.tab("verify")
    assert "Nothing to verify yet" in view.page.inner_text("#panel-verify")
    view.tab("scores")
    assert "75.0 %" in view.page.inner_text(".facts")
    view.shot("er-scores")
    assert view.said == []


def test_without_pictures_and_with_rows(opened, tmp_path):
    run = make_run(tmp_path)
    view = opened([run], Missing("the folder is gone; give --data."))
    assert "the folder is gone; give --data." in view.page.inner_text("#notes")
    view.tab("gallery")
    assert view.page.inner_text("#top .thumb >> nth=0").startswith("#")
    values = np.arange(120 * 6, dtype=float).reshape(120, 6)
    view = opened([run], Examples(np.arange(120), np.arange(120), values))
    view.tab("gallery")
    first = view.ids("#top")[0]
    shown = view.all("#top .tile:first-child dd", "e => +e.textContent")
    assert shown == values[first, :4].tolist()
    view.shot("rows-gallery")
    assert view.said == []


def test_the_keyboard_reaches_everything(real, opened):
    view = opened(real[1])
    view.page.focus("#tab-map")
    view.page.keyboard.press("ArrowRight")
    assert view.page.get_attribute("#tab-gallery", "aria-selected") == "true"
    assert view.page.evaluate("document.activeElement.id") == "tab-gallery"
    view.page.keyboard.press("Home")
    view.page.focus("#map")
    view.page.keyboard.press("+")
    spans = [z["end"] - z["start"] for z in view.page.evaluate(MAP)["dataZoom"]]
    assert spans == pytest.approx([70, 70])
    view.page.keyboard.press("0")
    assert [z["end"] for z in view.page.evaluate(MAP)["dataZoom"]] == [100, 100]
    assert "examples: helps both" in view.page.get_attribute("#map", "aria-label")
    for name in view.tabs:
        view.tab(name)
        unnamed = "e => !(e.textContent.trim() || e.getAttribute('aria-label'))"
        assert not any(view.all("button, [role=img]", unnamed))
        fields = "e => !(e.labels?.length || e.getAttribute('aria-label'))"
        assert not any(view.all("select, input", fields))


def test_it_prints_all_views_and_comes_back(real, opened):
    view = opened(real[1], color_scheme="dark")
    paper = view.page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 4
    assert view.all("main section:not([hidden])", "e => e.id") == ["panel-map"]
    assert view.said == []


def test_ten_thousand_points_are_drawn_in_one_go_and_can_be_met(opened, tmp_path):
    view = opened([make_run(tmp_path, size=10_000)], made_pictures(10_000, 32, 3), (), 20_000)
    view.page.click("text=True scale")
    series = view.page.evaluate(MAP)["series"]
    assert sum(len(entry["data"]) for entry in series) == 10_000
    assert all(entry["large"] for entry in series)
    far = max((v for e in series for v in e["data"]), key=lambda v: v[0])
    view.page.mouse.move(*view.places("#map", [far[:2]])[0])
    view.page.wait_for_selector(".tip")
    start = view.page.evaluate(MAP)["dataZoom"][0]["start"]
    view.page.click("[aria-label='Zoom in']")
    x, y = view.places("#map", [[0, 0]])[0]
    view.page.mouse.move(x, y)
    view.page.mouse.down()
    view.page.mouse.move(x + 80, y, steps=4)
    view.page.mouse.up()
    zoomed = view.page.evaluate(MAP)["dataZoom"][0]
    assert start == 0
    assert zoomed["end"] - zoomed["start"] == pytest.approx(70)
    assert zoomed["start"] < 14.9, "dragged to the right, the view moved left"
    assert view.said == []
