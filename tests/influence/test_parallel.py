"""The processes of a group, and how a test starts them."""

import os
import subprocess
import sys

import pytest

from metasp.errors import UserError
from metasp.influence import Ranks
from tests.helpers import ROOT


def torchrun(count: int, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess:
    """The ranks' end."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={count}", *arguments],
        env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def test_without_a_process_group_one_sentence():
    with pytest.raises(UserError, match="start with torchrun"):
        Ranks()


def test_one_rank_hears_itself(ranks):
    assert ranks.hear(b"a word") == b"a word"
    assert ranks.hear() == b""
