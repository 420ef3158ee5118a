"""What the page refuses: runs that do not fit together, damaged files, and mistakes of a user."""

from pathlib import Path

import pytest

from metasp.errors import UserError
from metasp.reports.explorer import Missing, build_page
from tests.helpers import metasp
from tests.reports.page_factories import make_run

WITHOUT = Missing("the data is gone.")


def test_runs_of_different_data_are_not_compared(tmp_path):
    runs = [make_run(tmp_path), make_run(tmp_path, data_digest="other")]
    with pytest.raises(UserError, match="different data"):
        build_page(runs, WITHOUT)


@pytest.mark.parametrize(
    "changes",
    [{"class_order": "1,0,2,3"}, {"label_noise": 0.3}, {"limit_per_class": 7}, {"image_size": 4}],
)
def test_runs_of_different_streams_of_the_same_data_are_not_compared(tmp_path, changes):
    with pytest.raises(UserError, match="different data"):
        build_page([make_run(tmp_path), make_run(tmp_path, **changes)], WITHOUT)


def test_seeds_are_compared_unless_they_draw_the_stream(tmp_path):
    assert build_page([make_run(tmp_path, seed=seed) for seed in (1, 2)], WITHOUT).content
    for drawn in ({"class_order": "shuffled"}, {"label_noise": 0.3}):
        with pytest.raises(UserError, match="of one seed"):
            build_page([make_run(tmp_path, seed=seed, **drawn) for seed in (1, 2)], WITHOUT)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


def emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [truncate, emptied, Path.unlink])
@pytest.mark.parametrize("name", ["influence.parquet", "memory/task-001.parquet", "events.jsonl"])
def test_a_damaged_file_is_one_sentence(tmp_path, name, harm):
    run = make_run(tmp_path)
    harm(run.path / name)
    with pytest.raises(UserError, match=rf"{Path(name).name} is damaged") as caught:
        build_page([run], WITHOUT)
    assert "\n" not in str(caught.value)


def test_a_users_mistake_is_one_sentence(tmp_path):
    done = metasp("explore", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is not a run" in done.stderr
    run = make_run(tmp_path)
    truncate(run.path / "influence.parquet")
    done = metasp("explore", run.path)
    assert done.returncode == 2
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(run.path.glob("*.html"))
