"""Every snippet of these pages runs: Python in order in one process, shell commands for real."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

PAGES = ("learner", "memory", "own-loop", "own-method", "parallel", "tracking")
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = """set -eu
metasp() { "$PYTHON" -m metasp "$@"; }
torchrun() { "$PYTHON" -m torch.distributed.run "$@"; }
"""


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, rest of the fence, text) of each fenced block."""
    return FENCE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))


def run(command: list[str], where: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHON": sys.executable}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs(page, tmp_path):
    script = ["import torch", "torch.set_num_threads(1)"]
    shell = [SHELL]
    for language, about, text in blocks(page):
        title = re.search(r'title="([^"]+)"', about)
        if title:
            (tmp_path / title.group(1)).write_text(text)
        elif language == "python":
            script.append(text)
        elif language == "sh":
            shell.append(text)
    if len(script) > 2:
        (tmp_path / "page.py").write_text("\n".join(script))
        run([sys.executable, "page.py"], tmp_path)
    if len(shell) > 1:
        run(["bash", "-c", "\n".join(shell)], tmp_path)
    assert len(script) > 2 or len(shell) > 1


@pytest.mark.parametrize("page", PAGES)
def test_no_block_escapes_the_test(page):
    """Each fence is of a kind that is run, and all fences are found."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = blocks(page)
    assert {language for language, _, _ in found} <= {"python", "sh"}
    assert text.count("```") == 2 * len(found)
