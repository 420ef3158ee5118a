"""Files of a run that are flipped, cut short, removed or swapped: whoever reads gets what the run
stored, or one sentence that says what is damaged. METASP_FUZZ_SEED=N draws other cases."""

import os
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from metasp.errors import UserError
from metasp.experiment import Interrupted, prepare
from metasp.spec import RunSpec
from metasp.store import RunDir, open_run
from tests.helpers import assert_same_run, finish

SPEC = RunSpec(
    method="metasp",
    epochs=1,
    limit_per_class=6,
    memory=20,
    batch_size=6,
    label_noise=0.1,
    trusted=1,
    width=4,
    threads=1,
)
SEED = int(os.environ.get("METASP_FUZZ_SEED", "1"))
HARMS = ("flip", "cut", "remove", "swap")


def stopped(spec: RunSpec, folder: Path, steps: int) -> Path:
    """A run that was left in the midst of its third task, with a checkpoint after every step."""
    taken = iter(range(10**6))
    experiment = prepare(spec, folder, checkpoint_seconds=0.0, stop=lambda: next(taken) >= steps)
    with pytest.raises(Interrupted):
        finish(experiment)
    return experiment.directory.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run undisturbed, the same run stopped, and another one stopped a little later."""
    folder = tmp_path_factory.mktemp("fuzz")
    whole = finish(prepare(SPEC, folder / "whole"))
    steps = sum(event["event"] == "StepTaken" for event in whole.events()) // 2
    other = stopped(SPEC.with_(seed=7), folder / "other", steps + 1)
    return whole, stopped(SPEC, folder / "stopped", steps), other


def files_of(run: Path) -> list[Path]:
    there = (path.relative_to(run) for path in run.rglob("*") if path.is_file())
    return sorted(path for path in there if path.name != "lock")


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
        return None, str(error)


def resumes_or_says(runs, folder: Path, seed: int) -> str:
    """Damage a stopped run and resume it as `metasp resume` does. Returns what came of it."""
    whole, template, other = runs
    run = folder / template.name
    shutil.copytree(template, run)
    what = f"seed {seed}: {harm(run, other, random.Random(seed))}"

    def resume() -> RunDir:
        stored = open_run(run)
        return finish(prepare(stored.spec(), run.parent, stored=stored))

    ended, sentence = attempt(resume)
    if sentence:
        assert str(run) in sentence, f"{what}: {sentence}"
        assert len(sentence.splitlines()) == 1, f"{what}: {sentence}"
        return "said"
    try:
        assert_same_run(ended, whole)
    except AssertionError as error:
        raise AssertionError(what) from error
    return "same"


def test_a_damaged_run_resumes_to_the_same_bits_or_says_what_is_damaged(runs, tmp_path):
    came = [resumes_or_says(runs, tmp_path / str(n), 1000 * SEED + n) for n in range(50)]
    assert {*came} == {"same", "said"}


@pytest.mark.slow
def test_a_thousand_damaged_runs(runs, tmp_path):
    for number in range(1000):
        folder = tmp_path / str(number)
        resumes_or_says(runs, folder, 100_000 * SEED + number)
        shutil.rmtree(folder)


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
    for number in range(150):
        run = tmp_path / str(number) / template.name
        shutil.copytree(template, run)
        what = harm(run, runs[2], random.Random(1000 * SEED + number))
        again = what == "remove result.json"  # an unfinished run, which resuming finishes
        tail = what.endswith("events.jsonl") and not finished  # what came after the checkpoint
        for question, (answer, sentence) in read_all(run).items():
            sentences += bool(sentence)
            assert len(sentence.splitlines()) <= 1
            if not sentence and not again and not tail:
                assert answer == right[question][0], f"{number}: {what}: {question}"
    assert sentences > 50
