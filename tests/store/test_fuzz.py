"""Files of a run that are flipped, cut short, removed or swapped: whoever reads gets what the run
stored, or one sentence that names what is damaged.

METASP_FUZZ_CASES=N damages so many killed runs, METASP_FUZZ_SEED=N draws other damage."""

import contextlib
import io
import os
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from metasp.cli import main
from metasp.errors import UserError
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run
from tests.helpers import assert_same_run, finish

SPEC = RunSpec(
    method="metasp",
    epochs=1,
    limit_per_class=4,
    classes_per_task=(4, 3, 3),  # influence is measured from the second task on
    memory=12,
    batch_size=6,
    label_noise=0.1,
    trusted=1,
    width=4,
    threads=1,
)
SEED = int(os.environ.get("METASP_FUZZ_SEED", "1"))
CASES = int(os.environ.get("METASP_FUZZ_CASES", "1000"))
HARMS = ("flip", "cut", "remove", "swap")


def stopped(spec: RunSpec, folder: Path) -> Path:
    """A run that was left in its third task, with a checkpoint after every step and events beyond
    the newest one, as a kill leaves it."""
    experiment = prepare(spec, folder, checkpoint_seconds=0.0)
    experiment.stop = lambda: experiment.trainer.position.task == 2
    with pytest.raises(Interrupted):
        finish(experiment)
    with open(experiment.directory.path / "events.jsonl", "a") as log:
        log.write('{"event": "Noted", "task": 2, "text": "after the checkpoint"}\n{"eve')
    return experiment.directory.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run undisturbed, the same run killed, and another one killed."""
    folder = tmp_path_factory.mktemp("fuzz")
    whole = finish(prepare(SPEC, folder / "whole"))
    return whole, stopped(SPEC, folder / "stopped"), stopped(SPEC.with_(seed=7), folder / "other")


def files_of(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())


def harm(run: Path, other: Path, random_: random.Random) -> str:
    """Damage one file of a run. Returns how, and which."""
    name = random_.choice(files_of(run))
    how, content = random_.choice(HARMS), bytearray((run / name).read_bytes())
    if how == "flip" and content:
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)
        (run / name).write_bytes(content)
    elif how == "cut" and content:
        (run / name).write_bytes(content[: random_.randrange(len(content))])
    elif how == "swap":
        alike = (name.parent, name.suffix)
        theirs = [path for path in files_of(other) if (path.parent, path.suffix) == alike]
        shutil.copy(other / random_.choice(theirs or files_of(other)), run / name)
    else:
        (run / name).unlink()
    return f"{how} {name}"


def attempt(question) -> tuple[object, str]:
    """An answer, or the one sentence that stands for it."""
    try:
        return question(), ""
    except UserError as error:
        (sentence,) = str(error).splitlines()
        return None, sentence


def command(*arguments: object) -> str:
    """What the command line prints; raises the sentence with which it exits by code 2."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*map(str, arguments)])
        except SystemExit as stop:
            if stop.code == 2:
                raise UserError(" ".join(err.getvalue().split())) from None
    return out.getvalue()


def resume(run: Path) -> RunDir:
    stored = open_run(run)
    return finish(prepare(stored.spec(), run.parent, stored=stored))


def check_case(runs, folder: Path, seed: int) -> str:
    """Damage a killed run, read it and resume it. Returns what came of it."""
    whole, template, other = runs
    run = folder / template.name
    memory = command("memory", "list", template, "--json")
    shutil.copytree(template, run)
    what = f"seed {seed}: {harm(run, other, random.Random(seed))}"
    try:
        listed, sentence = attempt(partial(command, "memory", "list", run, "--json"))
        assert sentence or listed.replace(str(run), str(template)) == memory
        report, sentence = attempt(partial(command, "report", run, "--format", "json"))
        assert report is None
        assert "unfinished" in sentence or str(run) in sentence
        ended, sentence = attempt(partial(resume, run))
        if sentence:
            assert str(run) in sentence
            return "said"
        assert_same_run(ended, whole)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    return "same"


def check_cases(runs, folder: Path, seeds: range) -> set[str]:
    came = set()
    for seed in seeds:
        came.add(check_case(runs, folder / str(seed), seed))
        shutil.rmtree(folder / str(seed))
    return came


def test_a_damaged_run_resumes_to_the_same_bits_or_says_what_is_damaged(runs, tmp_path):
    assert check_cases(runs, tmp_path, range(1000 * SEED, 1000 * SEED + 20)) == {"same", "said"}


@pytest.mark.slow
def test_many_damaged_runs(runs, tmp_path):
    check_cases(runs, tmp_path, range(100_000 * SEED, 100_000 * SEED + CASES))


def read_all(path: Path) -> dict[str, tuple[object, str]]:
    """All that can be read of a run, or the sentences that stand for it."""
    questions = ("spec", "result", "events", "influence", "memory_tables", "scores", "memory",
                 "noise", "trusted", "forgotten")  # fmt: skip

    def ask(name: str) -> str:
        answer = getattr(open_run(path), name)()
        return repr(sorted(answer.items()) if isinstance(answer, dict) else answer)

    return {name: attempt(partial(ask, name)) for name in questions}


@pytest.mark.parametrize("finished", [True, False])
def test_whoever_reads_a_damaged_run_gets_what_was_stored_or_is_told(runs, tmp_path, finished):
    template = runs[0].path if finished else runs[1]
    right, sentences = read_all(template), 0
    for number in range(100):
        run = tmp_path / str(number) / template.name
        shutil.copytree(template, run)
        what = harm(run, runs[2], random.Random(1000 * SEED + number))
        again = what == "remove result.json"  # an unfinished run, which resuming finishes
        tail = what.endswith("events.jsonl") and not finished  # what came after the checkpoint
        for question, (answer, sentence) in read_all(run).items():
            sentences += bool(sentence)
            if not sentence and not again and not tail:
                assert answer == right[question][0], f"{number}: {what}: {question}"
    assert sentences > 30


def test_one_digit_of_a_killed_run_is_noticed_wherever_it_is(runs, tmp_path):
    """An accuracy in the log, and a byte of each table; what the run was given is written again."""
    whole, template, _ = runs
    names = [name for name in files_of(template) if name.suffix in (".jsonl", ".parquet")]
    assert len(names) == 8
    for number, name in enumerate(names):
        run = tmp_path / str(number) / template.name
        shutil.copytree(template, run)
        content = bytearray((run / name).read_bytes())
        content[content.index(b'"class_il": [0.') + 15 if name.suffix == ".jsonl" else 20] ^= 1
        (run / name).write_bytes(content)
        if name.name in ("noise.parquet", "trusted.parquet"):
            assert_same_run(resume(run), whole)
        else:
            with pytest.raises(UserError, match=f"{name.name} is damaged"):
                resume(run)
