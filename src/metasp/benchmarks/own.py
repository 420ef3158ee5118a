"""The user's own pictures: a data set of the hub, Parquet files, or one folder per class."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metasp.benchmarks.cache import (
    Decoded,
    Pictures,
    Table,
    content_digest,
    decoded,
    progress,
    remembered,
)
from metasp.benchmarks.columns import column, read_columns
from metasp.benchmarks.hub import download, hub_bytes, open_hub
from metasp.benchmarks.in_place import LARGE, Files, open_tables, read_file
from metasp.benchmarks.numbering import number_labels
from metasp.benchmarks.parquet import (
    SPLITS,
    inside,
    open_local,
    read_tables,
    splits_in,
)
from metasp.benchmarks.pictures import Decoder
from metasp.benchmarks.places import (
    digest_of,
    hub_identity,
    is_cached,
    local_folder,
    own_place,
    wanted,
)
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source, check_classes, constants, default_tasks, held_out
from metasp.benchmarks.tables import table_source
from metasp.config import is_text
from metasp.encoded import LazyRows
from metasp.errors import UserError

MANY, SAMPLE = 100_000, 20_000  # pictures of which not all make the constants, but so many
LIST = "metadata.csv"  # as the hub's folders of pictures have it
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def hub_source(name: str, request: Request, data: Path | None) -> Source:
    """Any set of pictures on the hub, by its name; from a folder under `data` if it is there."""
    return finished(name, read_table_set(name, local_folder(data, name), request), request)


def folder_source(path: str, request: Request, data: Path | None) -> Source:
    """A folder with one folder of pictures per class, or of Parquet files in the hub's layout."""
    folder = own_place(path, data, Path.is_dir)
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder: give folder:PATH with one folder per class.")
    if next(folder.rglob("*.parquet"), None) is not None:
        numbers = table_source(folder, request)
        if numbers is not None:
            return numbers
        return finished(folder.name, read_table_set(folder.name, folder, request), request)
    if request.domain_column is not None:
        raise UserError("a folder of pictures has no columns: use --split-by class or order.")
    if request.label_column is not None or request.true_label_column is not None:
        rows = listed_pictures(folder, request)
        files, table = [folder / row.file for row in rows], listed_table(rows)
        told = [[row.split, row.file, row.label, row.true_label] for row in rows]
        identity = {"listed": told, "pictures": content_digest(files, folder), **wanted(request)}
    else:
        splits = class_folders(folder)
        files, table = files_in_order(splits), folder_table(splits)
        identity = {"pictures": content_digest(files, folder), **wanted(request)}
    if may_stay_encoded(request, identity):
        pictures = Files(files, request)
        if pictures.is_wanted(request):
            return finished(folder.name, pictures.found(table, identity), request)

    def read(out: Pictures) -> Table:
        return replace(table, corrupt=read_files(files, request, out))

    return finished(folder.name, decoded(identity, read, request.skip_corrupt), request)


def finished(name: str, found: Decoded, request: Request) -> Source:
    """A source with its constants, taken from the train examples alone."""
    if found.splits.get("train") and (found.splits.get("test") or found.splits.get("validation")):
        test = found.rows("test") if found.splits.get("test") else found.rows("validation")
        source = source_of(name, found, found.rows("train"), test)
    else:
        source = held_out_source(name, found, found.rows(*found.splits))
    mean, std = picture_constants(check_classes(source), bool(request.skip_corrupt))
    return replace(source, mean=mean, std=std)


