"""Forgetting in a stored run: nothing of an example is left in any file."""

import numpy as np
import pytest
import torch

from metasp.errors import UserError
from metasp.example_stats import TrainingStats
from metasp.store.checkpoints import Checkpoint
from metasp.store.forget import LAST, cleared
from metasp.store.manifest import read_manifest
from tests.helpers import finish
from tests.methods.factories import TELLING


def held_by(array: np.ndarray, rows: np.ndarray) -> list[bytes]:
    """The bytes of some rows of an array that could not stand there by chance."""
    found = [np.ascontiguousarray(row).tobytes() for row in array[rows]]
    return [row for row in found if len(row) >= 16 and len(set(row)) > 4]


@pytest.mark.parametrize(
    "method", ["er", "gmed", "hal", "metasp-rehsel", "er-ace", "derpp", "cls-er", "icarl"]
)
def test_no_byte_of_a_forgotten_example_stays(tiny, method):
    """Looked for in every file: of both checkpoints, of a copy that a killed write left, and of
    tensors whose JSON was never written."""
    settings, keeps = TELLING.get(method, {}), {"selection": "herding"} if method == "derpp" else {}
    run = tiny(method=method, settings=settings, epochs=2, limit_per_class=12, memory=20, **keeps)
    directory = finish(run)
    folder = directory.path / "checkpoint"
    latest = max(folder.glob("*.safetensors")).read_bytes()
    (folder / "999999.safetensors").write_bytes(latest)
    (folder / ".000001.safetensors.0123.tmp").write_bytes(latest)
    found = directory.checkpoint()
    slots = [0, 7, 19]
    kept_by_methods = [ids[:1] for name, ids in found.arrays.items() if name.endswith("s_ids")]
    gone = np.concatenate([found.arrays["memory/ids"][slots], *kept_by_methods])
    traces = []
    for path in folder.glob("0*.safetensors"):
        arrays = Checkpoint.parse(path.read_bytes()).arrays
        of_slots = [
            name for name in arrays if name.startswith("memory/") and len(arrays[name]) == 20
        ]
        for name in of_slots:
            traces += held_by(arrays[name], np.isin(arrays["memory/ids"], gone))
        for name in arrays:
            if f"{name}_ids" in arrays:
                traces += held_by(arrays[name], np.isin(arrays[f"{name}_ids"], gone))
    assert len(traces) >= 3

    def holding() -> set[str]:
        files = [path for path in directory.path.rglob("*") if path.is_file()]
        return {path.name for path in files if any(t in path.read_bytes() for t in traces)}

    assert len(holding()) == 4
    directory.forget(gone.tolist())
    assert holding() == set()
    left = directory.checkpoint()
    forgotten = np.isin(found.arrays["memory/ids"], gone)
    assert forgotten[slots].all()
    for name in of_slots:
        after, before = left.arrays[name], found.arrays[name]
        assert after[~forgotten].tobytes() == before[~forgotten].tobytes(), name
        assert (after[forgotten] == (-1 if name == "memory/ids" else 0)).all(), name


def test_the_first_and_the_last_id_can_be_forgotten_and_no_other(tiny):
    run = finish(tiny(method="er", limit_per_class=4, memory=10))
    for wrong in (-1, LAST + 1):
        with pytest.raises(UserError, match=f"ids must be whole numbers from 0 to {LAST}"):
            run.forget([3, wrong])
    assert run.forgotten() == []
    assert run.forget([LAST, 0, 0]) == [0, LAST]
    assert run.forget([]) == []
    assert run.forgotten() == [0, LAST]
    assert not read_manifest(run.path).erasing


def test_what_a_person_said_of_a_forgotten_example_goes_and_the_rest_stays(tiny):
    directory = finish(tiny(method="er", epochs=1, limit_per_class=4, memory=10))
    file = directory.verdicts
    file.write_text("label, ID\n1,3\n2, 5\n,33\n", encoding="utf-8")
    directory.forget([5, 7])
    assert file.read_bytes() == b"label, ID\r\n1,3\r\n,33\r\n"
    before = file.stat().st_mtime_ns
    directory.forget([9])
    assert file.stat().st_mtime_ns == before  # nothing of it was there


def test_the_mean_outputs_of_an_example_leave_the_statistics_with_it():
    """Verified examples have mean outputs, and no other statistics."""
    stats = TrainingStats(torch.tensor([1, 2, 3]), classes=(0, 1), verified=torch.tensor([8, 9]))
    arrays = {f"training_stats/{k}": values.numpy() for k, values in stats.state_dict().items()}
    kept = cleared(arrays, np.array([2, 9]))
    assert kept["training_stats/examples/ids"].tolist() == [1, 3]
    assert kept["training_stats/outputs/ids"].tolist() == [1, 3, 8]
    assert kept["training_stats/outputs/sums"].shape == (3, 2)
    assert kept["training_stats/classes"].tolist() == [0, 1]
    assert len(kept["training_stats/examples/sums"]) == 2
    assert len(kept["training_stats/examples/latest"]) == 2
