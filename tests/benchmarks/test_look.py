"""A first look at data: the hub is streamed, little of it, and nothing is kept."""

import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.benchmarks.hub import first_look
from metasp.benchmarks.parquet import features_of, open_local, splits_in
from metasp.benchmarks.request import Request
from tests.benchmarks.factories import noise_picture, png, table_set, write_parquet
from tests.benchmarks.small_hub import serving
from tests.benchmarks.test_hub import hub_environment


def look(at: Path, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from metasp.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "look", *arguments],
        capture_output=True,
        text=True,
        env=hub_environment(at, endpoint),
        timeout=300,
    )


@pytest.mark.slow
def test_the_hub_is_streamed(tmp_path: Path) -> None:
    folder, served = table_set(tmp_path / "set"), list[int]()
    names, large = [f"kind {label}" for label in range(4)], folder / "data" / "train-1.parquet"
    # Noise does not compress: a second file of 6 MB, of which the first rows know nothing.
    pictures = [png(noise_picture(row, 256)) for row in range(30)]
    write_parquet(large, pictures, [row % 4 for row in range(30)], names)
    with serving(folder, "somebody/things", served) as (endpoint, _):
        done = look(tmp_path, endpoint, "hub:somebody/things", "--rows", "6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    here = look(tmp_path, "", f"folder:{folder}", "--rows", "6", "--json")
    assert json.loads(here.stdout) == found
    assert found["shape"] == [3, 8, 8]
    assert found["class_names"] == names
    assert found["splits"] == {
        "train": {"kind 0": 2, "kind 1": 2, "kind 2": 1, "kind 3": 1},
        "test": {"kind 0": 2, "kind 1": 2, "kind 2": 1, "kind 3": 1},
    }
    assert sum(served) < large.stat().st_size / 10
    kept = [path for path in tmp_path.rglob("*") if path.suffix in (".arrow", ".npy", ".parquet")]
    assert {path.parent for path in kept} == {large.parent}


def test_a_folder_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from metasp.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["look", f"folder:{table_set(tmp_path / 'set')}", "--rows", "3"])
    assert not stopped.value.code
    out = capsys.readouterr().out
    assert "pictures: image, the first 8×8 in colour" in out
    assert "labels: label, 4 classes" in out
    assert "first 3 rows of train: kind 0 1, kind 1 1, kind 2 1" in out


@pytest.mark.parametrize("rows", [1, 12, 19, 10_000])
def test_a_folder_is_looked_at_as_datasets_reads_it(rows: int, tmp_path: Path) -> None:
    """`datasets` is the other way to read the same rows, here with two train files."""
    folder = table_set(tmp_path / "set")
    names = [f"kind {label}" for label in range(4)]
    pictures = [png(noise_picture(row, 8)) for row in range(9)]
    write_parquet(folder / "data" / "train-1.parquet", pictures, [3] * 9, names)
    found = first_look("", folder, rows, Request())
    streams, _ = open_local(splits_in(folder))
    for split, stream in streams.items():
        told = [names[row["label"]] for row in islice(stream, rows)]
        assert found["splits"][split] == dict(Counter(sorted(told)))
    assert found["columns"] == {name: kind.dtype for name, kind in features_of(streams).items()}
    assert found["class_names"] == tuple(names)


def test_a_table_that_names_no_types_is_looked_at_too(tmp_path: Path) -> None:
    """Without the hub's note: pictures are a struct with bytes, labels are words."""
    content = {"bytes": png(noise_picture(0, 8)), "path": None}
    table = pa.table({"picture": [content] * 3, "label": ["b", "a", "b"]})
    pq.write_table(table, tmp_path / "train.parquet")
    found = first_look("", tmp_path, 100, Request())
    assert (found["pictures"], found["labels"], found["class_names"]) == ("picture", "label", None)
    assert (found["shape"], found["splits"]) == ([3, 8, 8], {"train": {"a": 1, "b": 2}})
    assert found["columns"]["label"] == "string"


def test_what_cannot_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    from metasp.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["look", "split-digits"])
    assert stopped.value.code == 2
    assert "give hub:OWNER/NAME or folder:PATH" in capsys.readouterr().err
