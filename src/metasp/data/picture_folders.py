"""Picture files: one folder per class, or named with their labels by a `metadata.csv`."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metasp.config import is_text
from metasp.data.label_files import column_of, text_columns
from metasp.data.lazy_images import picture_source
from metasp.data.source import Columns, Source, split_column
from metasp.errors import UserError, or_user_error
from metasp.spec import RunSpec

LIST = "metadata.csv"  # as the hub's folders of pictures have it
SPLITS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation",
          "val": "validation", "dev": "validation"}  # fmt: skip
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def folder_source(folder: Path, spec: RunSpec) -> Source:
    """Return the source of the picture files of a folder."""
    if split_column(spec) is not None:
        raise UserError("a folder of pictures has no columns: use --split-by class or order.")
    listed = spec.label_column is not None or spec.true_label_column is not None
    names, columns = listed_pictures(folder, spec) if listed else class_folders(folder)
    with or_user_error(f"{folder} cannot be read"):
        stamps = [[name, *stamp(folder / name)] for name in names]

    def read(rows: Sequence[int]) -> list[bytes]:
        with or_user_error(f"a picture of {folder} cannot be read"):
            return [(folder / names[row]).read_bytes() for row in rows]

    source = picture_source(
        folder.name,
        read,
        lambda row: str(folder / names[row]),
        [str(folder.resolve()), stamps],
        columns,
        spec,
    )
    return replace(source, origin=lambda identity: (names[identity], None))


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of a file, by which a change is noticed."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def class_folders(folder: Path) -> tuple[list[str], Columns]:
    """Return the picture files, split by split, class by class and by name, with their labels."""
    files: list[str] = []
    labels: list[str] = []
    sizes: dict[str, int] = {}
    trained: dict[str, list[Path]] = {}
    for split, path in split_folders(folder).items():
        before, classes = len(files), classes_in(path)
        trained = trained or classes
        for name, pictures in classes.items():
            if name not in trained:
                raise UserError(f"class {name!r} of the {split} folder is not in train: add it.")
            files += [str(picture.relative_to(folder)) for picture in pictures]
            labels += [name] * len(pictures)
        sizes[split] = len(files) - before
    if len(trained) < 2:
        count = len(trained)
        raise UserError(
            f"{folder} has {count or 'no'} folder{'s' * (count != 1)} with pictures: a stream "
            "takes at least two classes, one folder each."
        )
    return files, Columns(labels, sizes)


def split_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of the splits, train first, by the names that Parquet files have. Without
    one named train all is one split and each folder a class, as train is where it holds pictures
    beside others."""
    named = [(SPLITS.get(path.name.lower()), path) for path in folders_in(folder)]
    train = next((path for split, path in named if split == "train"), None)
    classes = [path.name for split, path in named if split is None]
    if train is None or (classes and not folders_in(train)):
        return {"train": folder}
    if classes:
        raise UserError(
            f"{folder} has a folder {train.name} of classes beside {', '.join(classes)}: call "
            "those test or validation, or move them away."
        )
    splits: dict[str, Path] = {}
    for split, path in named:
        if split in splits:
            raise UserError(
                f"{splits[split].name} and {path.name} of {folder} are both its {split} data: "
                "join them."
            )
        splits[str(split)] = path
    return dict(sorted(splits.items(), key=lambda item: item[0] != "train"))


def folders_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def classes_in(folder: Path) -> dict[str, list[Path]]:
    """Return the picture files of each class that has some. Names that differ only in case or in
    how an accent is written are refused."""
    classes: dict[str, list[Path]] = {}
    seen: dict[str, str] = {}
    for path in folders_in(folder):
        if not is_text(path.name):
            raise UserError(
                f"the name of folder {path.name!r} contains control characters: rename it."
            )
        first = seen.setdefault(
            unicodedata.normalize("NFKC", path.name).casefold().strip(), path.name
        )
        if first != path.name:
            raise UserError(
                f"two classes in {folder} have the same name ({first!r} and {path.name!r}): "
                "rename or join them."
            )
        pictures = [p for p in sorted(path.rglob("*")) if is_picture(p)]
        if pictures:
            classes[path.name] = pictures
    return classes


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def listed_pictures(folder: Path, spec: RunSpec) -> tuple[list[str], Columns]:
    """Return the pictures that the folder's table of labels names, train data first. Without a
    column of labels, the folder that a picture is in is its label."""
    path = folder / LIST
    if not path.is_file():
        raise UserError(
            f"{folder} has no {LIST} for --label-column and --true-label-column: add one with the "
            "columns file_name and those of the labels, or leave them out."
        )
    table = text_columns(path)
    names = column_of(table, "file_name", path)
    if len({*names}) < len(names):
        raise UserError(f"{path} names a picture twice: keep one of them.")
    labels, truth = (
        None if name is None else column_of(table, name, path)
        for name in (spec.label_column, spec.true_label_column)
    )
    rows: list[tuple[str, str, str, str | None]] = []  # split, file, label, true label
    for number, name in enumerate(names):
        folders = Path(name).parts[:-1]
        split = SPLITS.get(folders[0].lower(), "train") if folders else "train"
        if folders and folders[0].lower() in SPLITS:
            folders = folders[1:]
        true = None if truth is None else truth[number]
        label = labels[number] if labels is not None else folders[0] if folders else ""
        if split != "train":
            label = label or true or ""  # test data may have no other; train data must have one
        if not label or true == "":
            raise UserError(f"{name} of {path} has no label: give it one.")
        if not is_picture(folder / name):
            raise UserError(f"{path} names {name}, which is not a picture file: remove it.")
        rows.append((split, name, label, true))
    rows.sort(key=lambda row: (row[0] != "train", row[0]))
    return [name for _, name, _, _ in rows], Columns(
        [label for _, _, label, _ in rows],
        Counter(split for split, *_ in rows),
        true_labels=None if truth is None else [true for *_, true in rows],
    )
