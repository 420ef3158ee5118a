"""Tables that the `datasets` library reads: Parquet, CSV and JSON files, and sets of the hub."""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from metasp.config import cache_folder
from metasp.data.picture_folders import SPLITS, check_inside
from metasp.data.source import Origin
from metasp.errors import UserError

CSV = {"keep_default_na": False, "na_values": [""],  # "NA" and "none" may be classes
       "chunksize": 1 << 40}  # types are those of the whole file  # fmt: skip
SAFE = ("parquet", "arrow", "csv", "json", "cache")  # what may read a set of the hub


@dataclass(frozen=True)
class Tables:
    """The tables of a data set (`datasets.Dataset`) by split, train data first, and the files with
    the number of rows of each in this order, where they are the user's own."""

    name: str
    splits: Mapping[str, Any]
    files: Sequence[tuple[str, int]] = ()

    @property
    def features(self) -> Mapping[str, Any]:
        """The type of each column, by the first split."""
        return dict(next(iter(self.splits.values())).features)

    def origin(self, row: int) -> Origin | None:
        """Return the file of a row, counted over all splits, and its row in there."""
        for file, size in self.files:
            if row < size:
                return file, row
            row -= size
        return None


def folder_tables(folder: Path) -> Tables:
    """Return the Parquet files of a folder in the hub's layout; those without rows say nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files: list[tuple[str, int]] = []
    splits: dict[str, list[Path]] = {}
    for split, paths in in_order(split_files(folder)).items():
        for path in paths:
            try:
                size = pq.read_metadata(path).num_rows
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{path} is not a sound Parquet file: get it again.") from error
            if size:
                files.append((str(path.relative_to(folder)), size))
                splits.setdefault(split, []).append(path)
    if not splits:
        raise UserError("these Parquet files hold no rows: get them again.")
    read = {split: read_files("parquet", paths) for split, paths in splits.items()}
    return Tables(folder.name, read, files)


def split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of a folder by split: the first word of a name, or its folder."""
    files = sorted(folder.rglob("*.parquet"))
    check_inside(files, folder)
    splits: dict[str, list[Path]] = {}
    configurations: set[Path] = set()
    for path in files:
        parent = path.parent.name.lower()
        name = SPLITS.get(re.split(r"[-_.]", path.stem)[0].lower())
        if name is None and path.parent != folder:
            name = SPLITS.get(parent)
        splits.setdefault(name or "train", []).append(path)
        configurations.add(path.parent.parent if parent in SPLITS else path.parent)
    if len(configurations) > 1:
        names = ", ".join(sorted(str(path.relative_to(folder)) for path in configurations))
        raise UserError(f"{folder} holds several configurations ({names}): point to one of them.")
    return splits


def file_tables(kind: str, file: Path, test: Path | None) -> Tables:
    """Return the table of one CSV, JSON or Parquet file, and that of its test data."""
    splits = {"train": read_files(kind, [file])}
    if test is not None:
        splits["test"] = read_files(kind, [test])
    for path, table in zip((file, test), splits.values()):
        if not len(table):
            raise UserError(f"{path} holds no rows: check that it is the right file.")
    return Tables(file.stem, splits, [(str(file), len(splits["train"]))])


def hub_tables(name: str) -> Tables:
    """Return the tables of a set of the hub, which is downloaded once."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
    with translated(name) as datasets:
        builder = datasets.load_dataset_builder(name)
        reader = type(builder).__module__.rsplit(".", 1)[-1]
        if reader not in SAFE:
            raise UserError(
                f"{name} is stored as {reader}, which is not read: use a set that has its examples "
                "in tables, or get its files and give their folder."
            )
        builder.download_and_prepare()
        return Tables(name, in_order(builder.as_dataset()))


def in_order(splits: Mapping[str, Any]) -> dict[str, Any]:
    """Sort: train rows come first, so that their ids are their row numbers in the original."""
    names = sorted(splits, key=lambda name: (name != "train", name == "test", name))
    return {name: splits[name] for name in names}


def read_files(kind: str, files: Sequence[Path]) -> Any:
    """Return files of one kind as one table."""
    for path in files:
        if re.search(r"[*?\[\]{}]|::|://", str(path)):  # which the library takes for patterns
            raise UserError(f"{path} has one of * ? [ ] {{ }} :: in its path: rename it.")
    names = [str(path.resolve()) for path in files]
    where = str(files[0]) if len(files) == 1 else f"the files in {files[0].parent}"
    with translated(where) as datasets:
        read = getattr(datasets.Dataset, f"from_{kind}")
        folder = str(cache_folder() / "datasets")
        return read(names, cache_dir=folder, **(CSV if kind == "csv" else {}))


@contextlib.contextmanager
def translated(name: str) -> Iterator[Any]:
    """Give the library to a block that reads `name`. All that it raises becomes one sentence."""
    import datasets
    import pyarrow as pa
    from huggingface_hub.errors import HfHubHTTPError

    offline: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, *transport_errors())
    logs = [logging.getLogger(library) for library in ("datasets", "huggingface_hub")]
    levels, bars = [log.level for log in logs], datasets.are_progress_bars_disabled()
    for log in logs:
        log.setLevel(logging.CRITICAL)  # what they log of a failure before they raise it
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        yield datasets
    except UserError:
        raise
    except datasets.exceptions.DatasetNotFoundError:
        raise UserError(f"there is no data set {name!r} on the Hugging Face hub.") from None
    except HfHubHTTPError as error:
        raise UserError(f"the Hugging Face hub refused {name}: {one_line(error)}.") from error
    except offline as error:
        raise UserError(
            f"the Hugging Face hub cannot be reached for {name}: connect to the network, or name "
            "a folder that holds the data with --data."
        ) from error
    except (
        OSError, ValueError, TypeError, KeyError, RuntimeError, pa.ArrowException,
        datasets.exceptions.DatasetsError,
    ) as error:  # fmt: skip
        reason = one_line(error)
        if "duplicated" in reason:
            raise UserError(f"two classes have the same name in {name}: rename one.") from error
        if "corresponds to no data" in reason:
            raise UserError(f"{name} holds no rows: check that it is the right file.") from error
        if reason == "Couldn't cast":
            reason = "the columns differ"
        raise UserError(
            f"{name} cannot be read, being damaged or not all of one form ({reason}): repair it, "
            "or get it again."
        ) from error
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def transport_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's library raises without a network: its HTTP client's own errors, which
    are not those of the system."""
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return tuple(client.HTTPError for client in clients)


def one_line(error: BaseException) -> str:
    """Return the first line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def starts(tables: Tables) -> list[int]:
    """Return the first row of each split, counted over all splits."""
    return [0, *accumulate(len(table) for table in tables.splits.values())][:-1]
