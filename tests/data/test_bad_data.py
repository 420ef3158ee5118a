"""Every mistake in the data is one sentence and exit code 2, and leaves nothing behind."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.cli import main
from tests.data.factories import (
    class_folder_set,
    noise_picture,
    png,
    table_set,
    write_parquet,
)

Make = Callable[[Path], list[str]]


def tables(*labels: int | str, names: list[str] | None = None) -> Make:
    def make(at: Path) -> list[str]:
        pictures = [png(noise_picture(row)) for row in range(len(labels))]
        write_parquet(at / "set" / "train-00000-of-00001.parquet", pictures, labels, names)
        return [f"folder:{at / 'set'}"]

    return make


def arrays(**content: object) -> Make:
    def make(at: Path) -> list[str]:
        np.savez(at / "a.npz", **content)
        return [f"arrays:{at / 'a.npz'}", "--backbone", "mlp"]

    return make


def arrays_by(**content: object) -> Make:
    """The same, split by the first of them."""
    by = ["--split-by", f"column:{next(iter(content))}"]
    return lambda at: [*arrays(**content)(at), *by]


def cut_parquet(at: Path) -> list[str]:
    folder = table_set(at / "set")
    file = folder / "data" / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-200])
    return [f"folder:{folder}"]


def scrambled_parquet(at: Path) -> list[str]:
    """The footer is sound, the pages are not."""
    folder = table_set(at / "set", each=50)
    file = folder / "data" / "train-00000-of-00001.parquet"
    content = bytearray(file.read_bytes())
    content[8:3000] = bytes(2992)
    file.write_bytes(content)
    return [f"folder:{folder}"]


def corrupt_picture(at: Path) -> list[str]:
    pictures = [png(noise_picture(row)) for row in range(8)]
    pictures[5] = pictures[5][:60]
    labels = [0, 1] * 4
    write_parquet(at / "set" / "train.parquet", pictures, labels, ["a", "b"])
    return [f"folder:{at / 'set'}"]


def picture_elsewhere(at: Path) -> list[str]:
    """A row that holds the path of another file instead of the picture."""
    secret = at / "secret.png"
    secret.write_bytes(png(noise_picture(1)))
    pictures = [png(noise_picture(0)), None]
    file = at / "set" / "train.parquet"
    write_parquet(file, pictures, [0, 1], ["a", "b"], paths=[None, str(secret)])
    return [f"folder:{at / 'set'}"]


def broken_file(at: Path) -> list[str]:
    folder = class_folder_set(at / "set", ["cat", "dog"])
    (folder / "dog" / "004.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    return [f"folder:{folder}"]


def postscript(at: Path) -> list[str]:
    """Decoding it would start a program of the system."""
    folder = class_folder_set(at / "set", ["cat", "dog"])
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    (folder / "dog" / "evil.png").write_bytes(text)
    return [f"folder:{folder}"]


def picture_bomb(at: Path) -> list[str]:
    """Forty bytes that claim to be ten thousand million pixels."""
    folder = class_folder_set(at / "set", ["cat", "dog"])
    content = bytearray(png(noise_picture(0)))
    content[16:24] = struct.pack(">II", 100_000, 100_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    (folder / "dog" / "bomb.png").write_bytes(content)
    return [f"folder:{folder}"]


def folders(*names: str, each: int = 5, extra: tuple[str, ...] = ()) -> Make:
    def make(at: Path) -> list[str]:
        return [f"folder:{class_folder_set(at / 'set', names, each)}", *extra]

    return make


def split_folders(*names: str) -> Make:
    """Folders of classes, one per split."""

    def make(at: Path) -> list[str]:
        for name in names:
            class_folder_set(at / "set" / name, ["cat", "dog"])
        return [f"folder:{at / 'set'}"]

    return make


def train_beside_classes(at: Path) -> list[str]:
    folder = class_folder_set(at / "set", ["cars", "ships"])
    class_folder_set(folder / "train", ["cat", "dog"])
    return [f"folder:{folder}"]


def pictures_in_splits(at: Path) -> list[str]:
    """No classes in them: train is not to be learned against test."""
    return [f"folder:{class_folder_set(at / 'set', ['train', 'test'])}"]


def shards(*others: dict[str, list[Any]]) -> Make:
    """A split in several files that differ in these columns."""

    def make(at: Path) -> list[str]:
        pictures = [png(noise_picture(row)) for row in range(8)]
        for number, columns in enumerate(others):
            changed = {"labels": [0, 1] * 4, **columns}
            write_parquet(at / "set" / f"train-{number}.parquet", pictures, **changed)
        return [f"folder:{at / 'set'}"]

    return make


def no_rows(at: Path) -> list[str]:
    (at / "set").mkdir()
    empty = pa.table({"image": pa.nulls(0), "label": pa.nulls(0)})
    pq.write_table(empty, at / "set" / "train.parquet")
    return [f"folder:{at / 'set'}"]


def split_by(**column: list[Any]) -> Make:
    """Tables split by a column that cannot make tasks."""

    def make(at: Path) -> list[str]:
        pictures = pa.array([png(noise_picture(row)) for row in range(8)])
        table = pa.table({"image": pictures, "label": [0, 1] * 4, **column})
        (at / "set").mkdir()
        pq.write_table(table, at / "set" / "train.parquet")
        return [f"folder:{at / 'set'}", "--split-by", f"column:{next(iter(column))}"]

    return make


def mixed_sizes(at: Path) -> list[str]:
    folder = class_folder_set(at / "set", ["cat", "dog"])
    (folder / "dog" / "big.png").write_bytes(png(noise_picture(3, size=20)))
    return [f"folder:{folder}"]


def single_example(at: Path) -> list[str]:
    folder = class_folder_set(at / "set", ["cat", "dog"])
    (folder / "cow").mkdir()
    (folder / "cow" / "0.png").write_bytes(png(noise_picture(9)))
    return [f"folder:{folder}"]


class Bomb:
    """Unpickling this would create a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


