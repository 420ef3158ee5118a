"""Take the pictures of the explorer in docs/images with a headless Chromium:

    python docs/make_screenshots.py [--data DIR] [--runs FOLDER]

They show real runs on Split Fashion-MNIST: one of `metasp-rehsel` on clean labels, and the verify
loop on dirty ones, in which somebody who knows the true labels gives sixty verdicts with the
keyboard. Runs that the folder holds already are not run again."""

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).resolve().parent / "images"
STREAM = ("--benchmark", "split-fashion-mnist", "--limit-per-class", "300", "--threads", "1")
DIRTY = ("--label-noise", "0.6", "--label-noise-kind", "one-sided", "--imbalance", "0.3")
CLEAN = (*STREAM, "--method", "metasp-rehsel", "--epochs", "10")
FIRST = (*STREAM, *DIRTY, "--method", "er", "--epochs", "5")
VERDICTS = 60
SIZE = (1180, 900)
PHONE = (390, 844)
STEPS = (
    ("1. Look", "<code>metasp explore RUN --serve</code> shows the labels that look wrong."),
    ("2. Verify a few", "One key for each verdict; the page writes <code>verified.csv</code>."),
    ("3. Train again", "<code>metasp run --verified FILE</code>, then compare the two runs."),
)


def metasp(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "metasp", *arguments, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(runs: Path, *arguments: str) -> str:
    """The folder of a run."""
    return str(metasp("run", *arguments, "--runs", str(runs))["run"])


def explored(page: Path, *runs: str) -> str:
    """The address of the page of one run, or of two."""
    metasp("explore", *runs, "--out", str(page))
    return page.as_uri()


def opened(
    browser: Browser, address: str, size: tuple[int, int] = SIZE, dark: bool = False
) -> Page:
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page.goto(address)
    return page


def shot(page: Page, tab: str, target: Path) -> None:
    page.click(f"#tab-{tab}")
    page.wait_for_timeout(1000)  # charts draw themselves in
    page.screenshot(path=target)


def true_labels(run_folder: str) -> dict[int, int]:
    """The true labels of the examples whose label is wrong."""
    import pyarrow.parquet as pq

    table = pq.read_table(Path(run_folder) / "noise.parquet").to_pydict()
    return dict(zip(table["id"], table["true_label"], strict=True))


def verify(page: Page, truth: dict[int, int], verdicts: int) -> None:
    """Give verdicts with the keyboard, as a person who knows the true labels would."""
    page.click("#tab-verify")
    for _ in range(verdicts):
        identity = int(page.get_attribute("#deck", "data-id") or -1)
        page.keyboard.press(str(truth[identity]) if identity in truth else "ArrowRight")


def loop(browser: Browser, runs: Path, folder: Path) -> None:
    """The verify loop as one picture of three steps, on which `STEPS` are written."""
    first = run(runs, *FIRST)
    page = opened(browser, explored(folder / "first.html", first))
    shot(page, "suspects", folder / "step-1.png")
    verify(page, true_labels(first), VERDICTS)
    shot(page, "verify", folder / "step-2.png")
    with page.expect_download() as saved:
        page.click("#panel-verify #download")
    saved.value.save_as(folder / "verified.csv")
    spec = ("--spec", f"{first}/spec.toml", "--verified", str(folder / "verified.csv"))
    again = run(runs, "--method", "metasp-robust", *spec)
    page = opened(browser, explored(folder / "both.html", first, again))
    shot(page, "compare", folder / "step-3.png")
    board = opened(browser, "about:blank", (1500, 480))
    board.set_content(storyboard([folder / f"step-{number}.png" for number in (1, 2, 3)]))
    board.screenshot(path=IMAGES / "verify-loop.png", full_page=True)


def storyboard(pictures: list[Path]) -> str:
    """An HTML page with the pictures side by side, each below its title and its line."""
    cells = ""
    for (title, line), picture in zip(STEPS, pictures, strict=True):
        data = base64.b64encode(picture.read_bytes()).decode()
        image = f"<img src='data:image/png;base64,{data}'>"
        cells += f"<figure><h2>{title}</h2><p>{line}</p>{image}</figure>"
    style = (
        "body{margin:0;padding:16px;background:#fff;font:17px sans-serif;color:#1a2333}"
        "main{display:flex;gap:16px}figure{margin:0;flex:1}h2{margin:0;font-size:24px}"
        "p{margin:6px 0 12px;min-height:44px}code{background:#eef1f6;padding:1px 4px}"
        "img{width:100%;border:1px solid #cdd4e0;border-radius:6px}"
    )
    return f"<style>{style}</style><main>{cells}</main>"


def tour(browser: Browser, runs: Path, folder: Path) -> None:
    """Every view of one run on clean labels, and two runs side by side."""
    clean = run(runs, *CLEAN)
    address = explored(folder / "clean.html", clean)
    page = opened(browser, address)
    for tab, name in (("map", "explorer"), ("gallery", "explorer-gallery")):
        shot(page, tab, IMAGES / f"{name}.png")
    for tab in ("suspects", "scores"):
        shot(page, tab, IMAGES / f"explorer-{tab}.png")
    verify(page, {}, 19)
    shot(page, "verify", IMAGES / "explorer-verify.png")
    shot(opened(browser, address, dark=True), "memory", IMAGES / "explorer-memory.png")
    shot(opened(browser, address, PHONE), "gallery", IMAGES / "explorer-phone.png")
    other = run(runs, *STREAM, "--method", "er", "--epochs", "10")
    both = opened(browser, explored(folder / "two.html", clean, other))
    shot(both, "compare", IMAGES / "explorer-compare.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of the explorer.")
    parser.add_argument("--data", type=Path, help="the folder of the data sets")
    parser.add_argument("--runs", type=Path, help="where runs are kept from one call to the next")
    parser.add_argument("--only", choices=("loop", "tour"), help="a part of the pictures")
    asked = parser.parse_args()
    if asked.data is not None:
        os.environ["METASP_DATA"] = str(asked.data)
    path = os.environ.get("METASP_BROWSER") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as made, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        folder = Path(made)
        for name, part in (("loop", loop), ("tour", tour)):
            if asked.only in (None, name):
                part(browser, asked.runs or folder / "runs", folder)
        browser.close()


if __name__ == "__main__":
    main()
