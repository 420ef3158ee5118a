"""From a name to a stream of tasks. BENCHMARKS is a dictionary you can read."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasp.data.catalogue import OWN as OWN_NAMES
from metasp.data.catalogue import PUBLISHED, Published
from metasp.data.digits import digits, rotated_digits
from metasp.data.label_files import with_labels
from metasp.data.request import Request, local_folder, sought, sought_file
from metasp.data.source import Source, check_classes, constants
from metasp.data.stream import Benchmark, assemble
from metasp.errors import UserError, unknown
from metasp.spec import RunSpec

if TYPE_CHECKING:
    from metasp.data.tables import Tables

FILES = ("csv", "json", "parquet")
Loader = Callable[[Request, Path | None], Any]
"""Reads a benchmark: a `Source`, or arrays (inputs, labels) or (inputs, labels, test_inputs,
test_labels); without test examples a fifth of each class is held out."""


def load_benchmark(spec: RunSpec, data: Path | None = None) -> Benchmark:
    """Return the stream a spec asks for; `data` is the folder where downloaded sets are found."""
    return assemble(load_source(spec, data), spec)


def load_source(spec: RunSpec, data: Path | None) -> Source:
    """Return the examples of a benchmark by its name, or the user's own by kind and place."""
    kind, colon, name = spec.benchmark.partition(":")
    request = Request.of(spec)
    if spec.test is not None and kind not in FILES:
        raise UserError(f"--test FILE goes with {', '.join(FILES)} alone: leave it out.")
    if spec.benchmark in BENCHMARKS:
        source = BENCHMARKS[spec.benchmark](request, data)
        if not isinstance(source, Source):
            source = from_arrays(spec.benchmark, source, request)
    elif kind in OWN and name:
        source = OWN[kind](name, request, data)
    elif colon and kind == "python":
        raise UserError(
            f"the data of {spec.benchmark} came from a Python program: continue it there, with "
            "the same dataset."
        )
    else:
        raise unknown("benchmark", spec.benchmark, [*BENCHMARKS, *OWN_NAMES])
    if spec.labels is None:
        return source
    return with_labels(source, spec.labels, spec.label_column, data)


def from_arrays(name: str, content: Any, request: Request) -> Source:
    """Return the source of the arrays that a function for `BENCHMARKS` gives."""
    from metasp.data.arrays import array_source

    if not isinstance(content, tuple) or len(content) not in (2, 4):
        raise UserError(
            f"benchmark {name!r} must return (inputs, labels), or these and (test_inputs, "
            "test_labels), in one tuple."
        )
    return array_source(name, list(content[::2]), list(content[1::2]), request)


def arrays(file: str, request: Request, data: Path | None) -> Source:
    from metasp.data.arrays import npz_source

    return npz_source(file, request, data)


def folder(path: str, request: Request, data: Path | None) -> Source:
    """Return a folder with one folder of pictures per class, or of Parquet files as on the hub."""
    found = sought(path, data, Path.is_dir)
    if not found.is_dir():
        raise UserError(f"{path} is not a folder: give folder:PATH with one folder per class.")
    if next(found.rglob("*.parquet"), None) is None:
        from metasp.data.picture_folders import folder_source

        return folder_source(found, request)
    from metasp.data.tables import folder_tables

    return of_tables(folder_tables(found), request)


def file(kind: str, path: str, request: Request, data: Path | None) -> Source:
    """Return the table of a CSV, JSON or Parquet file, with that of its test data if there is."""
    from metasp.data.tables import file_tables

    train = sought_file(path, data, f"{kind}:FILE")
    test = None if request.test is None else sought_file(request.test, data, "--test FILE")
    return of_tables(file_tables(kind, train, test), request)


def of_tables(tables: "Tables", request: Request) -> Source:
    """Return the source of tables, with the constants of their inputs."""
    from metasp.data.pictures import with_picture_constants
    from metasp.data.table_columns import table_source

    source = table_source(tables, request)
    return source if source.mean else with_picture_constants(source, request.skip_corrupt)


def hub(name: str, request: Request, data: Path | None) -> Source:
    """Return a set on the hub, by its name; from a folder under `data` if it is there."""
    from metasp.data.tables import folder_tables, hub_tables

    found = local_folder(data, name)
    return of_tables(hub_tables(name) if found is None else folder_tables(found), request)


OWN: dict[str, Callable[[str, Request, Path | None], Source]] = {
    "hub": hub,
    "folder": folder,
    **{kind: partial(file, kind) for kind in FILES},
    "arrays": arrays,
}


def published(about: Published, request: Request, data: Path | None) -> Source:
    """Return a published set from a local folder or from the hub."""
    from metasp.data.table_columns import table_source
    from metasp.data.tables import folder_tables, hub_tables

    asked = replace(
        request,
        image_size=request.image_size or about.size,
        colour=request.colour or about.colour,
        label_column=request.label_column or about.label,
    )
    found = local_folder(data, about.folder, about.hub)
    tables = hub_tables(about.hub) if found is None else folder_tables(found)
    tables = replace(tables, name=about.folder)
    # The hub's test split of a pooled set is 50 further pictures per class; the field pools the
    # 600 others.
    pool = ("train", "validation") if about.pooled else ()
    if not pool and not {"train", "test"} <= set(tables.splits):
        raise UserError(f"{about.folder} lacks its train or test split: get it again.")
    source = table_source(tables, asked, pool)
    usual = about.label in (asked.label_column, asked.true_label_column)
    if usual and source.classes != about.classes:
        raise UserError(
            f"{about.folder} has {source.classes} classes and should have {about.classes}: this "
            "is another data set; give it as folder: or hub: instead."
        )
    mean, std = about.mean, about.std
    if asked.colour != about.colour:
        mean, std = constants(check_classes(source).train)
    colour = asked.colour == "rgb"
    padding = 4 if colour else 0
    return replace(source, mean=mean, std=std, tasks=about.tasks, crop_padding=padding, flip=colour)


BENCHMARKS: dict[str, Loader] = {
    "split-digits": lambda request, data: digits(request),
    "rotated-digits": lambda request, data: rotated_digits(request),
    **{name: partial(published, about) for name, about in PUBLISHED.items()},
}
