"""Count the calls from the command line to the training loop, and those of one influence step.

    python -m benchmarks.walk

`metasp run --method metasp` runs on the digits with the default network under `sys.setprofile`.
Only functions of the package count; comprehensions, generator expressions, lambdas and
the bodies of classes do not."""

import contextlib
import inspect
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import metasp

ROOT = str(Path(metasp.__file__).parent)
ARGUMENTS = ("run", "--method", "metasp", "--epochs", "1", "--json")
LOOP = "Trainer.run"
STEP = "MetaSP.step"


class Walk:
    """Counts calls of the package until the loop begins, and within the last influence step."""

    def __init__(self) -> None:
        self.before: Counter[CodeType] = Counter()
        self.step: Counter[CodeType] = Counter()
        self.looping = False
        self.frame: FrameType | None = None  # of the step under way

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "return" and frame is self.frame:
            self.frame = None
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name[0] == "<":
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
            return
        if code.co_qualname == LOOP:
            self.looping = True
        if code.co_qualname == STEP:
            self.step, self.frame = Counter(), frame
        if not self.looping:
            self.before[code] += 1
        elif self.frame is not None:
            self.step[code] += 1


def walk() -> Walk:
    """Run the command once under the profiler. Returns the counts."""
    from metasp.cli import main

    counts = Walk()
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["metasp", *ARGUMENTS, "--runs", folder]
        sys.setprofile(counts)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
        sys.setprofile(None)
    return counts


def report() -> str:
    counts = walk()
    modules = {code.co_filename for code in counts.before}
    rows = [
        f"calls before the loop: {counts.before.total()} in {len(modules)} modules",
        f"calls of one influence step: {counts.step.total()}",
        "the most frequent of each:",
    ]
    for counter in (counts.before, counts.step):
        rows += [
            f"  {number:5d} {Path(code.co_filename).relative_to(ROOT)} {code.co_qualname}"
            for code, number in counter.most_common(12)
        ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(report())
