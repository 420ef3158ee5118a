"""Data by its name on the hub: a real download, a name that is not there, no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.factories import table_set
from tests.data.small_hub import serving


def hub_environment(at: Path, endpoint: str) -> dict[str, str]:
    """For a process whose hub is on this machine and whose files are all in one folder."""
    return {
        **os.environ,
        "METASP_CACHE": str(at / "cache"),
        "METASP_RUNS": str(at / "runs"),
        "METASP_DATA": "",
        "HF_HOME": str(at / "hf"),
        "HF_ENDPOINT": endpoint,
        # Whatever the person who starts the tests has set: this hub is on this machine.
        "HF_HUB_OFFLINE": "0",
        "HF_DATASETS_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }


def run_cli(at: Path, endpoint: str, *arguments: str) -> tuple[int, str, str]:
    env = hub_environment(at, endpoint)
    done = subprocess.run(
        [sys.executable, "-m", "metasp", "run", "--json", "--epochs", "1", *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_set_is_downloaded_once(tmp_path: Path) -> None:
    folder = table_set(tmp_path / "set")
    with serving(folder, "somebody/things") as (endpoint, asked):
        code, out, err = run_cli(
            tmp_path, endpoint, "--benchmark", "hub:somebody/things", "--tasks", "2"
        )
        assert code == 0, err
        files = [path for path in asked if path.endswith(".parquet")]
        assert files
    first = json.loads(out)
    assert [len(row) for row in first["class_il"]["matrix"]] == [2, 2]
    # The hub is gone, and its files in the cache are all it takes.
    for more in (("--seed", "2"), ("--decode", "lazy")):
        code, out, err = run_cli(
            tmp_path, "http://127.0.0.1:9", "--benchmark", "hub:somebody/things", *more
        )
        assert code == 0, err
        assert json.loads(out)["spec"]["data_digest"] == first["spec"]["data_digest"]


@pytest.mark.slow
def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    with serving(table_set(tmp_path / "set"), "somebody/things") as (endpoint, _):
        code, out, err = run_cli(tmp_path, endpoint, "--benchmark", "hub:somebody/thongs")
    assert (code, out) == (2, "")
    assert err == "metasp: there is no data set 'somebody/thongs' on the Hugging Face hub.\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_program_beside_the_data_is_never_run(tmp_path: Path) -> None:
    folder = table_set(tmp_path / "set")
    (folder / "things.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with serving(folder, "somebody/things") as (endpoint, _):
        code, out, err = run_cli(tmp_path, endpoint, "--benchmark", "hub:somebody/things")
    assert (code, out) == (2, "")
    assert "scripts are no longer supported" in err.splitlines()[-1]
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_no_network(tmp_path: Path) -> None:
    # Nothing listens on port 9.
    code, out, err = run_cli(tmp_path, "http://127.0.0.1:9", "--benchmark", "split-cifar10")
    assert (code, out) == (2, "")
    assert "hub cannot be reached" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
