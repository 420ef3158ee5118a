"""How smoothly the explorer's map of 10,000 points pans in headless Chromium, without a GPU, and
how soon the next card of the verify tab lies on the table.

    PYTHONPATH=src:. python benchmarks/explorer_pan.py

The view moves in every frame; told are the frames per second and the script's part of a frame. On
a busy machine the first number falls, the second hardly does. Then a key is pressed in every frame:
a verdict is noted, kept in the browser, and the next card is drawn."""

import tempfile
from pathlib import Path

from tests.reports.browser import Opened, started
from tests.reports.page_factories import made_pictures, make_run

from metasp.reports.explorer import build_page

SECONDS = 5.0
EACH_FRAME = """async ([seconds, kind]) => {
  const chart = () => echarts.getInstanceByDom(document.querySelector('#map'));
  const pan = (elapsed) => {
    const start = 20 + 15 * Math.sin(elapsed / 400);
    chart().dispatchAction({ type: 'dataZoom', batch: [0, 1].map((dataZoomIndex) =>
      ({ dataZoomIndex, start, end: start + 60 })) });
    chart().getZr().flush();
  };
  const keys = ['ArrowRight', 'ArrowLeft', 'ArrowDown', 'u', 'ArrowRight'];
  const press = (elapsed, n) => document.body.dispatchEvent(
    new KeyboardEvent('keydown', { key: keys[n % keys.length], bubbles: true, cancelable: true }));
  const spent = [];
  const began = performance.now();
  while (performance.now() - began < 1000 * seconds) {
    const before = performance.now();
    (kind === 'pan' ? pan : press)(before - began, spent.length);
    spent.push(performance.now() - before);
    await new Promise(requestAnimationFrame);
  }
  const frames = (1000 * spent.length) / (performance.now() - began);
  return [frames, spent.sort((a, b) => a - b)[Math.floor(spent.length / 2)]];
}"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, started() as browser:
        run = make_run(Path(folder), size=10_000, scores=True)
        page = Path(folder) / "page.html"
        built = build_page([run], made_pictures(10_000, 32, 3), limit=20_000)
        page.write_bytes(built.content)
        view = Opened(browser, page)
        print(f"page: {len(built.content) / 1e6:.1f} MB, {built.shown:,} examples")
        for tab, kind in (("map", "pan"), ("verify", "press")):
            view.tab(tab)
            frames, script = view.page.evaluate(EACH_FRAME, [SECONDS, kind])
            print(f"{tab}: {frames:.0f} frames per second, {script:.1f} ms of script each (median)")


if __name__ == "__main__":
    main()
