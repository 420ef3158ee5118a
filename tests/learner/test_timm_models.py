"""Models of timm, tiny and random, in a learner and under influence."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

FOLDER = Path(sys.prefix) / "timm"  # apart, as the Makefile says


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="timm is not installed: run `make test` once")
def test_models_of_timm_learn_and_their_influence_is_exact():
    command = [sys.executable, "-m", "tests.learner.timm_worker", str(FOLDER)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == ["VisionTransformer", "ResNet"]
    for _, score, error in found:
        assert float(score) > 0.6  # by chance 0.25
        assert float(error) < 1e-8