def pickled_npz(at: Path) -> list[str]:
    inputs = np.array([Bomb(at / "ran")] * 4, dtype=object)
    np.savez(at / "a.npz", inputs=inputs, labels=np.array([0, 0, 1, 1]))
    return [f"arrays:{at / 'a.npz'}"]


def bare_pickle(at: Path) -> list[str]:
    (at / "a.npz").write_bytes(pickle.dumps(Bomb(at / "ran")))
    return [f"arrays:{at / 'a.npz'}"]


def cut_npz(at: Path) -> list[str]:
    np.savez(at / "a.npz", inputs=np.random.default_rng(0).random((50, 5)), labels=np.arange(50))
    content = bytearray((at / "a.npz").read_bytes())
    content[200:900] = bytes(700)
    (at / "a.npz").write_bytes(content)
    return [f"arrays:{at / 'a.npz'}"]


def odd_header(description: str) -> Make:
    """An archive whose arrays describe themselves in other words than numpy's."""

    def make(at: Path) -> list[str]:
        text = description.encode().ljust(117) + b"\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
        with zipfile.ZipFile(at / "a.npz", "w") as archive:
            for name in ("inputs.npy", "labels.npy"):
                archive.writestr(name, array)
        return [f"arrays:{at / 'a.npz'}"]

    return make


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"
ROWS = np.random.default_rng(0).random((12, 5))
TWELVE = np.array([0, 1] * 6)

