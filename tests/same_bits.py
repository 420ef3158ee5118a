"""Compare what two commits store, bit by bit: python tests/same_bits.py OLD [NEW] [--data DIR]

Every method and selection runs on the embedded digits, and three methods on a slice of CIFAR-10
where its data is at hand. Scores, weights, memory and influences are digested column by column;
columns and methods that only the new commit has do not count. NEW is by default the working
tree."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL = {"epochs": 2, "limit_per_class": 24, "memory": 40, "threads": 1, "tasks": 5}
SHORT = {"gdumb": {"memory_epochs": 4}, "hal": {"anchor_steps": 5}, "verified-only": {"trusted": 2}}
PICTURES = {
    "benchmark": "split-cifar10",
    "limit_per_class": 24,
    "epochs": 2,
    "backbone": "resnet18",
    "width": 8,
    "memory": 40,
    "threads": 1,
}
METHODS = (
    "finetune", "joint", "er", "gdumb", "gem", "agem", "hal", "mir", "gss", "gmed", "metasp",
    "metasp-rehsel", "metasp-only-s", "metasp-only-p", "er-ace", "der", "derpp", "icarl",
    "cls-er", "loss-filter", "verified-only", "glc", "metasp-robust",
)  # fmt: skip
SELECTIONS = (
    "ring", "greedy", "class-balanced", "low-loss", "task-balanced", "rehsel-features",
    "rehsel-without-cluster", "rehsel-without-influence", "rehsel-filter",
    "rehsel-filter-by-loss",
)  # fmt: skip


def requests(pictures: bool) -> dict[str, dict[str, object]]:
    """The runs to compare, by name."""
    wanted = {name: {**SMALL, "method": name, **SHORT.get(name, {})} for name in METHODS}
    for name in SELECTIONS:
        wanted[f"er {name}"] = {**SMALL, "method": "er", "selection": name, "observe": 1}
    wanted["er scheduled"] = {**SMALL, "method": "er", "epochs": 3, "rehearse_last": 1}
    wanted["er noisy"] = {**SMALL, "method": "er", "label_noise": 0.3, "selection": "low-loss"}
    wanted["gmed decaying"] = {**SMALL, "method": "gmed", "edit_decay": 0.5}
    wanted["metasp running"] = {
        **SMALL, "method": "metasp", "running": True, "every": 2, "pseudo_steps": 2,
    }  # fmt: skip
    if pictures:
        for name in ("er", "metasp-rehsel", "gmed"):
            wanted[f"cifar10 {name}"] = {**PICTURES, "method": name}
    return wanted


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def stored_in(run: Path) -> dict[str, str]:
    """What a finished run holds, as digests by name."""
    import pyarrow.parquet as pq
    from safetensors.numpy import load

    result = json.loads((run / "result.json").read_text())
    found = {}
    for scenario in ("class_il", "task_il"):
        for part in ("matrix", "before"):
            found[f"{scenario} {part}"] = digest(json.dumps(result[scenario][part]).encode())
    for path in [*run.glob("*.parquet"), *sorted((run / "memory").glob("*.parquet"))]:
        table = pq.read_table(path)
        for name in table.column_names:
            found[f"{path.name} {name}"] = digest(repr(table[name].to_pylist()).encode())
    newest = max((run / "checkpoint").glob("*.safetensors"))
    for name, value in load(newest.read_bytes()).items():
        if name.split("/")[0] in ("model", "streams"):
            found[name] = digest(value.tobytes())
    return found


def record(data: str | None) -> dict[str, dict[str, str]]:
    """The digests of all runs, made by the metasp that can be imported here; of a method that it
    does not have yet there is none."""
    import metasp
    from metasp.methods import METHODS as known

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, request in requests(data is not None).items():
            if request["method"] not in known:
                continue
            result = metasp.run(runs=folder, data=data, **request)
            found[name] = stored_in(Path(result["run"]))
            print(name, file=sys.stderr, flush=True)
    return found


def recorded_at(tree: Path, data: str | None) -> dict[str, dict[str, str]]:
    """The same by the code of another tree, in a process of its own."""
    command = [sys.executable, __file__, "--record", *(["--data", data] if data else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=tree)
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def recorded(commit: str | None, data: str | None) -> dict[str, dict[str, str]]:
    """The digests of a commit, or of the working tree."""
    if commit is None:
        return recorded_at(ROOT, data)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            return recorded_at(tree, data)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def differences(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    """What the old commit stores and the new one does not store alike."""
    return [
        f"{run}: {part}"
        for run, parts in old.items()
        for part, value in parts.items()
        if new.get(run, {}).get(part) != value
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--data", help="folder of data sets, for the slice of CIFAR-10")
    parser.add_argument("--record", action="store_true", help="print the digests as JSON")
    parser.add_argument("--against", help="JSON that --record printed, instead of OLD")
    given = parser.parse_args()
    data = str(Path(given.data).resolve()) if given.data else None
    if given.record:
        print(json.dumps(record(data)))
        return 0
    old = (
        json.loads(Path(given.against).read_text()) if given.against else recorded(given.old, data)
    )
    wrong = differences(old, recorded(given.new, data))
    print("\n".join(wrong) or f"the same bits in {len(old)} runs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
