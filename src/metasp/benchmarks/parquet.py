"""Pictures with labels out of Parquet tables, through the Hugging Face `datasets` library."""

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa

from metasp.benchmarks.features import is_image
from metasp.benchmarks.numbering import number_domains, number_labels
from metasp.benchmarks.pictures import Decoder
from metasp.benchmarks.request import Request
from metasp.errors import UserError, unknown

if TYPE_CHECKING:
    from metasp.benchmarks.cache import Pictures, Table

SPLITS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation",
          "val": "validation", "dev": "validation"}  # fmt: skip
BATCH = 256
LABELS = ("label", "labels", "fine_label", "class", "target")


def library() -> Any:
    """The `datasets` library, or one sentence about how to get it."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            "reading this data needs the `datasets` library: pip install -e '.[data]' in its clone."
        ) from None
    return datasets


def splits_in(folder: Path) -> dict[str, list[Path]]:
    """The Parquet files of a data set in the hub's layout, by split."""
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise UserError(f"{folder} holds no Parquet files: see docs/data.md for the layout.")
    found: dict[str, list[Path]] = {}
    configurations: set[Path] = set()
    for path in files:
        inside(path, folder)
        first = re.split(r"[-_.]", path.stem)[0].lower()
        own = path.parent.name.lower()
        name = SPLITS.get(first) or (SPLITS.get(own) if path.parent != folder else None)
        found.setdefault(name or "train", []).append(path)
        configurations.add(path.parent.parent if own in SPLITS else path.parent)
    if len(configurations) > 1:
        names = ", ".join(sorted(str(path.relative_to(folder)) for path in configurations))
        raise UserError(f"{folder} holds several configurations ({names}): point to one of them.")
    return found


