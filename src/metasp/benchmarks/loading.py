"""From a name to a stream of tasks. BENCHMARKS is a dictionary you can read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from metasp.benchmarks.arrays import npz_source
from metasp.benchmarks.benchmark import Benchmark, assemble
from metasp.benchmarks.catalogue import PUBLISHED
from metasp.benchmarks.digits import digits, rotated_digits
from metasp.benchmarks.labels import with_labels
from metasp.benchmarks.own import folder_source, hub_source
from metasp.benchmarks.published import published
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source
from metasp.errors import UserError, unknown
from metasp.spec import RunSpec

Loader = Callable[[Request, Path | None], Source]

BENCHMARKS: dict[str, Loader] = {
    "split-digits": lambda request, data: digits(request),
    "rotated-digits": lambda request, data: rotated_digits(request),
    **{name: partial(published, about) for name, about in PUBLISHED.items()},
}

OWN: dict[str, Callable[[str, Request, Path | None], Source]] = {
    "hub": hub_source,
    "folder": folder_source,
    "arrays": npz_source,
}


def load_benchmark(spec: RunSpec, data: Path | None = None) -> Benchmark:
    """The stream a spec asks for; `data` is the folder where downloaded sets are found."""
    return assemble(load_source(spec, data), spec)


def load_source(spec: RunSpec, data: Path | None) -> Source:
    """The examples of a benchmark by its name, or the user's own by kind and place."""
    source = _own_labels(spec, data)
    if spec.labels is None:
        return source
    return with_labels(source, spec.labels, spec.label_column, data)


def _own_labels(spec: RunSpec, data: Path | None) -> Source:
    """The same under the labels that come with the data."""
    kind, colon, place = spec.benchmark.partition(":")
    request = Request.of(spec)
    if spec.benchmark in BENCHMARKS:
        return BENCHMARKS[spec.benchmark](request, data)
    if colon and kind in OWN and place:
        return OWN[kind](place, request, data)
    if colon and kind == "python":
        raise UserError(
            f"the data of {spec.benchmark} came from a Python program: continue it there, with "
            "the same dataset."
        )
    own = ("hub:OWNER/NAME", "folder:PATH", "arrays:FILE.npz")
    raise unknown("benchmark", spec.benchmark, [*BENCHMARKS, *own])
