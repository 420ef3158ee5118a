"""The method that CONTRIBUTING.md walks through, followed to the letter in a copy of the package:
killed, resumed, made to forget an example, and reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from metasp.store import RunDir
from tests.docs.pages import pages
from tests.helpers import ROOT, assert_same_run

FLAGS = ["--method", "mine", "--hold", "0.2", "--epochs", "3", "--limit-per-class", "60"]


@pytest.fixture
def package(tmp_path):
    """The package with the page's file and line in it."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    (page,) = [each for each in pages() if each.name == "CONTRIBUTING"]
    for block in page.blocks:
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        if block.kind == "diff":
            name, before, *added = block.text.splitlines()
            file = tmp_path / name.removeprefix("+++ ")
            text, anchor = file.read_text(encoding="utf-8"), before[1:] + "\n"
            assert text.count(anchor) == 1
            new = "".join(line[1:] + "\n" for line in added)
            file.write_text(text.replace(anchor, anchor + new), encoding="utf-8")
    return tmp_path


def command(package, *words):
    environment = {**os.environ, "PYTHONPATH": str(package / "src"), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "metasp", *map(str, words)],
        env=environment, cwd=package, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def done(package, *words):
    process = command(package, *words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_a_method_of_one_file_and_one_line_has_all_that_others_have(package):
    small = [*FLAGS, "--threads", "1", "--checkpoint-seconds", "0"]
    done(package, "run", *small, "--runs", "whole")
    (whole,) = (package / "whole").glob("split-digits-mine-*")
    process, cut = command(package, "run", *small, "--runs", "cut"), package / "cut" / whole.name
    until = time.monotonic() + 120
    while not list(cut.glob("checkpoint/*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (cut / "result.json").exists()
    done(package, "resume", cut)
    assert_same_run(RunDir(cut), RunDir(whole))
    from safetensors.numpy import load_file

    held = load_file(max(cut.glob("checkpoint/*.safetensors")))
    assert held["memory/logits"].shape == (200, 10)
    gone = int(held["memory/ids"][0])
    done(package, "memory", "forget", cut, gone, "--reason", "withdrawn")
    after = load_file(max(cut.glob("checkpoint/*.safetensors")))
    assert not after["memory/logits"][0].any()
    assert gone not in after["memory/ids"]
    told = json.loads(done(package, "report", "whole", "--format", "json"))
    assert "mine" in json.dumps(told)
