"""How many labels are said to be wrong, and whether the truth lies in the interval; and which are
found, beside cleanlab on the same outputs.

Forty streams of pictures, texts and tables: eight data sets of two to 150 classes and 142 to 3,000
examples, each clean and with symmetric, paired and one-sided noise of up to half of the labels. A
run of `er` and five networks that did not train on the examples they judge, as `metasp suspects
--folds 5` makes them. `known` is whether the count is given as a number (else only the interval
is). cleanlab has the best of its four rankings in each column by itself; cleanlab's count is its
`num_label_issues`."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.metrics import roc_auc_score

from benchmarks.timing import Told, machine, silent
from metasp.data import load_benchmark
from metasp.events import TaskFinished
from metasp.label_scores import score_examples
from metasp.methods.odds import judge_labels
from metasp.noise_rate import judge_out_of_sample
from metasp.spec import RunSpec
from metasp.train import build_trainer
from metasp.train.cross_fit import out_of_sample
from metasp.train.from_spec import complete

Array = np.ndarray[Any, Any]

FOLDS = 5
SEED = 401
SOURCES: Mapping[str, Mapping[str, object]] = {
    "digits": {"benchmark": "split-digits", "epochs": 6},
    "fashion": {"benchmark": "split-fashion-mnist", "limit_per_class": 120, "image_size": 14},
    "cifar10": {"benchmark": "split-cifar10", "limit_per_class": 120, "image_size": 16},
    "intents of 15": {"text_column": "text"},
    "intents of 150": {"text_column": "text"},
    "cancer": {},
    "wine": {},
    "gaussians": {},
}
NOISE: Mapping[str, Mapping[str, object]] = {
    "clean": {},
    "symmetric .2": {"label_noise": 0.2},
    "symmetric .45": {"label_noise": 0.45},
    "pairs .3": {"label_noise": 0.3, "label_noise_kind": "pairs"},
    "one-sided .5": {"label_noise": 0.5, "label_noise_kind": "one-sided"},
}
TRAINING = {"method": "er", "tasks": 1, "epochs": 8, "width": 16, "threads": 1, "device": "cpu"}


@dataclass(frozen=True)
class Counted:
    """What is said of one stream, as fractions."""

    source: str
    noise: str
    examples: int
    wrong: float
    share: float
    low: float
    high: float
    known: bool
    cleanlab: float
    area: tuple[float, float] | None  # ours and cleanlab's; None: clean
    precision: tuple[float, float] | None

    @property
    def covered(self) -> bool:
        return self.low <= self.wrong <= self.high


def measure(data: Path | None = None, told: Told = silent, seed: int = SEED) -> list[Counted]:
    """Count the wrong labels of all streams."""
    torch.set_num_threads(1)
    folder = Path("build/counts")
    write_tables(folder, data or Path())
    counted = []
    for noise, changes in NOISE.items():
        for source in SOURCES:
            spec = spec_of(source, seed, changes, folder)
            counted.append(counted_in(spec, data, source, noise))
            told(len(counted) / (len(NOISE) * len(SOURCES)))
    return counted


def spec_of(source: str, seed: int, changes: Mapping[str, object], folder: Path) -> RunSpec:
    table = {"benchmark": f"csv:{folder}/{source.replace(' ', '-')}.csv"}
    return RunSpec.from_dict({**table, **TRAINING, **SOURCES[source], "seed": seed, **changes})


def write_tables(folder: Path, data: Path) -> None:
    """Write the sets of sentences and numbers as CSV files."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    rows = pd.read_parquet(data / "clinc150" / "data", columns=["text", "intent"])
    rows = rows.rename(columns={"intent": "label"}).groupby("label")
    names = sorted(rows.groups)[:15]
    few = rows.head(25)
    many = rows.head(100)
    few.to_csv(folder / "intents-of-150.csv", index=False)
    many[many["label"].isin(names)].to_csv(folder / "intents-of-15.csv", index=False)
    for name, load in (("cancer", datasets.load_breast_cancer), ("wine", datasets.load_wine)):
        inputs, labels = load(return_X_y=True)
        write_numbers(folder / f"{name}.csv", (inputs - inputs.mean(0)) / inputs.std(0), labels)
    drawn = datasets.make_classification(
        1500, 20, n_informative=12, n_classes=6, class_sep=1.5, flip_y=0, random_state=0
    )
    write_numbers(folder / "gaussians.csv", *drawn)


