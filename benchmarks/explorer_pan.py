"""How smoothly the explorer's map of 10,000 points pans in headless Chromium, without a GPU.

    PYTHONPATH=src:. python benchmarks/explorer_pan.py

The view moves in every frame; told are the frames per second and the script's part of a frame. On
a busy machine the first number falls, the second hardly does."""

import tempfile
from pathlib import Path

from tests.reports.browser import Opened, started
from tests.reports.explored import made_pictures, make_run

from metasp.reports.explorer import build_page

SECONDS = 5.0
PAN = """async (seconds) => {
  const chart = echarts.getInstanceByDom(document.querySelector('#map'));
  const spent = [];
  const began = performance.now();
  while (performance.now() - began < 1000 * seconds) {
    const before = performance.now();
    const start = 20 + 15 * Math.sin((before - began) / 400);
    chart.dispatchAction({ type: 'dataZoom', batch: [0, 1].map((dataZoomIndex) =>
      ({ dataZoomIndex, start, end: start + 60 })) });
    chart.getZr().flush();
    spent.push(performance.now() - before);
    await new Promise(requestAnimationFrame);
  }
  const frames = (1000 * spent.length) / (performance.now() - began);
  return [frames, spent.sort((a, b) => a - b)[Math.floor(spent.length / 2)]];
}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        run = make_run(Path(folder), size=10_000)
        page = Path(folder) / "page.html"
        built = build_page([run], made_pictures(10_000, 32, 3), limit=20_000)
        page.write_bytes(built.content)
        view = Opened(browser, page)
        frames, script = view.page.evaluate(PAN, SECONDS)
        print(f"page: {len(built.content) / 1e6:.1f} MB, {built.shown:,} examples")
        print(f"panning: {frames:.0f} frames per second, each drawn anew")
        print(f"of each frame: {script:.1f} ms of script (median)")


if __name__ == "__main__":
    main()