def picture_constants(source: Source, skip: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by channel of the train pictures; of very many, those of a part."""
    train = source.train
    if len(train) > MANY:
        train = train.only(torch.arange(SAMPLE) * len(train) // SAMPLE)
    whole = train.source
    if not isinstance(whole, LazyRows):
        return constants(train)

    def look() -> Any:
        with progress(len(train), "mean and deviation") as advance:
            sound = train
            if skip:
                sound = train.without_rows(torch.tensor([*whole.unreadable(train.rows)]))
            return constants(sound, advance)

    # What was decoded once need not be again at the next start.
    mean, std = remembered([source.digest, skip, digest_of(train.rows.tolist())], look)
    return tuple(mean), tuple(std)


def source_of(name: str, found: Decoded, train: Tensor, test: Tensor) -> Source:
    """Rows of a decoded array as a source; its constants are not yet known."""
    domains, true = found.domains, found.true_labels
    return Source(
        name=name,
        inputs=found.inputs,
        labels=found.labels[train],
        test_inputs=found.inputs,
        test_labels=(found.labels if true is None else true)[test],
        class_names=found.class_names,
        mean=(),
        std=(),
        digest=found.digest,
        tasks=default_tasks(len(found.class_names)),
        ids=train,
        rows=train,
        test_rows=test,
        domains=None if domains is None else domains[train],
        test_domains=None if domains is None else domains[test],
        domain_names=found.domain_names,
        true_labels=None if true is None else true[train],
    )


def held_out_source(name: str, found: Decoded, pool: Tensor) -> Source:
    """A source whose test data is a fixed part of each class of one pool."""
    out = held_out(found.labels[pool], found.class_names)
    return replace(source_of(name, found, pool[~out], pool[out]), pooled=True)


def read_table_set(name: str, folder: Path | None, request: Request) -> Decoded:
    """The pictures of a set of tables: of Parquet files in a folder, else of the hub."""
    if folder is None:
        return read_hub_set(name, request)
    splits = splits_in(folder)
    files = sorted(path for paths in splits.values() for path in paths)
    identity = {"content": content_digest(files, folder), **wanted(request)}
    if may_stay_encoded(request, identity):
        pictures, table = open_tables(splits, request)
        if pictures is not None:
            return pictures.found(table, identity)

    def read(out: Pictures) -> Table:
        return read_tables(*open_local(splits), request, out)

    return decoded(identity, read, request.skip_corrupt)


def may_stay_encoded(request: Request, identity: Mapping[str, Any]) -> bool:
    """Whether pictures may be decoded as they are needed: a decoded copy that is there is used."""
    return request.decode == "lazy" or (request.decode is None and not is_cached(identity))


def read_hub_set(name: str, request: Request) -> Decoded:
    """The same of the hub; it is asked once, unless its files are to be read in place."""
    identity = hub_identity(name, request)
    if may_stay_encoded(request, identity) and (
        request.decode == "lazy" or hub_bytes(name) > LARGE
    ):
        return read_table_set(name, download(name), request)

    def read(out: Pictures) -> Table:
        return read_tables(*open_hub(name), request, out)

    return decoded(identity, read, request.skip_corrupt)


def class_folders(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """Picture files by split and class."""
    found = {}
    for split, place in split_folders(folder).items():
        classes = {path.name: pictures_in(path, folder) for path in folders_in(place)}
        same_names(list(classes), place)
        for name in classes:
            if not is_text(name):
                raise UserError(
                    f"the name of folder {name!r} contains control characters: rename it."
                )
        found[split] = {name: files for name, files in classes.items() if files}
    if len(found["train"]) < 2:
        count = len(found["train"]) or "no"
        raise UserError(
            f"{folder} has {count} folder{'s' * (count != 1)} with pictures: a stream takes at "
            "least two classes, one folder each."
        )
    for split, classes in found.items():
        for name in classes:
            if name not in found["train"]:
                raise UserError(f"class {name!r} of the {split} folder is not in train: add it.")
    return dict(sorted(found.items(), key=lambda item: item[0] != "train"))


def split_folders(folder: Path) -> dict[str, Path]:
    """The folders of the splits, by the names that Parquet files have. Without one named train all
    is one split and each folder a class, as train is where it holds pictures beside others."""
    named = {path: SPLITS.get(path.name.lower()) for path in folders_in(folder)}
    train = next((path for path, split in named.items() if split == "train"), None)
    others = [path.name for path, split in named.items() if split is None]
    if train is None or (others and not folders_in(train)):
        return {"train": folder}
    if others:
        raise UserError(
            f"{folder} has a folder {train.name} of classes beside {', '.join(others)}: call those "
            "test or validation, or move them away."
        )
    splits: dict[str, Path] = {}
    for path, split in named.items():
        if split in splits:
            raise UserError(
                f"{splits[split].name} and {path.name} of {folder} are both its {split} data: "
                "join them."
            )
        splits[str(split)] = path
    return splits


def folders_in(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return found


def pictures_in(folder: Path, root: Path) -> list[Path]:
    """The picture files of a class, in the order of their names; none may lead out of the root."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if folder.is_symlink() and not folder.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{folder} leads out of {root}: replace the link with a copy.")
    for path in files:
        inside(path, root)
    return files


