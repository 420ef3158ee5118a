"""What the pages of results call the rows of the sweeps, and how a row is found by its name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metasp.reports.groups import Configuration, Group, group
from metasp.reports.runs import Record, gather

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

# What the discussion calls the configurations: what must hold of a spec, most special first.
SCHEDULED_NAME, OWN = "ER + schedule", ", own rate"  # where it is also run at MetaSP's rate
WEAK, STRONG = {"method.strength": 1.0}, {"method.strength": 10.0}
METASP = {"method": "metasp", "method.shuffle_influence": False, "selection": "task-balanced"}
SHUFFLED = METASP | {"method.shuffle_influence": True}
NAMES: dict[str, dict[str, Any]] = {
    "ER": {"method": "er", "selection": "reservoir"},
    SCHEDULED_NAME: {"method": "er", "selection": "task-balanced"},
    "balanced": {"method": "er", "selection": "class-balanced"},
    "low loss": {"method": "er", "selection": "low-loss"},
    "MetaSP, low loss": {"method": "metasp", "selection": "low-loss"},
    "fine-tuning": {"method": "finetune"},
    "joint": {"method": "joint"},
    "GDumb": {"method": "gdumb"},
    "GEM": {"method": "gem"},
    "A-GEM": {"method": "agem"},
    "HAL": {"method": "hal"},
    "MIR": {"method": "mir"},
    "GSS": {"method": "gss"},
    "GMED": {"method": "gmed"},
    "MetaSP": METASP | WEAK,
    "shuffled": SHUFFLED | WEAK,
    "strong": METASP | STRONG,
    "strong shuffled": SHUFFLED | STRONG,
    "only S": {"method": "metasp-only-s"},
    "only P": {"method": "metasp-only-p"},
    "RehSel": {"method": "metasp-rehsel", "selection": "rehsel"},
    "clusters alone": {"selection": "rehsel-without-influence"},
    "influence alone": {"selection": "rehsel-without-cluster"},
    "filter": {"selection": "rehsel-filter"} | WEAK,
    "filter by loss": {"selection": "rehsel-filter-by-loss"},
    "strong filter": {"selection": "rehsel-filter"} | STRONG,
}

# What was tried for leads, in the order of the discussion, and the row that it is.
TRIED = {
    "MetaSP as published": "metasp (influence last 2)",
    "update rule: of the paper's text": "metasp (influence last 2, rule as-written)",
    "strength: 10 times": "metasp (influence last 2, strength 10.0)",
    "gamma: Stability alone, 10 times": "metasp (gamma 1.0, influence last 2, strength 10.0)",
    "— the same, shuffled": "metasp (gamma 1.0, influence last 2, shuffled, strength 10.0)",
    "— and validation: 60 + 60, not 20 + 20": "metasp (gamma 1.0, influence last 2, "
    "strength 10.0, validation new 60.0, validation old 60.0)",
    "— and schedule: last 5 epochs, not 2": "metasp (gamma 1.0, influence last 5, strength 10.0)",
    "— and scope: the head alone": "metasp (gamma 1.0, influence last 2, scope head, "
    "strength 10.0)",
    "— and running means": "metasp (gamma 1.0, influence last 2, running, strength 10.0)",
    "pseudo steps: 2": "metasp (influence last 2, pseudo steps 2)",
    "selection: influence as a filter": "metasp-rehsel (selection rehsel-filter)",
    "— and Stability alone, 10 times": "metasp-rehsel (gamma 1.0, selection rehsel-filter, "
    "strength 10.0)",
}

# What the summary shows: a question, the difference that answers it, and where it was measured.
STREAMS = {
    "fashion": "Fashion-MNIST, half size",
    "fashion-whole": "Fashion-MNIST",
    "cifar10": "CIFAR-10, small",
    "cifar10-whole": "CIFAR-10",
    "fashion-online": "Fashion-MNIST, half size, one epoch",
    "fashion-small-memory": "Fashion-MNIST, half size",
    "fashion-noise": "noisy Fashion-MNIST, half size",
    "fashion-noise-whole": "noisy Fashion-MNIST",
    "cifar10-noise": "noisy CIFAR-10, small",
    "cifar10-noise-whole": "noisy CIFAR-10",
}
QUESTIONS = {
    "Does MetaSP beat ER with its schedule?": "MetaSP/ER + schedule",
    "Does it beat its shuffled control?": "MetaSP/shuffled",
    "Does RehSel add anything?": "RehSel/MetaSP",
    "Influence as filter, over clusters alone": "filter/clusters alone",
    "Mean loss as the same filter": "filter by loss/clusters alone",
    "low-loss, over class-balanced": "low loss/balanced",
}


def fits(spec: Mapping[str, Any], must: Mapping[str, Any]) -> bool:
    """Whether a spec is what a name means."""
    return all(spec.get(key) == value for key, value in must.items())


def records_of(*names: str) -> list[Record]:
    """Read the runs of some sweeps."""
    return gather([RESULTS / f"{name}.parquet" for name in names]).records


def groups_of(name: str) -> list[Group]:
    """The runs of a sweep, or of several, as `one+other`."""
    return group(records_of(*name.split("+")))


def pick(rows: Sequence[Configuration], name: str) -> Configuration | None:
    """The row that a name of the discussion means."""
    own = name.endswith(OWN)
    must = NAMES[name.removesuffix(OWN)]
    found = [row for row in rows if fits(row.spec, must)]
    if name.startswith(SCHEDULED_NAME) and (own or len(found) > 1):
        rate = next(r.spec["lr"] for r in rows if r.method == "metasp")
        found = [row for row in found if (row.spec["lr"] != rate) == own]
    if len(found) > 1:
        raise SystemExit(f"{name} means several rows: {[row.label for row in found]}")
    return found[0] if found else None
