"""Pictures decoded as they are needed: the peak memory of a run over very many, and how long a step
waits for them."""

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.timing import Told, machine, part, silent
from metasp.encoded import EncodedSlots
from metasp.experiment import prepare
from metasp.spec import RunSpec
from metasp.types import Examples

COUNT, CLASSES, SIZE = 200_000, 20, 64
MEGABYTES, WAITING = 1000.0, 0.05  # what is allowed
STEPS, FIRST = 20, 3  # steps that are timed, after the first few
FEW = 6000


@dataclass(frozen=True)
class Row:
    """One figure with the most that is allowed."""

    name: str
    value: float
    unit: str
    bound: float | None


def measure(data: Path | None = None, count: int = COUNT, told: Told = silent) -> list[Row]:
    """Generate pictures (in `data`, or a temporary folder), run over all of them in a process of
    their own, and time the steps of a larger network over some."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = (data or Path(scratch)) / f"generated-{count}"
        if not folder.is_dir():
            generate(folder, count, part(told, 0.0, 0.3))
        os.environ["METASP_CACHE"] = str(Path(scratch) / "cache")
        few = Path(scratch) / "few"  # tested before the first step, which is not to take long
        generate(few, FEW, silent)
        waits = waiting(few, Path(scratch) / "runs")
        told(0.5)
        seconds, peak = whole_run(folder, Path(scratch) / "runs")
        told(1.0)
    return [
        Row(f"peak memory of a run over {count} JPEGs of {SIZE}×{SIZE}", peak, "MB", MEGABYTES),
        Row("that run, from its command to its end", seconds, "s", None),
        *waits,
    ]


def generate(folder: Path, count: int, told: Told) -> None:
    """JPEG files in one folder per class."""
    making = folder.with_suffix(".making")
    for label in range(CLASSES):
        place = making / f"class{label:02d}"
        place.mkdir(parents=True, exist_ok=True)
        for row in range(count // CLASSES):
            (place / f"{row:06d}.jpg").write_bytes(jpeg(label, row))
        told((label + 1) / CLASSES)
    making.rename(folder)


def jpeg(label: int, row: int) -> bytes:
    """A smooth picture with a stripe that tells its class."""
    coarse = np.random.default_rng((label, row)).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    coarse[label % 6] = 37 * label % 256
    sink = io.BytesIO()
    picture = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    picture.save(sink, "JPEG", quality=85)
    return sink.getvalue()


def whole_run(folder: Path, runs: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of the command line."""
    words = ["run", "--benchmark", f"folder:{folder}", "--tasks", "5", "--method", "er",
             "--epochs", "1", "--batch-size", "128", "--memory", "1000", "--backbone", "mlp",
             "--width", "16", "--threads", "1", "--runs", str(runs), "--json"]  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "metasp", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the run ended with status {status}")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def waiting(folder: Path, runs: Path) -> list[Row]:
    """The part of an ER step of resnet18 of width 20 that waits for new pictures, and for those of
    the memory; the first without decoding ahead, for comparison."""
    spec = RunSpec(
        benchmark=f"folder:{folder}", tasks=5, method="er", epochs=1, backbone="resnet18", width=20,
        decode="lazy", threads=2, memory=500,
    )  # fmt: skip
    shares = {}
    for name, decoded in (("ahead", Examples.batches), ("in the step", at_once)):
        run = prepare(spec, runs / name, force=True)
        with timed(decoded) as spent:
            began: list[float] = []
            for _ in islice(steps(run), FIRST + STEPS):
                began.append(time.perf_counter())
                if len(began) == FIRST:
                    spent.update(new=0.0, memory=0.0)
        total = began[-1] - began[FIRST - 1]
        shares[name] = {key: seconds / total for key, seconds in spent.items()}
        shares[name]["step"] = total / STEPS
    ahead, inside = shares["ahead"], shares["in the step"]
    return [
        Row("a step of ER, resnet18 of width 20", ahead["step"], "s", None),
        Row("of it, waiting for new pictures", ahead["new"], "", WAITING),
        Row("of it, decoding those of the memory", ahead["memory"], "", None),
        Row("of it, both", ahead["new"] + ahead["memory"], "", WAITING),
        Row("new pictures where nothing is decoded ahead", inside["new"], "", None),
    ]


def steps(run: Any) -> Iterator[object]:
    return (event for event in run.events() if type(event).__name__ == "StepTaken")


def at_once(self: Examples, parts: Any, pin: bool = False) -> Any:
    """Each batch when it is asked for."""
    return map(self.take, parts)


@contextmanager
def timed(batches: Any) -> Iterator[dict[str, float]]:
    """The seconds that are spent on getting new batches and pictures of the memory."""
    spent = {"new": 0.0, "memory": 0.0}
    before, read = Examples.batches, EncodedSlots.__getitem__

    def waited(self: Examples, parts: Any, pin: bool = False) -> Any:
        found = iter(batches(self, parts, pin))
        while True:
            began = time.perf_counter()
            batch = next(found, None)
            spent["new"] += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def read_in(self: EncodedSlots, slots: Any) -> Any:
        began = time.perf_counter()
        found = read(self, slots)
        spent["memory"] += time.perf_counter() - began
        return found

    Examples.batches, EncodedSlots.__getitem__ = waited, read_in  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Examples.batches, EncodedSlots.__getitem__ = before, read  # type: ignore[method-assign]


def render(rows: Sequence[Row]) -> list[str]:
    lines = ["# python -m benchmarks lazy", f"{'figure':<58}    value     allowed"]
    for row in rows:
        unit = row.unit or "%"
        value, bound = (
            "" if v is None else f"{100 * v:.2f}" if not row.unit else f"{v:.4g}"
            for v in (row.value, row.bound)
        )
        lines.append(f"{row.name:<58}  {value:>7} {unit:<2}  {bound:>7}".rstrip())
    return [*lines, machine()]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
