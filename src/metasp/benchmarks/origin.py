"""Where an example came from, in the user's own terms: a file, or a row of one."""

from collections.abc import Callable, Iterable
from pathlib import Path

from metasp.benchmarks.arrays import npz_texts
from metasp.benchmarks.catalogue import PUBLISHED
from metasp.benchmarks.loading import load_source
from metasp.benchmarks.own import class_folders, files_in_order, listed_pictures
from metasp.benchmarks.parquet import splits_in, splits_in_order
from metasp.benchmarks.places import local_folder, own_place
from metasp.benchmarks.request import Request
from metasp.benchmarks.tables import table_texts
from metasp.errors import UserError
from metasp.spec import RunSpec

Origin = tuple[str, int | None]
"""A file and, where it holds many examples, the row in it, from 0."""


def origins(spec: RunSpec, data: Path | None) -> Callable[[int], Origin | None]:
    """From the id of a training example of a stored run to where it is; None where it is in no
    file of the user's. The data must be what the run was trained on."""
    kind, _, place = spec.benchmark.partition(":")
    if kind == "arrays":
        _check(spec, data)
        return lambda identity: (place, identity)
    folder = None
    if kind == "folder":
        folder = own_place(place, data, Path.is_dir)
    elif kind == "hub":
        folder = local_folder(data, place)
    elif spec.benchmark in PUBLISHED:
        about = PUBLISHED[spec.benchmark]
        folder = local_folder(data, about.folder, about.hub)
    if folder is None:
        return lambda identity: None
    _check(spec, data)
    if next(folder.rglob("*.parquet"), None) is not None:
        return _in_tables(folder)
    request = Request.of(spec)
    if request.label_column is not None or request.true_label_column is not None:
        files = [row.file for row in listed_pictures(folder, request)]
    else:
        files = [str(path.relative_to(folder)) for path in files_in_order(class_folders(folder))]
    return lambda identity: (files[identity], None)


def _in_tables(folder: Path) -> Callable[[int], Origin]:
    import pyarrow.parquet as pq

    splits = splits_in(folder)
    starts: list[tuple[int, str]] = []
    count = 0
    for path in (path for split in splits_in_order(splits) for path in splits[split]):
        starts.append((count, str(path.relative_to(folder))))
        count += pq.read_metadata(path).num_rows

    def find(identity: int) -> Origin:
        start, name = next(pair for pair in reversed(starts) if pair[0] <= identity)
        return name, identity - start

    return find


def texts_of(spec: RunSpec, data: Path | None, size: int) -> list[str] | None:
    """What each of the `size` rows of a run's data is in words, where the user's file says."""
    kind, _, place = spec.benchmark.partition(":")
    if kind == "arrays":
        return npz_texts(place, data, size)
    folder = own_place(place, data, Path.is_dir) if kind == "folder" else None
    if folder is None or next(folder.rglob("*.parquet"), None) is None:
        return None
    return table_texts(folder, size)


def _check(spec: RunSpec, data: Path | None) -> None:
    if load_source(spec, data).digest != spec.data_digest:
        raise UserError("the data is no longer what the run was trained on.")


def origins_of(
    spec: RunSpec, data: Path | None, ids: Iterable[int]
) -> tuple[dict[int, Origin], str | None]:
    """The origins of some ids, or one sentence about why they cannot be told."""
    try:
        find = origins(spec, data)
    except UserError as error:
        return {}, str(error)
    found = {identity: find(identity) for identity in ids}
    return {identity: origin for identity, origin in found.items() if origin is not None}, None
