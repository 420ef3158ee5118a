"""Compare what two commits store, bit by bit: python tests/same_bits.py OLD [NEW] [--data DIR]

Every method and selection runs on the embedded digits, three methods on a slice of CIFAR-10 and one
on CLINC150 features (`--clinc FILE` of sweeps/make_clinc.py) where the data is at hand, and four
learners are saved and loaded. Scores, weights, memory and influences are digested column by column;
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
    "cls-er", "loss-filter", "prototype-filter", "knn-filter", "verified-only",
    "glc", "metasp-robust", "slda", "ridge", "aer-abs",
)  # fmt: skip
SELECTIONS = (
    "ring", "greedy", "class-balanced", "low-loss", "task-balanced", "rehsel-features",
    "rehsel-without-cluster", "rehsel-without-influence", "rehsel-filter",
    "rehsel-filter-by-loss",
)  # fmt: skip
LEARNERS = ("er", "derpp", "metasp-rehsel", "metasp-robust")


def requests(pictures: bool, clinc: str | None) -> dict[str, dict[str, object]]:
    """Return the arguments of the runs to compare, by name."""
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
    if clinc:
        wanted["clinc metasp-robust"] = {
            "benchmark": f"arrays:{clinc}", "tasks": 15, "backbone": "mlp", "width": 64, "lr": 0.1,
            "limit_per_class": 20, "epochs": 3, "memory": 300, "threads": 1, "trusted": 2,
            "label_noise": 0.3, "method": "metasp-robust",
        }  # fmt: skip
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


def learned_by(method: str, folder: Path) -> dict[str, str]:
    """Digest a learner that was saved and loaded between two tasks of the digits."""
    import torch
    from sklearn.datasets import load_digits

    import metasp

    torch.set_num_threads(1)
    pictures, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    pictures, labels = pictures.float() / 16, labels.long()

    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, 4),
        )

    learner = metasp.ContinualLearner(network(), method, memory=40, epochs=3, lr=0.1, seed=7)
    for task in range(2):
        rows = (labels // 2 == task).nonzero().flatten()[:120]
        learner.learn((pictures[rows], labels[rows]), progress=False)
        learner.save(folder / method)
        learner = metasp.ContinualLearner.load(folder / method, network())
    digests = {
        f"model {name}": digest(value.numpy().tobytes())
        for name, value in learner.model.state_dict().items()
    }
    digests["predictions"] = digest(learner.predict(pictures).numpy().tobytes())
    for row in learner.influence().to_pylist():
        digests[f"influence {row['id']} {row['task']}"] = digest(
            repr([row[key] for key in ("label", "stability", "plasticity", "fused")]).encode()
        )
    return digests


def record(data: str | None, clinc: str | None, only: set[str]) -> dict[str, dict[str, str]]:
    """Digest all runs, made by the metasp that can be imported here; of a method that it does not
    have yet there is none."""
    import metasp
    from metasp.methods import METHODS as known

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, request in requests(data is not None, clinc).items():
            if request["method"] not in known or (only and name not in only):
                continue
            result = metasp.run(runs=folder, data=data, **request)
            found[name] = stored_in(Path(result["run"]))
            print(name, file=sys.stderr, flush=True)
        for method in LEARNERS:
            if not only or f"learner {method}" in only:
                found[f"learner {method}"] = learned_by(method, Path(folder))
    return found


def recorded_at(tree: Path, options: list[str]) -> dict[str, dict[str, str]]:
    """Record with the code of another tree, in a process of its own."""
    command = [sys.executable, __file__, "--record", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=tree)
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def recorded(commit: str | None, options: list[str]) -> dict[str, dict[str, str]]:
    """Return the digests of a commit, or of the working tree."""
    if commit is None:
        return recorded_at(ROOT, options)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            return recorded_at(tree, options)
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
    parser.add_argument("--clinc", help="features of CLINC150 in an .npz file")
    parser.add_argument("--only", help="names of runs, with commas between them")
    parser.add_argument("--record", action="store_true", help="print the digests as JSON")
    parser.add_argument("--against", help="JSON that --record printed, instead of OLD")
    asked = parser.parse_args()
    data = str(Path(asked.data).resolve()) if asked.data else None
    clinc = str(Path(asked.clinc).resolve()) if asked.clinc else None
    only = set(asked.only.split(",")) if asked.only else set()
    if asked.record:
        print(json.dumps(record(data, clinc, only)))
        return 0
    options = [*(["--data", data] if data else []), *(["--clinc", clinc] if clinc else [])]
    options += ["--only", asked.only] if asked.only else []
    if asked.against:
        old = json.loads(Path(asked.against).read_text())
        old = {name: parts for name, parts in old.items() if not only or name in only}
    else:
        old = recorded(asked.old, options)
    wrong = differences(old, recorded(asked.new, options))
    print("\n".join(wrong) or f"the same bits in {len(old)} runs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
