"""A real browser for the explorer's page, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import ROOT

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SHOTS = ROOT / "build" / "explorer"


def chromium() -> str:
    """The path of a Chromium, or the test is skipped with a sentence."""
    found = os.environ.get("METASP_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no browser found: install chromium (apt-get install chromium) to run this.")
    return found


@contextmanager
def started() -> Iterator[object]:
    path = chromium()
    reason = "playwright is not installed: pip install playwright to run this."
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


class Opened:
    """A page from disk, or from an address, with all it said and all it asked for."""

    def __init__(
        self, browser, path: Path | str, width: int = 1280, height: int = 900, **options
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **options
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.set_default_timeout(10_000)
        self.page.goto(path if isinstance(path, str) else path.as_uri())

    def tab(self, name: str) -> None:
        self.page.click(f"#tab-{name}")

    @property
    def tabs(self) -> list[str]:
        return self.all("[role=tab]", "e => e.id.slice(4)")

    def all(self, selector: str, each: str) -> list:
        return self.page.eval_on_selector_all(selector, f"all => all.map({each})")

    def ids(self, box: str) -> list[int]:
        return self.all(f"{box} [data-id]", "e => +e.dataset.id")

    def shot(self, name: str) -> Path:
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def places(self, chart: str, values: list[list[float]]) -> list[tuple[float, float]]:
        """Where on the screen a chart draws some points."""
        self.page.locator(chart).scroll_into_view_if_needed()
        found = self.page.evaluate(
            "([box, values]) => {"
            "const chart = echarts.getInstanceByDom(document.querySelector(box));"
            "const axes = { xAxisIndex: 0, yAxisIndex: 0 };"
            "return values.map((value) => chart.convertToPixel(axes, value)); }",
            [chart, values],
        )
        box = self.page.locator(chart).bounding_box()
        return [(box["x"] + x, box["y"] + y) for x, y in found]
