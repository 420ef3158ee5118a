"""Mistakes and mishaps that must end in one sentence, never in a traceback."""

import shutil

import pytest

from metasp.cli import main
from tests.helpers import finish

SHORT = ["--epochs", "1", "--limit-per-class", "4", "--threads", "1", "--memory", "20"]
SMALL = ["--backbone", "resnet18", "--width", "2"]
REFUSED = [
    (["--method", "er", *SMALL, "--batch-size", "1"], "cannot learn from a batch of one"),
    (["--method", "metasp", *SMALL, "--limit-per-class", "1", "--tasks", "10"], "tasks of 2 "),
    (["--method", "er", "--backbone", "resnet18", "--width", "65536"], "give a smaller --width"),
    (["--method", "er", "--memory", "100000000000000"], "give --memory 40 or less"),
    (["--method", "finetune", "--memory", "100000000000000"], "give --memory 40 or less"),
    (["--method", "er", "--threads", "100000"], "threads must be between 1 and 1024"),
    (["--method", "er", "--memory", "0"], "give --memory 10 or more"),
    (["--method", "er", "--lr", "1e30"], "try a smaller --lr"),
    (["--method", "metasp", "--lr", "1e30"], "lower the learning rate"),
    (["--method", "er", "--label-noise", "1", "--tasks", "10"], "no other label to give"),
    (["--method", "er", "--class-order", "1,2"], "each of the numbers 0 to 9 once"),
]
WORK = [
    ["--method", "er", *SMALL, "--memory-batch", "1"],
    ["--method", "metasp-rehsel", *SMALL, "--memory-batch", "1"],
    ["--method", "er", "--batch-size", "1", "--memory-batch", "1"],
    ["--method", "er", "--tasks", "10", "--width", "1"],
    ["--method", "er", "--label-noise", "1"],
    ["--method", "finetune", "--memory", "0"],
]


def told(capsys, *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(part) for part in arguments])
    return int(stop.value.code or 0), capsys.readouterr().err.strip()


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=[" ".join(f) for f, _ in REFUSED])
def test_settings_that_cannot_work(flags, words, capsys, tmp_path):
    code, text = told(capsys, "run", *SHORT, "--runs", tmp_path, *flags)
    assert (code, len(text.splitlines())) == (2, 1)
    assert words in text


@pytest.mark.parametrize("flags", WORK, ids=" ".join)
def test_settings_at_the_limits_that_do(flags, capsys, tmp_path):
    assert told(capsys, "run", *SHORT, "--runs", tmp_path, *flags, "--json") == (0, "")


def test_an_id_too_large_to_be_one_leaves_the_run_alone(tiny, capsys):
    run = finish(tiny()).path
    before = sorted(path.name for path in run.iterdir())
    code, text = told(capsys, "memory", "forget", run, 10**23)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "must be whole numbers from 0" in text
    assert sorted(path.name for path in run.iterdir()) == before
    assert told(capsys, "memory", "forget", run, 11)[0] == 0


LOGS = ["3\n", "{}\n", "[]\n", "nonsense\n", '{"event": "TaskStarted", "task": 0}\n']


@pytest.mark.parametrize("content", LOGS)
def test_a_garbled_log_is_one_sentence(content, tiny, capsys):
    run = finish(tiny()).path
    (run / "events.jsonl").write_text(content)
    code, text = told(capsys, "explore", run)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "events.jsonl is damaged" in text


def test_folders_that_are_none(tiny, capsys, tmp_path):
    """A name too long for the system, and a file or folder where the other should be."""
    long = tmp_path / ("x" * 300)
    run = finish(tiny()).path
    for arguments in (["resume", long], ["report", long], ["figures", run, "--out", long],
                      ["run", *SHORT, "--runs", long], ["memory", "list", long]):  # fmt: skip
        code, text = told(capsys, *arguments)
        assert (code, len(text.splitlines())) == (2, 1), arguments
        assert "File name too long" in text, arguments
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoint")
    (run / "checkpoint").write_text("in the way")
    code, text = told(capsys, "resume", run)
    assert (code, len(text.splitlines())) == (2, 3)  # after a warning about each checkpoint
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    code, text = told(capsys, "explore", run)
    assert (code, len(text.splitlines())) == (2, 1)
    assert "events.jsonl: Is a directory" in text
