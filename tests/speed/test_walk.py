"""The way from the command line to the training loop stays short, and so does an influence step."""

import subprocess
import sys

import pytest

from tests.helpers import ROOT

LIMITS = {"calls": 900, "modules": 45, "step": 550}


@pytest.mark.slow
def test_few_calls_lead_to_the_loop_and_make_a_step():
    command = [sys.executable, "-m", "benchmarks.walk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()[:2]
    counts = [int(word) for word in f"{first} {second}".split() if word.isdigit()]
    for count, (name, limit) in zip(counts, LIMITS.items(), strict=True):
        assert 0 < count <= limit, name
