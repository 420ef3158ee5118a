"""Picture files: one folder per class, or named with their labels by a `metadata.csv`."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from metasp.config import is_text
from metasp.data.label_files import column, read_columns
from metasp.data.pictures import picture_source, with_picture_constants
from metasp.data.request import Request
from metasp.data.source import Columns, Source
from metasp.errors import UserError, or_user_error

LIST = "metadata.csv"  # as the hub's folders of pictures have it
SPLITS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation",
          "val": "validation", "dev": "validation"}  # fmt: skip
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def folder_source(folder: Path, request: Request) -> Source:
    """Return the source of the picture files of a folder."""
    if request.domain_column is not None:
        raise UserError("a folder of pictures has no columns: use --split-by class or order.")
    if request.label_column is not None or request.true_label_column is not None:
        files, columns = listed_pictures(folder, request)
    else:
        files, columns = class_folders(folder)
    names = [str(path.relative_to(folder)) for path in files]
    stamps = [[name, *stamp(path)] for name, path in zip(names, files)]

    def read(rows: Sequence[int]) -> list[bytes]:
        return [content_of(folder / names[row]) for row in rows]

    source = picture_source(
        folder.name,
        read,
        lambda row: str(folder / names[row]),
        [str(folder.resolve()), stamps],
        columns,
        request,
    )
    source = replace(source, origin=lambda identity: (names[identity], None))
    return with_picture_constants(source, request.skip_corrupt)


def content_of(path: Path) -> bytes:
    with or_user_error(f"{path} cannot be read"):
        return path.read_bytes()


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of a file, by which a change is noticed."""
    with or_user_error(f"{path} cannot be read"):
        about = path.stat()
    return about.st_size, about.st_mtime_ns


def class_folders(folder: Path) -> tuple[list[Path], Columns]:
    """Return the picture files, split by split, class by class and by name, with their labels."""
    splits: dict[str, dict[str, list[Path]]] = {}
    for split, path in split_folders(folder).items():
        classes = {child.name: pictures_in(child, folder) for child in folders_in(path)}
        check_class_names(classes, path)
        splits[split] = {name: files for name, files in classes.items() if files}
    train = splits["train"]
    if len(train) < 2:
        count = len(train) or "no"
        raise UserError(
            f"{folder} has {count} folder{'s' * (count != 1)} with pictures: a stream takes at "
            "least two classes, one folder each."
        )
    files: list[Path] = []
    labels: list[str] = []
    sizes: dict[str, int] = {}
    for split in sorted(splits, key=lambda name: name != "train"):
        before = len(files)
        for name, pictures in sorted(splits[split].items()):
            if name not in train:
                raise UserError(f"class {name!r} of the {split} folder is not in train: add it.")
            files += pictures
            labels += [name] * len(pictures)
        sizes[split] = len(files) - before
    return files, Columns(labels, sizes)


def split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the splits, by the names that Parquet files have. Without one named
    train all is one split and each folder a class, as train is where it holds pictures beside
    others."""
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
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def pictures_in(folder: Path, root: Path) -> list[Path]:
    """Return the picture files of a class by name; none may lead out of the root."""
    if folder.is_symlink() and not folder.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{folder} leads out of {root}: replace the link with a copy.")
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    check_inside(files, root)
    return files


def check_inside(files: Iterable[Path], folder: Path) -> None:
    """Refuse what leads out of a folder."""
    root = folder.resolve()
    for path in files:
        if not path.resolve().is_relative_to(root):
            raise UserError(f"{path} leads out of {folder}: replace the link with a copy.")
        if not path.is_file():
            raise UserError(f"{path} is not a file: remove it.")


def check_class_names(names: Mapping[str, object], folder: Path) -> None:
    """Refuse names that differ only in case or in how an accent is written."""
    seen: dict[str, str] = {}
    for name in names:
        if not is_text(name):
            raise UserError(f"the name of folder {name!r} contains control characters: rename it.")
        folded = unicodedata.normalize("NFKC", name).casefold().strip()
        if folded in seen:
            raise UserError(
                f"two classes in {folder} have the same name ({seen[folded]!r} and {name!r}): "
                "rename or join them."
            )
        seen[folded] = name


def listed_pictures(folder: Path, request: Request) -> tuple[list[Path], Columns]:
    """Return the pictures that the folder's table of labels names, train data first. Without a
    column of labels, the folder that a picture is in is its label."""
    path = folder / LIST
    if not path.is_file():
        raise UserError(
            f"{folder} has no {LIST} for --label-column and --true-label-column: add one with the "
            "columns file_name and those of the labels, or leave them out."
        )
    table = read_columns(path)
    names = column(table, "file_name", path)
    if len(set(names)) < len(names):
        raise UserError(f"{path} names a picture twice: keep one of them.")
    asked = (request.label_column, request.true_label_column)
    labels, true = (None if name is None else column(table, name, path) for name in asked)
    rows: list[tuple[str, str, str, str | None]] = []  # split, file, label, true label
    for number, name in enumerate(names):
        first, *within = Path(name).parts
        split = SPLITS.get(first.lower()) if within else None
        inside = within if split else [first, *within]  # the folder of its split
        if labels is None and len(inside) < 2:
            raise UserError(
                f"{name} of {path} is not in the folder of a class: name the column of its label "
                "with --label-column."
            )
        label = inside[0] if labels is None else labels[number]
        truth = None if true is None else true[number]
        if split not in (None, "train"):
            label = label or truth  # test data may have no other; train data must have one
        if not label or truth == "":
            raise UserError(f"{name} of {path} has no label: give it one.")
        rows.append((split or "train", name, label, truth))
    rows.sort(key=lambda row: (row[0] != "train", row[0]))
    files = [folder / name for _, name, _, _ in rows]
    check_inside(files, folder)
    return files, Columns(
        [label for _, _, label, _ in rows],
        Counter(split for split, *_ in rows),
        true_labels=None if true is None else [truth for *_, truth in rows],
    )