CASES: dict[str, tuple[Make, str]] = {
    "cut parquet": (cut_parquet, "not a sound Parquet file"),
    "scrambled parquet": (scrambled_parquet, "damaged"),
    "corrupt picture": (corrupt_picture, "row 5 of the train split cannot be decoded"),
    "picture elsewhere": (picture_elsewhere, "refers to another file"),
    "broken file": (broken_file, "004.png cannot be decoded"),
    "picture bomb": (picture_bomb, "bomb.png cannot be decoded"),
    "postscript": (postscript, "evil.png cannot be decoded"),
    "label too high": (tables(0, 1, 2, 0, 1, names=["a", "b"]), "label 2, out of range"),
    "label unknown": (tables(0, 1, -1, 0, 1, names=["a", "b"]), "label -1, out of range"),
    "label negative": (tables(0, 1, -1, 0, 1), "label -1"),
    "same name": (tables(0, 1, 0, 1, names=["a", "a"]), "two classes have the same name"),
    "no class twice": (tables(0, 1, 0, 1, names=["a", "b", "c"]), "'c' of set has no train"),
    "one class": (folders("cat"), "at least two classes"),
    "no class": (folders(), "not a folder"),
    "same folder name": (folders("Cat", "cat", "dog"), "same name ('Cat' and 'cat')"),
    "single example": (single_example, "'cow' has a single example"),
    "unknown split": (split_folders("train", "held", "old"), "train of classes beside held, old"),
    "train beside classes": (train_beside_classes, "beside cars, ships"),
    "a split twice": (split_folders("train", "valid", "dev"), "dev and valid of"),
    "splits of pictures": (pictures_in_splits, "a stream takes at least two classes"),
    "a column more": (shards({}, {"size": [1] * 8}), "the columns differ"),
    "other types": (shards({}, {"labels": ["a", "b"] * 4}), "not all of one form"),
    "no rows": (no_rows, "holds no rows"),
    "split by fractions": (split_by(when=[0.5] * 8), "domains must be whole numbers or all text"),
    "split by lists": (split_by(when=[[1]] * 8), "choose another --split-by"),
    "split by below zero": (split_by(when=[-1] * 8), "has domain -1, out of range"),
    "mixed sizes": (mixed_sizes, "--image-size"),
    "folder with column": (folders("a", "b", extra=("--split-by", "column:x")), "no columns"),
    "missing folder": (lambda at: [f"folder:{at / 'none'}"], "is not a folder"),
    "missing file": (lambda at: [f"arrays:{at / 'none.npz'}"], "is not a file"),
    "pickled npz": (pickled_npz, "pickled objects"),
    "bare pickle": (bare_pickle, "not an .npz file"),
    "cut npz": (cut_npz, "damaged"),
    "npz too large": (odd_header(HEADER.format("'<f8'", f"({10**30},)")), "damaged"),
    "npz of no kind": (odd_header(HEADER.format("[3]", "(4,)")), "damaged"),
    "npz of words": (odd_header("{'descr': '<f8"), "damaged"),
    "label of no text": (
        arrays(inputs=ROWS, labels=np.array(["a", "\udc80"] * 6)),
        "control characters",
    ),
    "name of no text": (
        arrays(inputs=ROWS, labels=TWELVE, class_names=np.array(["a", "b\x1b[2J"])),
        "control characters",
    ),
    "home of nobody": (lambda at: ["folder:~nosuchuser/x"], "write the whole path"),
    "file of nobody": (lambda at: ["arrays:~nosuchuser/x.npz"], "write the whole path"),
    "npz without labels": (arrays(inputs=ROWS), "it needs `inputs` and `labels`"),
    "too few labels": (arrays(inputs=ROWS, labels=TWELVE[:5]), "give one per input"),
    "labels with fractions": (arrays(inputs=ROWS, labels=TWELVE + 0.5), "whole numbers"),
    "too large": (arrays(inputs=ROWS * 1e300, labels=TWELVE), "too large for single precision"),
    "pictures too large": (
        arrays(inputs=np.full((12, 8, 8), 1e300), labels=TWELVE),
        "row 0 of the inputs holds a number too large",
    ),
    "array split by fractions": (
        arrays_by(when=TWELVE + 0.5, inputs=ROWS, labels=TWELVE),
        "domains must be whole numbers or all text, not float",
    ),
    "nan": (arrays(inputs=np.where(ROWS > 0.99, np.nan, ROWS) * np.nan, labels=TWELVE), "row 0"),
    "half a test": (arrays(inputs=ROWS, labels=TWELVE, test_inputs=ROWS), "give both"),
    "one class in npz": (arrays(inputs=ROWS, labels=TWELVE * 0), "at least two"),
    "five channels": (
        arrays(inputs=np.zeros((12, 5, 8, 8)), labels=TWELVE),
        "1 or 3 channels",
    ),
    "unknown kind": (lambda at: ["floder:x"], "unknown benchmark 'floder:x'"),
    "bad hub name": (lambda at: ["hub:../../etc"], "owner/name"),
    "bad sizes": (lambda at: ["split-digits", "--classes-per-task", "4,3,2"], "sum up to 10"),
    "bad order": (lambda at: ["split-digits", "--class-order", "0,1,2"], "0 to 9 once"),
    "bad order word": (lambda at: ["split-digits", "--class-order", "up"], "fixed, shuffled"),
    "bad split": (lambda at: ["split-digits", "--split-by", "date"], "unknown split_by 'date'"),
    "more tasks than examples": (
        lambda at: ["split-digits", "--split-by", "order", "--tasks", "100000000"],
        "choose fewer tasks or another --split-by",
    ),
    "tasks beyond counting": (
        lambda at: ["split-digits", "--split-by", "order", "--tasks", "9" * 30],
        "choose fewer tasks or another --split-by",
    ),
    "resized digits": (lambda at: ["split-digits", "--image-size", "16"], "does not apply"),
    "noise in one class": (
        lambda at: ["split-digits", "--tasks", "10", "--label-noise", "0.5"],
        "no other label",
    ),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy's would be a second sentence
@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_sentence(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, words = CASES[name]
    cache, runs, data = tmp_path / "cache", tmp_path / "runs", tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv("METASP_CACHE", str(cache))
    arguments = make(data)
    before = sorted(data.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--benchmark", *arguments, "--runs", str(runs), "--epochs", "1"])
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert words in err
    assert len(err.splitlines()) == 1
    assert err.startswith("metasp: ")
    assert out == ""
    assert not runs.exists()
    assert not [*cache.rglob("*.part"), *cache.rglob("*.incomplete")], "something half-written"
    assert sorted(data.rglob("*")) == before, "the data's own code ran, or we wrote beside it"
