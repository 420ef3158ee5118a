"""The streams of tasks; `loading.py` holds them by name, `catalogue.py` says what there is."""

from typing import TYPE_CHECKING

from metasp.lazy import lazily

if TYPE_CHECKING:
    from metasp.benchmarks.benchmark import Benchmark, assemble
    from metasp.benchmarks.deal import split
    from metasp.benchmarks.loading import BENCHMARKS, OWN, load_benchmark, load_source
    from metasp.benchmarks.source import Source
    from metasp.benchmarks.transform import Transform

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Benchmark", "assemble"), "benchmark"),
        **dict.fromkeys(("BENCHMARKS", "OWN", "load_benchmark", "load_source"), "loading"),
        "Source": "source",
        "Transform": "transform",
        "split": "deal",
    },
)
__all__ = [
    "BENCHMARKS",
    "OWN",
    "Benchmark",
    "Source",
    "Transform",
    "assemble",
    "load_benchmark",
    "load_source",
    "split",
]