def write_numbers(path: Path, inputs: Array, labels: Array) -> None:
    import pandas as pd

    columns = {f"x{number}": column for number, column in enumerate(inputs.T)}
    names = [f"class {label}" for label in labels]
    pd.DataFrame({**columns, "label": names}).to_csv(path, index=False)


def counted_in(spec: RunSpec, data: Path | None, source: str, noise: str) -> Counted:
    stream = load_benchmark(spec, data)
    trainer = build_trainer(complete(spec, stream), stream)
    scores = next(event for event in trainer.run() if isinstance(event, TaskFinished)).scores
    made = out_of_sample(spec, stream, FOLDS, lambda fold: None)
    inside = made.folds >= 0
    ids, outputs, labels = made.ids[inside], made.outputs[inside], made.labels[inside]
    nobody = torch.zeros(0, outputs.shape[1]), torch.zeros(0, dtype=torch.long)
    columns = {
        "id": ids.tolist(),
        "odds": judge_labels(outputs, labels, *nobody).odds.tolist(),
        **judge_out_of_sample(outputs.numpy(), labels.numpy())._asdict(),
    }
    ours = score_examples({0: scores}, None, columns)
    total = ours.total("odds")
    assert total.interval is not None
    wrong = np.isin(ids.numpy(), stream.flipped.get("id", []))
    chances = outputs.double().softmax(1).numpy()
    theirs = cleanlab_rankings(chances, labels.numpy())
    both = None
    if wrong.any():
        mine = ours.ranking("odds")[np.searchsorted(ours.ids, ids.numpy())]
        both = [
            (measure_of(wrong, mine), max(measure_of(wrong, values) for values in theirs))
            for measure_of in (area, precision)
        ]
    from cleanlab.count import num_label_issues

    issues = float(num_label_issues(labels.numpy(), chances)) / len(ids)
    found = (len(ids), float(wrong.mean()), total.part, *total.interval, total.known, issues)
    return Counted(source, noise, *found, *(both or (None, None)))


def cleanlab_rankings(chances: Array, labels: Array) -> list[Array]:
    from cleanlab.rank import get_label_quality_scores

    return [
        np.asarray(get_label_quality_scores(labels, chances, method=method, adjust_pred_probs=way))
        for method in ("self_confidence", "normalized_margin")
        for way in (False, True)
    ]


def area(wrong: Array, values: Array) -> float:
    return float(roc_auc_score(wrong, -values))


def precision(wrong: Array, values: Array) -> float:
    return float(wrong[np.argsort(values, kind="stable")[: wrong.sum()]].mean())


def render(rows: Sequence[Counted]) -> list[str]:
    lines = [
        f"{'stream':<31}{'n':>6}{'wrong':>7}{'said':>7}  {'between':<16}"
        f"{'cleanlab':>9}{'area':>8}{'cleanlab':>9}{'precision':>10}{'cleanlab':>9}"
    ]
    for row in rows:
        between = f"{row.low:4.0%} and {row.high:4.0%}" + ("" if row.known else " *")
        pairs = "".join(
            "" if pair is None else f"{pair[0]:>9.3f}{pair[1]:>9.3f}"
            for pair in (row.area, row.precision)
        )
        name = f"{row.source}, {row.noise}"
        lines.append(
            f"{name:<31}{row.examples:>6}{row.wrong:>7.1%}{row.share:>7.1%}  {between:<16}"
            f"{row.cleanlab:>9.1%}{pairs}{'' if row.covered else '  missed'}"
        )
    numbers = [abs(row.share - row.wrong) for row in rows if row.known]
    theirs = statistics.median(abs(row.cleanlab - row.wrong) for row in rows)
    ahead = {}
    for name in ("area", "precision"):
        pairs_of = [pair for row in rows if (pair := getattr(row, name)) is not None]
        ahead[name] = f"{sum(ours >= best for ours, best in pairs_of)} of {len(pairs_of)}"
    lines += [
        f"the truth lies in {sum(row.covered for row in rows)} of {len(rows)} intervals; a number",
        f"is given for {len(numbers)} (* none), off by {statistics.median(numbers):.1%} in the "
        f"median (cleanlab, over all: {theirs:.1%}).",
        f"at least level with cleanlab: area in {ahead['area']}, precision in "
        f"{ahead['precision']}; {machine()}.",
    ]
    return lines


def as_json(rows: Sequence[Counted]) -> dict[str, Any]:
    return {"counts": [asdict(row) for row in rows], "machine": machine()}
