"""The tables of a run: what was stored is read, and what is damaged is named."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.store import RunDir
from metasp.store.manifest import command_for
from metasp.store.run_tables import INFLUENCE, NOISE, influence_of, names_by_task

FLIPPED = {"task": [0, 0, 1], "id": [0, 4, 9], "label": [1, 2, 3], "true_label": [2, 1, 4]}
ROWS = {
    "task": [0, 1], "id": [7, 8], "label": [1, 2], "source": ["new", "memory"],
    "stability": [0.1, 0.2], "plasticity": [0.3, 0.4], "fused": [0.5, 0.6], "count": [1, 2],
    "kept": [True, False],
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    spec = RunSpec()
    directory = RunDir(tmp_path / spec.name)
    with directory.open(spec):
        yield directory


def stored(run, name, columns):
    """A table of the columns that are known, the others empty."""
    filled = {name: columns.get(name, [None] * 2) for name in INFLUENCE.names}
    pq.write_table(pa.table(filled, schema=INFLUENCE), run.path / name)


def test_wrong_labels_are_stored(run):
    assert run.noise() is None
    run.keep_noise({})
    assert run.noise() is None
    run.keep_noise(FLIPPED)
    assert run.noise() == FLIPPED
    assert pq.read_schema(run.path / "noise.parquet").equals(NOISE)


def test_some_columns_or_all(run):
    assert influence_of(run.path, ["id"]) is None
    assert run.influence() is None
    stored(run, "influence.parquet", ROWS)
    assert influence_of(run.path, ["id", "fused"]).to_pydict() == {
        "id": [7, 8],
        "fused": [0.5, 0.6],
    }
    found = run.influence()
    assert {name: found[name] for name in ROWS} == ROWS
    assert found["predicted"] == [None, None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": [1, None]}, "it lacks the column label, or values of it"),
    ],
)
def test_a_value_that_must_be_there_is_missed(run, change, words):
    stored(run, "influence.parquet", {**ROWS, **change})
    with pytest.raises(UserError) as error:
        run.influence()
    assert f"{run.path / 'influence.parquet'} is damaged ({words})" in str(error.value)
    assert command_for(run.path) in str(error.value)
    ok = [name for name in ("id", "count") if name not in change]
    assert influence_of(run.path, ok).num_rows == 2


def test_a_table_without_a_column_or_that_is_none(run):
    pq.write_table(pa.table({"id": [1]}), run.path / "noise.parquet")
    with pytest.raises(UserError, match="it lacks the column task"):
        run.noise()
    (run.path / "noise.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"noise.parquet is damaged \("):
        run.noise()


def test_tables_by_task_in_the_order_of_tasks(run):
    (run.path / "memory").mkdir()
    for name in ("task-010", "task-002", "task-1 copy", "mine"):
        (run.path / "memory" / f"{name}.parquet").write_bytes(b"")
    names = names_by_task(run.path, "memory")
    assert list(names.items()) == [(2, "memory/task-002.parquet"), (10, "memory/task-010.parquet")]


def test_the_command_that_makes_a_run_again(tmp_path):
    folder = tmp_path / "my runs" / "one"
    said = command_for(folder, "--data", "here")
    assert said == (
        f"metasp run --spec '{folder}/spec.toml' --runs '{folder.parent}' --data here --force"
    )