def inside(path: Path, folder: Path) -> None:
    """Refuse what leads out of a folder, and names that a library may take for patterns."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} leads out of {folder}: replace the link with a copy.")
    if not path.is_file():
        raise UserError(f"{path} is not a file: remove it.")
    if re.search(r"[*?\[\]{}]|::|://", str(path)):
        raise UserError(f"{path} has one of * ? [ ] {{ }} :: in its path: rename it.")


def with_rows(splits: Mapping[str, Sequence[Path]]) -> tuple[dict[str, list[Path]], int]:
    """The files that have rows, by split, and the number of rows in all."""
    import pyarrow.parquet as pq  # slow to load: only for those who have such files

    rows = 0
    columns: dict[Path, list[str]] = {}  # of files with rows: without, the types are not known
    # Train files come first: all are read by the columns of the first, and test data may lack some.
    splits = dict(sorted(splits.items(), key=lambda item: item[0] != "train"))
    for path in (path for files in splits.values() for path in files):
        try:
            about = pq.read_metadata(path)
            if about.num_rows:
                rows += about.num_rows
                columns[path] = about.schema.to_arrow_schema().names
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is not a sound Parquet file: get it again.") from error
    same_columns(columns)
    found = {split: [path for path in files if path in columns] for split, files in splits.items()}
    return {split: files for split, files in found.items() if files}, rows


def open_local(splits: Mapping[str, Sequence[Path]]) -> tuple[dict[str, Any], int]:
    """Streams over local Parquet files by split, and the number of rows in all."""
    found, rows = with_rows(splits)
    names = {split: [str(path.resolve()) for path in files] for split, files in found.items()}
    datasets = library()
    try:
        with tempfile.TemporaryDirectory() as scratch:  # for its lock; a stream stores nothing
            streams = datasets.load_dataset(
                "parquet", data_files=names, streaming=True, cache_dir=scratch
            )
    except (ValueError, TypeError, KeyError) as error:
        raise unreadable(
            f"these tables cannot be read ({one_line(error)}): repair them.", error
        ) from (error)
    return dict(streams), rows


def same_columns(columns: Mapping[Path, Sequence[str]]) -> None:
    """Refuse files with columns that the first, by which all are read, does not have."""
    if not columns:
        raise UserError("these Parquet files hold no rows: get them again.")
    first = next(iter(columns))
    for path, names in columns.items():
        more = [name for name in names if name not in columns[first]]
        if more:
            raise UserError(
                f"{path} has columns that {first} lacks ({', '.join(more)}): give all files the "
                "same."
            )


def unreadable(sentence: str, error: Exception) -> UserError:
    if "duplicated" in str(error):
        return UserError("two classes have the same name in these tables: rename one of them.")
    return UserError(sentence)


class Chosen(NamedTuple):
    """The columns of a table that are wanted, and the types of all."""

    image: str
    label: str
    truth: str | None
    domain: str | None
    features: Mapping[str, Any]

    @classmethod
    def of(cls, features: Mapping[str, Any], request: Request) -> Self:
        image, label = image_column(features), label_column(features, request.label_column)
        truth = true_label_column(features, request.true_label_column, label)
        if request.domain_column is not None and request.domain_column not in features:
            raise unknown(
                "column", request.domain_column, [n for n in features if n not in (image, label)]
            )
        return cls(image, label, truth, request.domain_column, features)

    @property
    def beside(self) -> list[str]:
        """All of them but the pictures."""
        return list(dict.fromkeys(n for n in (self.label, self.truth, self.domain) if n))


class Gathered:
    """What the rows of all splits say besides their pictures."""

    def __init__(self, columns: Chosen) -> None:
        self.columns = columns
        self.values: list[Any] = []
        self.true: list[Any] = []
        self.domains: list[Any] = []
        self.sizes: dict[str, int] = {}

    def add(self, split: str, batch: Mapping[str, list[Any]]) -> None:
        label, truth, domain = self.columns.label, self.columns.truth, self.columns.domain
        given = batch[label]
        self.sizes[split] = self.sizes.get(split, 0) + len(given)
        if truth is not None:
            self.true += batch[truth]
            # Test data may have no other labels. Train data without them is a mistake.
            lacking = split != "train" and all(value is None for value in given)
            given = batch[truth] if lacking else given
        self.values += given
        self.domains += batch[domain] if domain else []

    def table(self, corrupt: Mapping[int, str] | None = None) -> "Table":
        from metasp.benchmarks.cache import Table  # torch comes with it, and a look needs none

        about = self.columns
        known = class_names(about.features, about.label, about.truth)
        labels, names = number_labels([*self.values, *self.true], known)
        table = Table(labels[: len(self.values)], self.sizes, names, corrupt=corrupt or {})
        if about.truth is not None:
            table = replace(table, true_labels=labels[len(self.values) :])
        if about.domain is not None:
            codes, called = number_domains(self.domains)
            table = replace(table, domains=codes, domain_names=called)
        return table


def features_of(streams: Mapping[str, Any]) -> Mapping[str, Any]:
    first = next(iter(streams.values()))
    found: Mapping[str, Any] = first.features or first._resolve_features().features
    return found


def first_rows(
    files: Sequence[Path], split: str, names: Sequence[str], rows: int
) -> Iterator[dict[str, Any]]:
    """The first rows of local files, of some columns, without `datasets`."""
    import pyarrow.parquet as pq

    try:
        for path in files:
            with pq.ParquetFile(path) as table:
                inside = [name for name in names if name in table.schema_arrow.names]
                for batch in table.iter_batches(min(rows, BATCH), columns=inside):
                    taken = batch.slice(0, rows).to_pylist()
                    rows -= len(taken)
                    yield from taken
                    if not rows:
                        return
    except (pa.ArrowException, OSError) as error:
        raise damaged(split, error) from error


def damaged(split: str, error: Exception) -> UserError:
    return UserError(
        f"the Parquet files of the {split} split are damaged, or unlike each other "
        f"({one_line(error)}): get them again."
    )


def with_encoded(stream: Any, columns: Chosen) -> Any:
    """The same stream with its pictures as they are stored."""
    if type(columns.features[columns.image]).__name__ != "Image":
        return stream
    return stream.cast_column(columns.image, library().Image(decode=False))


def read_tables(
    streams: Mapping[str, Any], rows: int, request: Request, out: "Pictures"
) -> "Table":
    """Decode every picture into `out`, and give labels and class names."""
    from metasp.benchmarks.cache import progress

    decoder = Decoder(request.image_size, request.colour)
    columns = Chosen.of(features_of(streams), request)
    found = Gathered(columns)
    with progress(rows) as advance:
        for split in splits_in_order(streams):
            number = found.sizes.setdefault(split, 0)
            for batch in batches(with_encoded(streams[split], columns), split):
                for content in batch[columns.image]:
                    where = row_words(split, number)
                    out.decode(decoder, raw_bytes(content, split, number), where)
                    number += 1
                found.add(split, batch)
                advance(len(batch[columns.label]))
    return found.table(out.corrupt)


def true_label_column(features: Mapping[str, Any], wanted: str | None, label: str) -> str | None:
    """The column of true labels, if one is asked for: another one than that of the labels."""
    if wanted is None:
        return None
    if wanted not in features:
        raise unknown("column", wanted, features)
    if wanted == label:
        raise UserError(
            f"column {label!r} is both the label and the true label: name the other one with "
            "--label-column."
        )
    return wanted


def class_names(features: Mapping[str, Any], label: str, truth: str | None) -> list[str] | None:
    """What the classes are called, by either column of labels."""
    columns = [label] if truth is None else [label, truth]
    named = [list(names) for c in columns if (names := getattr(features[c], "names", None))]
    if len(named) == 2 and named[0] != named[1]:
        raise UserError(f"columns {label!r} and {truth!r} name different classes: make them alike.")
    return named[0] if named else None


def splits_in_order(splits: Iterable[str]) -> list[str]:
    """Train rows come first, so that their ids are their row numbers in the original."""
    return sorted(splits, key=lambda name: (name != "train", name == "test", name))


def batches(stream: Any, split: str) -> Iterator[dict[str, list[Any]]]:
    """Batches of rows; a table that breaks off half-way, or a second file whose columns are of
    other types, is one sentence."""
    kinds = (pa.ArrowException, OSError, ValueError, TypeError)
    failures = (*kinds, library().exceptions.DatasetsError)
    iterator = stream.iter(batch_size=BATCH)
    while True:
        try:
            with unlogged():
                batch = next(iterator, None)
        except failures as error:
            raise damaged(split, error) from error
        if batch is None:
            return
        yield batch


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Without what the library logs of a failure before it raises it: one sentence is enough."""
    log = logging.getLogger("datasets")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def image_column(features: Mapping[str, Any]) -> str:
    """The one column that holds pictures."""
    found = [name for name, kind in features.items() if is_image(kind)]
    for name in ("image", "img"):
        if name in found:
            return name
    if len(found) == 1:
        return found[0]
    raise UserError(
        f"this data has {len(found) or 'no'} columns with pictures among {', '.join(features)}: "
        "exactly one is needed."
    )


def label_column(features: Mapping[str, Any], wanted: str | None) -> str:
    """The column asked for, or the one that is plainly the label."""
    if wanted is not None:
        if wanted not in features:
            raise unknown("column", wanted, features)
        return wanted
    classes = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    named = [name for name in LABELS if name in features]
    if len(classes) == 1 or named:
        return classes[0] if len(classes) == 1 else named[0]
    raise UserError(
        f"it is not clear which of the columns {', '.join(features)} is the label: name it with "
        "--label-column."
    )


def raw_bytes(content: Any, split: str, number: int) -> bytes:
    """The encoded picture of a row; one that is only a path to somewhere else is refused."""
    found = content.get("bytes") if isinstance(content, Mapping) else content
    if not isinstance(found, bytes):
        raise UserError(
            f"{row_words(split, number)()} is not stored in the table itself but refers to "
            "another file: store the pictures in the Parquet file."
        )
    return found


def row_words(split: str, number: int) -> Any:
    return lambda: f"the picture in row {number} of the {split} split"


def one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
