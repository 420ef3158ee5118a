"""The streams of tasks; `loading.py` holds them by name, `registry.py` says what there is."""

from typing import TYPE_CHECKING

from metasp.lazy import lazily

if TYPE_CHECKING:
    from metasp.data.loading import BENCHMARKS, OWN, load_benchmark, load_source
    from metasp.data.source import Source
    from metasp.data.stream import Benchmark, assemble, split
    from metasp.data.transform import Transform

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Benchmark", "assemble", "split"), "stream"),
        **dict.fromkeys(("BENCHMARKS", "OWN", "load_benchmark", "load_source"), "loading"),
        "Source": "source",
        "Transform": "transform",
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
