"""TensorBoard: event files in the run's own folder `tensorboard`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from metasp import trackers
from metasp.store import RunDir


@final
class Tracker(trackers.Tracker):
    @classmethod
    def check(cls, run: RunDir) -> None:
        """Nothing to reach: its files are the run's own."""

    def __init__(self, run: RunDir, resumed: bool) -> None:
        super().__init__(run, resumed)
        # The run is told from the beginning: what an earlier process wrote is replaced, some of
        # which it may have lost when it was killed.
        folder = run.path / "tensorboard"
        purge = 0 if folder.exists() else None
        wait_for_a_later_name(folder)
        self.writer = SummaryWriter(str(folder), purge_step=purge)  # type: ignore[no-untyped-call]

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def histograms(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        for name, column in values.items():
            self.writer.add_histogram(name, np.asarray(column), step)  # type: ignore[no-untyped-call]

    def figure(self, name: str, figure: Any, step: int) -> None:
        self.writer.add_image(name, pixels(figure), step)  # type: ignore[no-untyped-call]

    def close(self, finished: bool) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


def wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads event files by name, and a name begins with the second it was made in: a
    file of the same second could come before the one it replaces."""
    while any(f".{int(time.time())}." in path.name for path in folder.glob("events.*")):
        time.sleep(0.02)


def pixels(figure: Any) -> Any:
    """A figure as an image (channels, height, width) of bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].transpose(2, 0, 1)
