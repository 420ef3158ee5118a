"""The tables of a run: what was stored is read, and what is damaged is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.manifest import command_for
from metasp.store.run_tables import INFLUENCE, NOISE, task_of
from tests.helpers import list_anew

FLIPPED = {"task": [0, 0, 1], "id": [0, 4, 9], "label": [1, 2, 3], "true_label": [2, 1, 4]}
ROWS = {
    "task": [0, 1], "id": [7, 8], "label": [1, 2], "source": ["new", "memory"],
    "stability": [0.1, 0.2], "plasticity": [0.3, 0.4], "fused": [0.5, 0.6], "count": [1, 2],
    "kept": [True, False],
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    directory = RunDir(tmp_path / "run")
    with directory.open(RunSpec()) as writer:
        writer.checkpoint({}, {})
    return directory


def test_wrong_labels_are_stored(run):
    assert run.noise() is None
    with run.open(RunSpec()) as writer:
        writer.keep("noise.parquet", {})
        writer.keep("noise.parquet", FLIPPED)
        assert run.noise() is None  # it counts with the checkpoint
        writer.checkpoint({}, {})
    assert run.noise() == FLIPPED
    assert pq.read_schema(run.path / "noise.parquet").equals(NOISE)


def test_a_table_is_attached_and_some_of_its_columns_are_read(run):
    assert run.influence_of(["id"]) is None
    filled = {name: ROWS.get(name, [None] * 2) for name in INFLUENCE.names}
    run.attach("influence.parquet", pa.table(filled))
    assert run.influence_of(["fused", "id"]).to_pydict() == {"fused": [0.5, 0.6], "id": [7, 8]}
    assert run.table("influence.parquet").schema.equals(INFLUENCE)
    found = run.influence()
    assert {name: found[name] for name in ROWS} == ROWS
    assert found["predicted"] == [None, None]
    run.path.joinpath("influence.parquet").unlink()
    with pytest.raises(UserError, match=r"influence.parquet is damaged \(it is missing\)"):
        run.influence()


def test_a_table_without_a_column_or_that_is_none(run):
    pq.write_table(pa.table({"id": [1]}), run.path / "noise.parquet")
    list_anew(run.path)
    assert run.noise() == {"task": [None], "id": [1], "label": [None], "true_label": [None]}
    (run.path / "noise.parquet").write_bytes(b"no table")
    list_anew(run.path)
    with pytest.raises(UserError, match=r"noise.parquet is damaged \("):
        run.noise()


def test_the_task_of_a_table_is_in_its_name():
    names = ("memory/task-010.parquet", "task-002.parquet", "task-1 copy.parquet", "mine.parquet")
    assert [task_of(name) for name in names] == [10, 2, None, None]


def test_the_command_that_makes_a_run_again(tmp_path):
    folder = tmp_path / "my runs" / "one"
    assert command_for(folder, "--data", "here") == (
        f"metasp run --spec '{folder}/spec.toml' --runs '{folder.parent}' --data here --force"
    )
