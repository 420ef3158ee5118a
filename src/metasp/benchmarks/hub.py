"""Data sets of the Hugging Face hub: downloaded to be decoded or read in place, or looked at in a
stream that downloads next to nothing."""

import contextlib
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from metasp.benchmarks.features import stored_features
from metasp.benchmarks.parquet import (
    Chosen,
    batches,
    features_of,
    first_rows,
    library,
    one_line,
    raw_bytes,
    row_words,
    splits_in,
    splits_in_order,
    unreadable,
    with_encoded,
    with_rows,
)
from metasp.benchmarks.pictures import Decoder
from metasp.benchmarks.request import Request
from metasp.errors import UserError
from metasp.folders import cache_folder

TABLES = "*.parquet"


@contextlib.contextmanager
def asking(name: str) -> Iterator[Any]:
    """The hub's API, with what can go wrong told in one sentence."""
    datasets = library()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name!r} is not a name on the hub: write it as owner/name.")
    offline: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, *transport_errors())
    failures = (OSError, ValueError, TypeError, RuntimeError)
    broken: tuple[type[Exception], ...] = (*failures, datasets.exceptions.DatasetsError)
    try:
        yield HfApi()
    except UserError:
        raise
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(f"there is no data set {name!r} on the Hugging Face hub.") from None
    except HfHubHTTPError as error:
        raise UserError(f"the Hugging Face hub refused {name}: {one_line(error)}.") from error
    except offline as error:
        raise UserError(
            f"the Hugging Face hub cannot be reached for {name}: connect to the network, or name "
            "a folder that holds the data with --data."
        ) from error
    except broken as error:
        raise unreadable(f"{name} cannot be loaded ({one_line(error)}).", error) from error


def transport_errors() -> tuple[type[Exception], ...]:
    """What the hub's library raises without a network: its HTTP client's own errors, which are
    not those of the system."""
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return tuple(client.HTTPError for client in clients)


def open_hub(name: str) -> tuple[dict[str, Any], int]:
    """A data set of the hub by its name, downloaded with progress if need be."""
    with asking(name) as hub:
        revision = hub.dataset_info(name, timeout=20).sha
        found = library().load_dataset(name, revision=revision)
    return dict(found), sum(len(part) for part in found.values())


def hub_bytes(name: str) -> int:
    """The size of a data set's Parquet files on the hub."""
    with asking(name) as hub:
        about = hub.dataset_info(name, timeout=20, files_metadata=True)
    files = [file for file in about.siblings or () if file.rfilename.endswith(".parquet")]
    return sum(file.size or 0 for file in files)


def download(name: str) -> Path:
    """The Parquet files of a data set as they are on the hub, in the cache folder."""
    folder = cache_folder() / "hub" / name
    with asking(name) as hub:
        hub.snapshot_download(
            name, repo_type="dataset", local_dir=folder, allow_patterns=TABLES, etag_timeout=20
        )
    if next(folder.rglob(TABLES), None) is None:
        raise UserError(
            f"{name} holds no Parquet files, so it cannot be read in place: use --decode eager."
        )
    return folder


def first_look(name: str, folder: Path | None, rows: int, request: Request) -> dict[str, Any]:
    """What the first rows of each split of a data set tell, of Parquet files in a folder or else
    of the hub, which is streamed: columns, classes, labels, and the first picture."""
    if folder is not None:
        files, _ = with_rows(splits_in(folder))
        columns = Chosen.of(features_of_files(files), request)
        wanted = columns.image, columns.label
        parts = {split: first_rows(files[split], split, wanted, rows) for split in files}
    else:
        with asking(name) as hub:
            revision = hub.dataset_info(name, timeout=20).sha
            streams = dict(library().load_dataset(name, revision=revision, streaming=True))
        columns = Chosen.of(features_of(streams), request)
        parts = {split: streamed(streams[split], split, columns, rows) for split in streams}
    names = getattr(columns.features[columns.label], "names", None)
    found: dict[str, Any] = {
        "columns": {name: _kind(kind) for name, kind in columns.features.items()},
        "pictures": columns.image,
        "labels": columns.label,
        "class_names": names,
        "splits": {},
    }
    decoder = Decoder(request.image_size, request.colour)
    for split in splits_in_order(parts):
        labels: Counter[str] = Counter()
        for number, row in enumerate(parts[split]):
            if "shape" not in found:
                content = raw_bytes(row[columns.image], split, number)
                found["shape"] = list(decoder(content, row_words(split, number)).shape)
            label = row.get(columns.label)  # test data may lack it
            labels[str(names[label] if names and isinstance(label, int) else label)] += 1
        found["splits"][split] = dict(sorted(labels.items()))
    return found


def features_of_files(files: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """The type of each column, by the first file."""
    try:
        return stored_features(files[splits_in_order(files)[0]][0])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"these tables cannot be read ({one_line(error)}): repair them.") from error


def streamed(stream: Any, split: str, columns: Chosen, rows: int) -> Iterator[dict[str, Any]]:
    """The first rows of a stream, with their pictures as they are stored."""
    for batch in batches(with_encoded(stream.take(rows), columns), split):
        for values in zip(*batch.values()):
            yield dict(zip(batch, values))
    # What reads ahead of a stream that was left is to end now: when Python itself ends, it aborts
    # (https://github.com/apache/arrow/issues/45214).
    gc.collect()


def _kind(kind: Any) -> str:
    if isinstance(kind, pa.DataType):
        return str(kind)
    return str(getattr(kind, "dtype", None) or type(kind).__name__)
