"""Tables: CSV, JSON and Parquet files, and sets of the Hugging Face hub, which the `datasets`
library reads."""

import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from metasp.config import cache_folder
from metasp.data.label_files import read_csv
from metasp.data.picture_folders import SPLITS
from metasp.data.source import Origin
from metasp.errors import UserError

SAFE = ("parquet", "arrow", "csv", "json", "cache")  # what may read a set of the hub


@dataclass(frozen=True)
class Table:
    """The rows of a data set, split by split: `splits` has the size of each, train data first.

    `columns` are all but the pictures, and `class_names` belong to those of numbers that stand for
    classes. `pictures` is a `datasets.Dataset` of the columns of pictures, whose files are mapped.
    `files` are the user's own, with the number of rows of each."""

    name: str
    columns: pa.Table
    splits: Mapping[str, int]
    class_names: Mapping[str, Sequence[str]]
    pictures: Any = None
    files: Sequence[tuple[str, int]] = ()

    @property
    def picture_names(self) -> list[str]:
        return [] if self.pictures is None else list(self.pictures.column_names)

    @property
    def names(self) -> list[str]:
        return [*self.picture_names, *self.columns.column_names]

    def split_of(self, row: int) -> tuple[str, int]:
        """Return the split of a row, counted over all splits, and its row in there."""
        return located(row, self.splits.items())

    def origin(self, row: int) -> Origin | None:
        """Return the file of a row, counted over all splits, and its row in there."""
        return located(row, self.files) if row < sum(size for _, size in self.files) else None


def located(row: int, sizes: Any) -> tuple[str, int]:
    """Return the name of the part that a row is in, and the row in there."""
    for name, size in sizes:
        if row < size:
            return name, row
        row -= size
    raise IndexError(row)


def arrow_table(name: str, parts: Mapping[str, pa.Table], **more: Any) -> Table:
    """Return the table of the splits; numbers of different types become those of the wider one."""
    with readable(name):
        columns = pa.concat_tables(
            [part.replace_schema_metadata() for part in parts.values()],
            promote_options="permissive",
        )
    sizes = {split: len(part) for split, part in parts.items()}
    return Table(name, columns, sizes, **{"class_names": {}, **more})


def library_table(
    name: str, splits: Mapping[str, Any], files: Sequence[tuple[str, int]] = ()
) -> Table:
    """Return the table of the splits that the `datasets` library has read. Train rows come first,
    so that their ids are their row numbers in the original."""
    order = sorted(splits, key=lambda split: (split != "train", split == "test", split))
    parts = {split: splits[split] for split in order if len(splits[split])}
    if not parts:
        raise UserError(f"{name} holds no rows: check that it is the right data.")
    features = dict(next(iter(parts.values())).features)
    images = [column for column, kind in features.items() if is_image(kind)]
    arrow = {
        split: part.data.table.drop_columns([c for c in images if c in part.column_names])
        for split, part in parts.items()
    }
    pictures = None
    with library(name) as datasets:
        if images:
            kinds = datasets.Features({
                column: datasets.Image(decode=False)
                if isinstance(features[column], datasets.Image) else features[column]
                for column in images
            })  # fmt: skip
            pictures = datasets.concatenate_datasets(
                [part.select_columns(images).cast(kinds) for part in parts.values()]
            )
    classes = {
        column: kind.names for column, kind in features.items() if getattr(kind, "names", None)
    }
    return arrow_table(name, arrow, class_names=classes, pictures=pictures, files=files)


def is_image(kind: Any) -> bool:
    """Tell whether a column of this type of the library holds encoded pictures."""
    if isinstance(kind, Mapping):
        return "bytes" in kind
    binary = ("binary", "large_binary")
    return type(kind).__name__ == "Image" or getattr(kind, "dtype", "") in binary


def folder_table(folder: Path) -> Table:
    """Return the Parquet files of a folder in the hub's layout; those without rows say nothing."""
    files: list[tuple[str, int]] = []
    splits: dict[str, list[Path]] = {}
    named = split_files(folder)
    for split in sorted(named, key=lambda split: (split != "train", split == "test", split)):
        for path in named[split]:
            size = rows_in(path)
            if size:
                files.append((str(path.relative_to(folder)), size))
                splits.setdefault(split, []).append(path)
    parts = {split: read_parquet(paths) for split, paths in splits.items()}
    return library_table(folder.name, parts, files)


def rows_in(path: Path) -> int:
    """Return the number of rows of a Parquet file."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a sound Parquet file: get it again.") from error


def split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the Parquet files of a folder by split: the first word of a name, or its folder."""
    splits: dict[str, list[Path]] = {}
    configurations: set[Path] = set()
    for path in sorted(folder.rglob("*.parquet")):
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