def same_names(names: Sequence[str], place: Path) -> None:
    """Refuse names that differ only in case or in how an accent is written."""
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold().strip()
        if folded in seen:
            raise UserError(
                f"two classes in {place} have the same name ({seen[folded]!r} and {name!r}): "
                "rename or join them."
            )
        seen[folded] = name


def folder_table(splits: Mapping[str, Mapping[str, Sequence[Path]]]) -> Table:
    """The labels of all files, class by class."""
    names = sorted(splits["train"])
    labels: list[int] = []
    sizes = {}
    for split, classes in splits.items():
        counts = [len(classes.get(name, ())) for name in names]
        sizes[split] = sum(counts)
        for label, count in enumerate(counts):
            labels += [label] * count
    return Table(labels, sizes, names)


def read_files(files: Sequence[Path], request: Request, out: Pictures) -> Mapping[int, str]:
    """Decode files one after another; gives the corrupt ones, where they are to be skipped."""
    decoder = Decoder(request.image_size, request.colour)
    with progress(len(files)) as advance:
        for path in files:
            out.decode(decoder, read_file(path), lambda path=path: str(path))  # type: ignore[misc]
            advance(1)
    return out.corrupt


def files_in_order(splits: Mapping[str, Mapping[str, Sequence[Path]]]) -> list[Path]:
    """The files of all splits in the order in which they are decoded, which makes their ids."""
    names = sorted(splits["train"])
    return [path for classes in splits.values() for name in names for path in classes.get(name, ())]


class Listed(NamedTuple):
    """A picture that a table names, with its label and, where asked for, its true one."""

    split: str
    file: str
    label: str
    true_label: str | None


def listed_pictures(folder: Path, request: Request) -> list[Listed]:
    """The pictures that the folder's table of labels names, train data first. Without a column of
    labels, the folder that a picture is in is its label."""
    path = folder / LIST
    if not path.is_file():
        raise UserError(
            f"{folder} has no {LIST} for --label-column and --true-label-column: add one with the "
            "columns file_name and those of the labels, or leave them out."
        )
    table = read_columns(path)
    files = column(table, "file_name", path)
    asked = (request.label_column, request.true_label_column)
    labels, true = (None if name is None else column(table, name, path) for name in asked)
    rows = []
    for number, file in enumerate(files):
        inside(folder / file, folder)
        first, *within = Path(file).parts
        split = SPLITS.get(first.lower()) if within else None
        place = within if split else [first, *within]  # in the folder of its split
        if labels is None and len(place) < 2:
            raise UserError(
                f"{file} of {path} is not in the folder of a class: name the column of its label "
                "with --label-column."
            )
        label = place[0] if labels is None else labels[number]
        truth = None if true is None else true[number]
        if split not in (None, "train"):
            label = label or truth  # test data may have no other; train data must have one
        if not label or truth == "":
            raise UserError(f"{file} of {path} has no label: give it one.")
        rows.append(Listed(split or "train", file, label, truth))
    if len({row.file for row in rows}) < len(rows):
        raise UserError(f"{path} names a picture twice: keep one of them.")
    return sorted(rows, key=lambda row: (row.split != "train", row.split))


def listed_table(rows: Sequence[Listed]) -> Table:
    """The labels of the pictures of a table, in its order."""
    true = [row.true_label for row in rows if row.true_label is not None]
    labels, names = number_labels([*(row.label for row in rows), *true], None)
    sizes = Counter(row.split for row in rows)
    own = labels[: len(rows)]
    return Table(own, sizes, names, true_labels=labels[len(rows) :] if true else None)
