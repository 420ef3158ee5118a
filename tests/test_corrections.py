"""Corrections of a person: files in, another stream out, one sentence about a bad file."""

import json
import os
from pathlib import Path

import pytest
import torch

from metasp.cli import main
from metasp.corrections import Corrections, as_cell, from_cell, read_corrections
from metasp.data import load_benchmark
from metasp.errors import UserError
from metasp.spec import RunSpec
from metasp.store import open_run
from tests.helpers import finish

CLASSES = ("cat", "dog", "=1+1", "a, b")


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "said.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path, kind: str = "verified", most: int = 100) -> Corrections:
    return read_corrections({kind: path}, CLASSES, most)


def test_labels_are_names_or_numbers_and_a_lack_of_one_leaves_out(tmp_path):
    text = '\ufeffID,note,Label\r\n7,x,dog\r\n3,,0\r\n\r\n5,?,\r\n8,,\'=1+1\r\n9,,"a, b"\r\n'
    said = read(written(tmp_path, text))
    assert said == Corrections(exclude=(5,), verified=((3, 0), (7, 1), (8, 2), (9, 3)))
    assert read(tmp_path / "said.csv", "exclude").exclude == (3, 5, 7, 8, 9)


def test_names_that_are_numbers_are_names(tmp_path):
    path = written(tmp_path, "id,label\n1,7\n")
    assert read_corrections({"relabel": path}, ("3", "7"), 9).relabel == ((1, 1),)
    with pytest.raises(UserError, match=r"unknown class in .* '0'"):
        read_corrections({"relabel": written(tmp_path, "id,label\n1,0\n")}, ("3", "7"), 9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs a first line with one column 'id'"),
        ("number,label\n1,cat\n", "its columns are 'number', 'label'"),
        ("id;label\n1;cat\n", "separated by commas"),
        ("id,name\n1,cat\n", "one column 'label'"),
        ("id,label\n1\n", "line 2 of .* has 1 cells"),
        ("id,label\n=1+1,cat\n", "line 2 of .* has the id '=1\\+1'"),
        ("id,label\n١,cat\n", "ids are whole numbers from 0"),
        (f"id,label\n{10**30},cat\n", "ids are whole numbers from 0"),
        ("id,label\n1,cat\n1,dog\n", "names id 1 again, as 'cat' and as 'dog'"),
        ("id,label\n1,cart\n", "unknown class in .* did you mean 'cat'"),
        ("id,label\n1,caf\u00e9\n".encode("latin-1"), "not UTF-8"),
        ("id,label\n1,cat\n".encode("utf-16"), "not UTF-8"),
        ("id,label\n1,cat\n".encode("utf-16-be"), "not UTF-8"),
        (b"id,label\n1,\x00\n", "unknown class|not a CSV"),
        ("id,label\n1," + "x" * 200_000, "not a CSV file"),
        ("id,label\n" + "".join(f"{i},cat\n" for i in range(10**6)), "more rows than there are"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as told:
        read(written(tmp_path, text))
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 500


def test_a_relabel_takes_what_is_suggested_and_must_change_something(tmp_path):
    path = written(tmp_path, "id,label,suggested\n4,cat,dog\n5,dog,\n6,dog,cat\n")
    assert read(path, "relabel").relabel == ((4, 1), (6, 0))
    assert read(written(tmp_path, "id,label\n4,dog\n"), "relabel").relabel == ((4, 1),)
    with pytest.raises(UserError, match="names no class for any example"):
        read(written(tmp_path, "id,label,suggested\n4,cat,\n"), "relabel")
    train = load_benchmark(RunSpec()).tasks[0].train
    same = tuple(zip(train.ids[:3].tolist(), train.labels[:3].tolist()))
    with pytest.raises(UserError, match="the label that it has, so nothing would change"):
        load_benchmark(RunSpec(relabel=same))


def test_what_cannot_be_read_is_refused_and_a_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for name, words in (("none.csv", "cannot read"), ("pipe.csv", "a pipe"), (".", "a folder")):
        with pytest.raises(UserError, match=words):
            read(tmp_path / name)


def test_a_verdict_counts_whatever_other_files_say(tmp_path):
    files = {}
    for kind, text in (
        ("exclude", "id\n1\n2\n3\n"),
        ("relabel", "id,label\n4,cat\n5,cat\n"),
        ("verified", "id,label\n1,dog\n2,\n4,dog\n"),
    ):
        files[kind] = tmp_path / f"{kind}.csv"
        files[kind].write_text(text)
    said = read_corrections(files, CLASSES, 9)
    assert said == Corrections((2, 3), ((5, 0),), ((1, 1), (4, 1)))


def test_the_same_corrections_are_the_same_run_and_contradictions_none():
    one = RunSpec(exclude=[9, 3, 3], relabel=[[5, 1], [4, 0]])
    assert one == RunSpec(exclude=(3, 9), relabel=((4, 0), (5, 1)))
    assert one.exclude == (3, 9)
    assert RunSpec(exclude=()).digest == RunSpec().digest != one.digest
    for bad, words in (
        ({"exclude": [3], "verified": [[3, 1]]}, "exclude and verified both have id 3"),
        ({"relabel": [[3, 1], [3, 2]]}, "two classes to id 3"),
        ({"relabel": [[3, 1, 1]]}, "relabel must be a list of"),
        ({"exclude": [-3]}, "whole numbers from 0"),
        ({"exclude": ["3"]}, "must be a list of numbers"),
    ):
        with pytest.raises(UserError, match=words):
            RunSpec(**bad)


def test_the_newer_word_counts():
    old = Corrections((1, 2), ((3, 0), (4, 0)), ((5, 1),))
    newer = Corrections((3,), ((5, 0),), ((1, 1),))
    assert old.updated(newer) == Corrections((2, 3), ((4, 0), (5, 0)), ((1, 1),))


@pytest.mark.parametrize(
    "name", ["=1+1", "+x", "-x", "@x", "\tx", "cat", "'cat", "'", "'=x", "''@"]
)
def test_a_name_comes_back_from_its_cell(name):
    assert from_cell(as_cell(name)) == name
    assert not as_cell(name).startswith(("=", "+", "-", "@", "\t"))


def test_the_stream_is_as_it_was_said():
    """Of the two tasks 0,1 and 2,3 … example by example."""
    plain = load_benchmark(RunSpec(label_noise=0.2))
    first, second = plain.tasks[0].train, plain.tasks[1].train
    out, other, sure, moved = first.ids[:4].tolist()
    away = int(second.ids[0])
    said = {
        "exclude": (out,),
        "relabel": ((other, 1 - int(first.labels[1])), (moved, 3)),
        "verified": ((sure, 0), (away, 9)),
    }
    done = load_benchmark(RunSpec(label_noise=0.2, **said))
    tasks = done.tasks
    assert not torch.isin(torch.tensor([out, sure, moved, away]), tasks[0].train.ids).any()
    assert len(tasks[0].train) == len(first) - 3
    labels = dict(zip(tasks[0].train.ids.tolist(), tasks[0].train.labels.tolist()))
    before = dict(zip(first.ids.tolist(), first.labels.tolist()))
    assert labels.pop(other) == 1 - before[other]
    assert all(before[i] == label for i, label in labels.items())
    assert [(task.trusted.ids.tolist(), task.trusted.labels.tolist()) if task.trusted else None
            for task in tasks] == [([sure], [0]), None, None, None, ([away], [9])]  # fmt: skip
    assert 3 in tasks[1].train.labels[tasks[1].train.ids == moved]
    assert len(tasks[1].train) == len(second)  # one came, one left
    picture = tasks[1].train.take(torch.nonzero(tasks[1].train.ids == moved)[0]).inputs
    assert torch.equal(picture[0], first.take(torch.tensor([3])).inputs[0])
    # What was put right is known to be wrong no more; what was made wrong is.
    true = dict(zip(plain.source.train.ids.tolist(), plain.source.labels.tolist()))
    wrong = dict(zip(done.flipped["id"], done.flipped["label"]))
    now = {i: y for t in tasks for i, y in zip(t.train.ids.tolist(), t.train.labels.tolist())}
    assert wrong == {i: y for i, y in now.items() if y != true[i]}


def test_verified_ones_add_to_those_that_are_given():
    plain = load_benchmark(RunSpec())
    sure = int(plain.tasks[0].train.ids[0])
    tasks = load_benchmark(RunSpec(trusted=2, verified=((sure, 0),))).tasks
    assert [len(task.trusted) for task in tasks] == [5, 4, 4, 4, 4]
    assert tasks[0].trusted.ids[0] == sure
    assert not set(tasks[0].trusted.ids.tolist()) & set(tasks[0].train.ids.tolist())


def test_what_does_not_exist_is_refused_by_name():
    with pytest.raises(UserError, match="has ids 77777, 88888"):
        load_benchmark(RunSpec(exclude=(77777, 88888)))
    ids = load_benchmark(RunSpec()).tasks[2].train.ids.tolist()
    with pytest.raises(UserError, match="no class 10"):
        load_benchmark(RunSpec(relabel=((ids[0], 10),)))
    with pytest.raises(UserError, match="no examples of task 3"):
        load_benchmark(RunSpec(exclude=tuple(ids)))


def call(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_correct_run_again_compare_and_resume(tiny, tmp_path, capsys):
    """From a run to another beside it, whose files are not needed any more."""
    before = finish(tiny(method="er", label_noise=0.2)).path
    wrong = open_run(before).noise()
    path = tmp_path / "verified.csv"
    rows = [f"{i},{label}" for i, label in zip(wrong["id"], wrong["true_label"])]
    path.write_text("\n".join(["id,label", *rows[:6]]))
    run = ["run", "--spec", before / "spec.toml", "--runs", before.parent]
    code, out, err = call(capsys, *run, "--verified", path, "--json")
    assert code == 0, err
    after = Path(json.loads(out)["run"])
    assert after != before
    assert after.parent == before.parent
    assert set(open_run(after).trusted()["id"]) == set(wrong["id"][:6])
    path.unlink()
    assert call(capsys, "resume", after, "--json")[0] == 0
    code, out, _ = call(capsys, "compare", before, after, "--json")
    assert code == 0
    told = {row["what"]: row for table in json.loads(out)["tables"] for row in table["rows"]}
    assert (told["verified"]["a"], told["verified"]["b"]) == (0, 6)
    known = told["labels known to be wrong"]
    assert known["a"] - known["b"] == 6
    ends = [open_run(p).outcome()["class_il"]["A_inf"] for p in (before, after)]
    assert told["A_∞, class-IL"]["change"] == pytest.approx(ends[1] - ends[0], abs=1e-6)
    # A second file adds to the first, and says another thing of one.
    again = written(
        tmp_path, f"id,label\n{wrong['id'][0]},\n{wrong['id'][7]},{wrong['label'][7]}\n"
    )
    run = ["run", "--spec", after / "spec.toml", "--runs", before.parent, "--json"]
    third = json.loads(call(capsys, *run, "--verified", again)[1])["spec"]
    assert third["exclude"] == [wrong["id"][0]]
    assert {i for i, _ in third["verified"]} == {*wrong["id"][1:6], wrong["id"][7]}


def test_forgetting_by_file_and_by_name(tiny, tmp_path, capsys):
    run = finish(tiny(method="er")).path
    code, out, err = call(capsys, "memory", "forget", run, 999999)
    assert (code, out) == (2, "")
    assert "no example with id 999999" in err
    ids = open_run(run).scores()[0]["id"][:3]
    path = written(tmp_path, "id,why\n" + "".join(f"{i},x\n" for i in ids))
    code, out, _ = call(capsys, "memory", "forget", run, "--from", path, "--json")
    assert (code, json.loads(out)["forgotten"]) == (0, sorted(ids))
    assert not set(ids) & set(open_run(run).scores()[0]["id"])
    assert call(capsys, "memory", "forget", run, 3, "--from", path)[0] == 2
    path = written(tmp_path, f"id\n{ids[0]}\n88888\n")
    assert "id 88888" in call(capsys, "memory", "forget", run, "--from", path)[2]
