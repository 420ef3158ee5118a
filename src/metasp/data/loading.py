"""From a name to a stream of tasks. BENCHMARKS is a dictionary you can read."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from metasp.data.digits import digits, rotated_digits
from metasp.data.registry import OWN as OWN_NAMES
from metasp.data.registry import PUBLISHED, Published, local_folder
from metasp.data.source import Origin, Source
from metasp.data.stream import Benchmark, assemble
from metasp.errors import UserError, unknown
from metasp.spec import RunSpec

FILES = ("csv", "json", "parquet")
Loader = Callable[[RunSpec, Path | None], Any]
"""Reads a benchmark for a spec, given the folder of data sets: a `Source`, or arrays (inputs,
labels) or (inputs, labels, test_inputs, test_labels); without test examples a fifth of each class
is held out."""


def load_benchmark(spec: RunSpec, data: Path | None = None) -> Benchmark:
    """Return the stream a spec asks for; `data` is the folder where downloaded sets are found."""
    return assemble(load_source(spec, data), spec)


def load_source(spec: RunSpec, data: Path | None) -> Source:
    """Return the examples of a benchmark by its name, or the user's own by kind and place."""
    kind, colon, name = spec.benchmark.partition(":")
    if spec.test is not None and kind not in FILES:
        raise UserError(f"--test FILE goes with {', '.join(FILES)} alone: leave it out.")
    asked = spec
    if spec.labels is not None:
        # The label column is one of that file; what the data itself has is true.
        asked = spec.with_(labels=None, label_column=spec.true_label_column, true_label_column=None)
    if spec.benchmark in BENCHMARKS:
        source = BENCHMARKS[spec.benchmark](asked, data)
        if not isinstance(source, Source):
            source = from_arrays(spec.benchmark, source, asked)
    elif kind in OWN and name:
        source = OWN[kind](name, asked, data)
    elif colon and kind == "python":
        raise UserError(
            f"the data of {spec.benchmark} came from a Python program: continue it there, with "
            "the same dataset."
        )
    else:
        raise unknown("benchmark", spec.benchmark, [*BENCHMARKS, *OWN_NAMES])
    if spec.labels is None:
        return source
    from metasp.data.label_files import with_labels

    path = sought_file(spec.labels, data, "--labels FILE.csv or FILE.parquet")
    return with_labels(source, path, spec.label_column)


def from_arrays(name: str, content: Any, spec: RunSpec) -> Source:
    """Return the source of the arrays that a function for `BENCHMARKS` gives."""
    from metasp.data.arrays import array_source

    if not isinstance(content, tuple) or len(content) not in (2, 4):
        raise UserError(
            f"benchmark {name!r} must return (inputs, labels), or these and (test_inputs, "
            "test_labels), in one tuple."
        )
    splits = {"train": {"inputs": content[0], "labels": content[1]}}
    if len(content) == 4:
        splits["test"] = {"inputs": content[2], "labels": content[3]}
    return array_source(name, splits, spec)


def arrays(file: str, spec: RunSpec, data: Path | None) -> Source:
    from metasp.data.arrays import npz_source

    source = npz_source(sought_file(file, data, "arrays:FILE.npz"), spec)
    return replace(source, origin=lambda identity: (file, identity))


def folder(path: str, spec: RunSpec, data: Path | None) -> Source:
    """Return a folder with one folder of pictures per class, or of Parquet files as on the hub."""
    place = sought(path, data)
    if not place.is_dir():
        raise UserError(f"{path} is not a folder: give folder:PATH with one folder per class.")
    if next(place.rglob("*.parquet"), None) is None:
        from metasp.data.picture_folders import folder_source

        return folder_source(place, spec)
    return of_table(hub_or_folder(path, place), spec)


def file(kind: str, path: str, spec: RunSpec, data: Path | None) -> Source:
    """Return the table of a CSV, JSON or Parquet file, with that of its test data if there is."""
    from metasp.data.table_files import file_table

    train = sought_file(path, data, f"{kind}:FILE")
    test = None if spec.test is None else sought_file(spec.test, data, "--test FILE")
    return of_table(file_table(kind, train, test), spec)


def hub(name: str, spec: RunSpec, data: Path | None) -> Source:
    """Return a set on the hub, by its name; from a folder under `data` if it is there."""
    return of_table(hub_or_folder(name, local_folder(data, name)), spec)


def hub_or_folder(name: str, place: Path | None) -> Any:
    """Return the table of a set of the hub, from a folder in its layout where there is one."""
    from metasp.data.table_files import folder_table, hub_table

    return hub_table(name) if place is None else folder_table(place)


def of_table(table: Any, spec: RunSpec) -> Source:
    from metasp.data.table_source import table_source

    return table_source(table, spec)


OWN: dict[str, Callable[[str, RunSpec, Path | None], Source]] = {
    "hub": hub,
    "folder": folder,
    **{kind: partial(file, kind) for kind in FILES},
    "arrays": arrays,
}


def published(about: Published, spec: RunSpec, data: Path | None) -> Source:
    """Return a published set from a local folder or from the hub."""
    from metasp.data.table_source import table_source

    asked = spec.with_(
        image_size=spec.image_size or about.size,
        colour=spec.colour or about.colour,
        label_column=spec.label_column or about.label,
    )
    table = hub_or_folder(about.hub, local_folder(data, about.folder, about.hub))
    # The hub's test split of a pooled set is 50 further pictures per class; the field pools the
    # 600 others.
    pool = ("train", "validation") if about.pooled else ()
    if not pool and not {"train", "test"} <= {*table.splits}:
        raise UserError(f"{about.folder} lacks its train or test split: get it again.")
    source = table_source(replace(table, name=about.folder), asked, pool)
    usual = about.label in (asked.label_column, asked.true_label_column)
    if usual and source.classes != about.classes:
        raise UserError(
            f"{about.folder} has {source.classes} classes and should have {about.classes}: this "
            "is another data set; give it as folder: or hub: instead."
        )
    if asked.colour == about.colour:
        source = replace(source, mean=about.mean, std=about.std)
    colour = asked.colour == "rgb"
    return replace(source, tasks=about.tasks, crop_padding=4 if colour else 0, flip=colour)


BENCHMARKS: dict[str, Loader] = {
    "split-digits": lambda spec, data: digits(spec),
    "rotated-digits": lambda spec, data: rotated_digits(spec),
    **{name: partial(published, about) for name, about in PUBLISHED.items()},
}


def sought(path: str, data: Path | None) -> Path:
    """Return the path that a user names: as it stands, or else in the folder of data sets."""
    try:
        place = Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"the home directory in {path} is not known: write the whole path."
        ) from error
    return place if place.exists() or data is None else data / place


def sought_file(path: str, data: Path | None, example: str) -> Path:
    """Return the file that a user names, or say how to name one."""
    file = sought(path, data)
    if not file.is_file():
        raise UserError(f"{path} is not a file: give {example}.")
    return file


def origins_of(
    spec: RunSpec, data: Path | None, ids: Iterable[int]
) -> tuple[dict[int, Origin], str | None]:
    """Return the origins of some train ids that are in files of the user's, or one sentence about
    why they cannot be told."""
    try:
        source = load_source(spec, data)
        if source.digest != spec.data_digest:
            raise UserError("the data is no longer what the run was trained on.")
    except UserError as error:
        return {}, str(error)
    origins = {identity: source.origin(identity) for identity in ids}
    return {identity: origin for identity, origin in origins.items() if origin is not None}, None
