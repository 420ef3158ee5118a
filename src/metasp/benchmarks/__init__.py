"""The streams of tasks. BENCHMARKS is a dictionary you can read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metasp.benchmarks.digits import digits
from metasp.benchmarks.published import PUBLISHED, published
from metasp.benchmarks.source import Source, split
from metasp.benchmarks.transform import Transform
from metasp.errors import unknown
from metasp.spec import RunSpec
from metasp.types import Streams, Task

__all__ = ["BENCHMARKS", "Benchmark", "Source", "Transform", "load_benchmark", "split"]

Loader = Callable[[Path | None], Source]

BENCHMARKS: dict[str, Loader] = {
    "split-digits": lambda data: digits(),
    **{name: partial(published, about) for name, about in PUBLISHED.items()},
}


@dataclass(frozen=True)
class Benchmark:
    """A source dealt into tasks, with the transform its inputs need."""

    source: Source
    tasks: list[Task]
    transform: Transform


def load_benchmark(spec: RunSpec, data: Path | None = None) -> Benchmark:
    """The stream a spec asks for; `data` is the folder where downloaded sets are found."""
    if spec.benchmark not in BENCHMARKS:
        raise unknown("benchmark", spec.benchmark, BENCHMARKS)
    source = BENCHMARKS[spec.benchmark](data)
    order = Streams(spec.seed)["classes"] if spec.class_order == "shuffled" else None
    tasks = split(source, spec.tasks, spec.limit_per_class, order)
    transform = Transform(source.mean, source.std, source.crop_padding, source.flip)
    return Benchmark(source, tasks, transform)
