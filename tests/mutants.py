"""Put small faults into the code, one at a time, and see whether a test notices.

mutmut makes the faults (one of its operators at one place), learns which tests reach each function
and runs them in forks; this draws a seeded sample and says what survived. A fault is judged by the
quick tests that reach its function: those of its own room first, the shortest first, for so many
seconds. What no test can notice stands in equivalent_mutants.toml, with the reason.

Usage: make mutants [SEED=1] [SIZE=200], or python tests/mutants.py --help"""

import argparse
import os
import random
import shutil
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from math import ceil
from pathlib import Path

from mutmut.__main__ import (
    CatchOutput,
    collect_or_load_stats,
    collect_source_file_mutation_data,
    create_mutants,
)
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths
from mutmut.utils.format_utils import mangled_name_from_mutant_name
from mutmut.workers.isolation import get_mutant_runner

ROOT = Path(__file__).parent.parent
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
# Imported once for all forks. What is to be mutated is not: some of it runs when it is imported.
PRELOADED = (
    "hypothesis", "pyarrow.compute", "pyarrow.parquet", "pytest", "rich.console",
    "safetensors.numpy", "scipy.stats", "sklearn.cluster", "sklearn.datasets", "torch._dynamo",
)  # fmt: skip
NOTICED = ("killed", "timeout", "segfault", "suspicious")
# Seconds of the clock until a mutant counts as hanging: ample, as a busy machine must not pass for
# a fault that was noticed. (mutmut waits for half of the processor time that it is told.)
HANGS, TIMES = 60, 8


def generate(workers: int) -> dict[str, Path]:
    """All mutants by name, with the file that each is in; `mutants/` holds the mutated tree."""
    set_mutant_under_test("mutant_generation")
    (ROOT / "mutants").mkdir(exist_ok=True)
    with CatchOutput():
        copy_src_dir()
        copy_also_copy_files()
        setup_source_paths()
        create_mutants(workers)
    found, _ = collect_source_file_mutation_data(mutant_names=())
    return {name: data.path for data, name, _ in found}


def room_of(name: str) -> str:
    """The part of the package that a mutant is in."""
    parts = name.split(".")
    return parts[1] if parts[1] != "reports" else parts[2]


def judges(name: str, seconds: float) -> list[str]:
    """The tests that reach the mutated function, in the order in which they are asked; all of its
    room where that is not known, as of a function that is called when its module is imported."""
    took, room = state().duration_by_test, room_of(name)
    reaching = state().tests_by_mangled_function_name.get(mangled_name_from_mutant_name(name), ())
    if len(reaching) < 2:
        reaching = {*reaching, *(test for test in took if room in test)}
    ordered = sorted(reaching, key=lambda test: (room not in test, took[test], test))
    chosen, spent = list[str](), 0.0
    for test in ordered:
        spent += took[test]
        if chosen and spent > seconds:
            break
        chosen.append(test)
    return chosen


def judged(names: list[str], workers: int, seconds: float) -> Iterator[tuple[str, str]]:
    """What becomes of each mutant: killed, survived, timeout, no tests …"""
    took = state().duration_by_test
    runner = get_mutant_runner(workers)
    runner.startup()

    def next_verdict() -> tuple[str, str]:
        result = runner.wait_for_result()
        return result.mutant_name, status_by_exit_code[result.exit_code]

    try:
        for name in names:
            tests = judges(name, seconds)
            if not tests:
                yield name, "no tests"
                continue
            while not runner.has_capacity():
                yield next_verdict()
            expected = sum(took[test] for test in tests)
            runner.submit(name, tests, ceil(2 * (HANGS + TIMES * expected)), expected)
        runner.signal_work_complete()
        while runner.pending_count():
            yield next_verdict()
    finally:
        runner.shutdown()


def changed_lines(diff: str) -> tuple[str, str]:
    """What a diff takes away and what it puts in its place, in one line each."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    old, new = ([line[1:].strip() for line in lines if line[:1] == sign] for sign in "-+")
    return " ".join(old), " ".join(new)


def reason_of(name: str, diff: str, known: list[dict[str, str]]) -> str | None:
    """Why no test can notice this mutant, where that is known."""
    old, new = changed_lines(diff)
    for entry in known:
        if name.startswith(entry["module"] + ".") and (entry["old"], entry["new"]) == (old, new):
            return entry["reason"]
    return None


def report(verdicts: Iterable[tuple[str, str]], files: dict[str, Path]) -> None:
    """Each survivor as a diff when it is known, and at the end how many were noticed by room."""
    known = tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])
    counts = defaultdict[str, Counter[str]](Counter)
    for name, verdict in verdicts:
        fate = "killed" if verdict in NOTICED else "survived"
        if fate == "survived":
            diff = get_diff_for_mutant(name, path=files[name])
            if reason_of(name, diff, known) is not None:
                fate = "equivalent"
            else:
                print(f"\n{name}: {verdict}\n{diff}", flush=True)
        elif verdict != "killed":
            print(f"\n{name}: {verdict}", flush=True)
        counts[room_of(name)][fate] += 1
        done = sum(sum(fates.values()) for fates in counts.values())
        print(f"\r{done} judged ", end="", file=sys.stderr, flush=True)
    total = {**dict(sorted(counts.items())), "all": sum(counts.values(), Counter[str]())}
    print(f"\n{'room':12}{'killed':>8}{'survived':>10}{'equivalent':>12}{'killed, %':>11}")
    for room, fates in total.items():
        killed, survived = fates["killed"], fates["survived"]
        share = 100 * killed / max(1, killed + survived)
        print(f"{room:12}{killed:8}{survived:10}{fates['equivalent']:12}{share:11.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rooms", default="", help="only of these, such as influence,store")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=20.0, help="tests of one mutant at most")
    parser.add_argument("--names", nargs="*", help="these mutants instead of a sample")
    parser.add_argument(
        "--keep", action="store_true", help="believe the last run which tests reach a function"
    )
    given = parser.parse_args()
    os.chdir(ROOT)  # where mutmut finds its settings, in pyproject.toml
    if not given.keep:
        shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    files = generate(given.workers)
    rooms = given.rooms.split(",") if given.rooms else {room_of(name) for name in files}
    among = sorted(name for name in files if room_of(name) in rooms)
    size = min(given.size, len(among))
    chosen = given.names or random.Random(given.seed).sample(among, size)
    print(f"seed {given.seed}: {len(chosen)} of {len(among)} mutants", flush=True)
    collect_or_load_stats(get_mutant_runner(given.workers))
    set_mutant_under_test("")
    for module in PRELOADED:
        import_module(module)
    report(judged(chosen, given.workers, given.seconds), files)


if __name__ == "__main__":
    main()