def file_table(kind: str, file: Path, test: Path | None) -> Table:
    """Return the table of one CSV, JSON or Parquet file, and that of its test data."""
    paths = {"train": file} if test is None else {"train": file, "test": test}
    for path in paths.values():
        if kind == "parquet" and not rows_in(path):  # which the library does not read
            raise UserError(f"{path} holds no rows: check that it is the right file.")
    read: Mapping[str, Callable[[Path], Any]] = {
        "csv": arrow_csv,
        "json": arrow_json,
        "parquet": lambda path: read_parquet([path]),
    }
    parts = {split: read[kind](path) for split, path in paths.items()}
    for split, path in paths.items():
        if not len(parts[split]):
            raise UserError(f"{path} holds no rows: check that it is the right file.")
    files = [(str(file), len(parts["train"]))]
    if kind == "parquet":
        return library_table(file.stem, parts, files)
    return arrow_table(file.stem, parts, files=files)


def arrow_csv(path: Path) -> pa.Table:
    """Return a CSV file, in which "NA" and "none" may be classes."""
    table = read_csv(path, keep_default_na=False, na_values=[""])
    with readable(str(path)):
        return pa.Table.from_pandas(table, preserve_index=False)  # type: ignore[no-untyped-call]


def arrow_json(path: Path) -> pa.Table:
    """Return a file of JSON lines, or of one list of rows."""
    import pyarrow.json as pj

    with readable(str(path)):
        text = path.read_text(encoding="utf-8-sig").strip()
        if text.startswith("["):
            text = "\n".join(json.dumps(row) for row in json.loads(text))
        content = text.encode()
        if not content:
            raise UserError(f"{path} holds no rows: check that it is the right file.")
        # In one block, as the type of a column is that of the whole file.
        block = pj.ReadOptions(block_size=len(content) + 1)
        return pj.read_json(io.BytesIO(content), read_options=block)


def hub_table(name: str) -> Table:
    """Return the tables of a set of the hub, which is downloaded once."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
    with library(name) as datasets:
        builder = datasets.load_dataset_builder(name)
        reader = type(builder).__module__.rsplit(".", 1)[-1]
        if reader not in SAFE:
            raise UserError(
                f"{name} is stored as {reader}, which is not read: use a set that has its examples "
                "in tables, or get its files and give their folder."
            )
        builder.download_and_prepare()
        return library_table(name, builder.as_dataset())


def read_parquet(files: Sequence[Path]) -> Any:
    """Return Parquet files as one `datasets.Dataset`, which maps them into memory."""
    for path in files:
        if re.search(r"[*?\[\]{}]|::|://", str(path)):  # which the library takes for patterns
            raise UserError(f"{path} has one of * ? [ ] {{ }} :: in its path: rename it.")
    names = [str(path.resolve()) for path in files]
    where = str(files[0]) if len(files) == 1 else f"the files in {files[0].parent}"
    with library(where) as datasets:
        return datasets.Dataset.from_parquet(names, cache_dir=str(cache_folder() / "datasets"))


@contextlib.contextmanager
def readable(name: str, *also: type[Exception]) -> Iterator[None]:
    """Turn whatever the reading of `name` raises into one sentence."""
    expected: tuple[type[Exception], ...] = (
        OSError, ValueError, TypeError, KeyError, RuntimeError, pa.ArrowException, *also
    )  # fmt: skip
    try:
        yield
    except UserError:
        raise
    except expected as error:
        reason = one_line(error)
        if "duplicated" in reason:
            raise UserError(f"two classes have the same name in {name}: rename one.") from error
        if reason == "Couldn't cast":
            reason = "the columns differ"
        raise UserError(
            f"{name} cannot be read, being damaged or not all of one form ({reason}): repair it, "
            "or get it again."
        ) from error


@contextlib.contextmanager
def library(name: str) -> Iterator[Any]:
    """Give the library to a block that reads `name`, and keep it quiet there."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    # What the hub's library raises without a network: its HTTP client's own errors.
    clients = [sys.modules[client] for client in ("httpx", "httpx2") if client in sys.modules]
    offline = (ConnectionError, TimeoutError, *(client.HTTPError for client in clients))
    logs = [logging.getLogger(library) for library in ("datasets", "huggingface_hub")]
    levels, bars = [log.level for log in logs], datasets.are_progress_bars_disabled()
    for log in logs:
        log.setLevel(logging.CRITICAL)  # what they log of a failure before they raise it
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with readable(name, datasets.exceptions.DatasetsError, *offline):
            yield datasets
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, datasets.exceptions.DatasetNotFoundError):
            raise UserError(f"there is no data set {name!r} on the Hugging Face hub.") from None
        if isinstance(cause, HfHubHTTPError):
            raise UserError(f"the Hugging Face hub refused {name}: {one_line(cause)}.") from cause
        if isinstance(cause, offline):
            raise UserError(
                f"the Hugging Face hub cannot be reached for {name}: connect to the network, or "
                "name a folder that holds the data with --data."
            ) from cause
        raise
    finally:
        for log, level in zip(logs, levels):
            log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def one_line(error: BaseException) -> str:
    """Return the first line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
