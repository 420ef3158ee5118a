"""A first look at data: the hub is streamed, little of it, and nothing is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_what_cannot_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    from metasp.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["look", "split-digits"])
    assert stopped.value.code == 2
    assert "give hub:OWNER/NAME or folder:PATH" in capsys.readouterr().err
