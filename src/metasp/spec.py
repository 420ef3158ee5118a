"""RunSpec: everything that changes a result, in one frozen value."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from metasp.corrections import Corrections
from metasp.errors import UserError, unknown
from metasp.field_checks import frozen, validate_field
from metasp.toml import as_toml, read_toml

OPTIMIZERS = ("sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad")
INFLUENCE = ("none", "metasp", "robust")


def setting(
    default: Any, help: str, *, role: str = "", owner: str = "", protocol: bool = False,
    min: float | None = None, max: float | None = None, choices: tuple[str, ...] = (),
    late: bool = False, words: str = "",
) -> Any:  # fmt: skip
    """A dataclass field that carries all that is to be known of it: its help, bounds and choices,
    and what it is for. Whoever needs a list of names asks `fields_with`.

    `role`: of a run "data", "labels", "method", "memory", "model", "training", "machine" or
    "seed"; of a method's settings "schedule" where it divides the epochs. `owner`: who gives the
    default where nobody is told one, "method" or "backbone". `protocol`: named below a table. A
    `late` one came when runs were stored already: at its default it is left out of the stored
    spec, so that they keep their names, and that default can never change. `words`: how reports
    name it, where its name will not do; `{}` stands for the value."""
    about = {"help": help, "role": role, "owner": owner, "protocol": protocol, "min": min,
             "max": max, "choices": choices, "late": late, "words": words}  # fmt: skip
    if callable(default):
        return field(default_factory=default, metadata=about)
    return field(default=default, metadata=about)


def fields_with(settings: Any, **facts: object) -> tuple[str, ...]:
    """The names of the fields of which all these facts are so, as they are declared."""
    return tuple(
        entry.name
        for entry in fields(settings)
        if all(entry.metadata.get(fact) == value for fact, value in facts.items())
    )


def like(owner: type, name: str, **changes: Any) -> Any:
    """A field as another settings dataclass has it: its help, bounds, choices and default, the
    last of which may be changed."""
    found = next(entry for entry in fields(owner) if entry.name == name)
    default = {"default": found.default}
    if found.default_factory is not MISSING:
        default = {"default_factory": found.default_factory}
    return field(**{**default, **changes}, metadata=found.metadata)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run. None means "the benchmark's, method's or backbone's own default"; a stored spec
    has none of those left, so a changed default can never change the meaning of an old file."""

    benchmark: str = setting("split-digits", "Where the stream of tasks comes from.", role="data")
    data_digest: str | None = setting(None, "Digest of the data.", role="data", owner="run")
    tasks: int | None = setting(
        None, "Number of tasks that the classes are divided into.", min=1, role="data"
    )
    classes_per_task: tuple[int, ...] = setting(
        tuple,
        "Classes of each task where they are not equal, such as 4,3,3.",
        role="data",
        protocol=True,
    )
    class_order: str = setting(
        "fixed",
        "Order in which classes appear: fixed, shuffled, or their numbers: 3,0,2,1.",
        role="data",
        protocol=True,
    )
    split_by: str | None = setting(
        None,
        "What makes a task: class; or, with the same classes in every task, order (of the "
        "rows) or column:NAME.",
        role="data",
    )
    limit_per_class: int | None = setting(
        None,
        "At most this many train examples per class of a task.",
        min=1,
        role="data",
        protocol=True,
    )
    image_size: int | None = setting(
        None, "Resize pictures to N×N pixels.", min=4, max=1024, role="data", protocol=True
    )
    colour: str | None = setting(
        None, "Make pictures grey or rgb.", choices=("grey", "rgb"), role="data"
    )
    label_column: str | None = setting(
        None, "Column of the table that holds the label.", role="data"
    )
    true_label_column: str | None = setting(
        None,
        "Column that holds the true label; used only for scoring and for test data.",
        role="data",
    )
    decode: str = setting(
        "auto",
        "Decode pictures all before training (eager) or as they are needed (lazy); auto: by their "
        "size, lazy above 2 GB.",
        choices=("auto", "eager", "lazy"),
        late=True,
        role="data",
    )
    skip_corrupt: bool = setting(
        False,
        "Leave out pictures that cannot be decoded, and count them.",
        late=True,
        role="data",
    )
    labels: str | None = setting(
        None,
        "CSV or Parquet file (columns id and label, or --label-column) whose labels replace those "
        "of the train data; the labels of the data count as the true ones.",
        role="data",
    )
    label_noise: float = setting(
        0.0,
        "Part of the train labels that is replaced by wrong ones.",
        min=0,
        max=1,
        role="data",
        protocol=True,
    )
    label_noise_kind: str = setting(
        "symmetric",
        "How labels are made wrong. symmetric: a label becomes any other class. one-sided: "
        "examples of every second class get the label of the next one. pairs: examples of each "
        "class get the label of one fixed other class. junk: the label stays, and the example is "
        "replaced by one of another class.",
        choices=("symmetric", "one-sided", "pairs", "junk"),
        late=True,
        role="data",
        protocol=True,
    )
    label_noise_scope: str = setting(
        "task",
        "Take wrong labels from the classes of the task, or from all classes seen so far.",
        choices=("task", "seen"),
        role="data",
    )
    imbalance: float = setting(
        1.0,
        "Share of its train examples that every second class of a task keeps.",
        min=0,
        max=1,
        late=True,
        role="data",
        protocol=True,
    )
    trusted: int = setting(
        0,
        "Examples per class whose true labels are given, as if a person had verified them; they "
        "leave the stream and are pinned in the memory.",
        min=0,
        late=True,
        role="labels",
        words="{} verified",
    )
    exclude: tuple[int, ...] = setting(tuple, "Train ids to leave out.", late=True, role="labels")
    relabel: tuple[tuple[int, int], ...] = setting(
        tuple, "Ids of train examples with the class that each is.", late=True, role="labels"
    )
    verified: tuple[tuple[int, int], ...] = setting(
        tuple,
        "Ids of train examples with the class that a person verified; they leave the stream and "
        "are pinned in the memory.",
        late=True,
        role="labels",
    )
    method: str = setting(
        "metasp-robust",
        "How to learn; see `metasp list methods`. On a clean stream begin with best.",
        role="method",
    )
    settings: Mapping[str, object] = setting(dict, "The method's own settings.", role="method")
    influence: str = setting(
        "none",
        "Weigh the examples of the method's updates by influence, as metasp or metasp-robust does "
        "and with their settings; see `metasp list methods` for what is weighed.",
        choices=INFLUENCE,
        late=True,
        role="method",
    )
    memory: int = setting(200, "Examples the memory may hold.", min=0, role="memory")
    selection: str | None = setting(
        None, "What the memory keeps; see `metasp list selections`.", role="memory", owner="method"
    )
    rehearse_last: int | None = setting(
        None,
        "Rehearse only in the last N epochs of a task; plain fine-tuning before.",
        min=1,
        role="training",
    )
    observe: int = setting(
        0,
        "Record influence, with this many pseudo steps, without using it.",
        min=0,
        role="training",
    )
    backbone: str = setting(
        "convnet", "The network; see `metasp list backbones`.", role="model", protocol=True
    )
    width: int | None = setting(
        None,
        "Channels (or units) of the first layer.",
        min=1,
        max=65_536,
        role="model",
        owner="backbone",
        protocol=True,
    )
    model_name: str | None = setting(None, "Class of your own model.", role="model", owner="run")
    model_digest: str | None = setting(None, "Digest of its shapes.", role="model", owner="run")
    epochs: int = setting(5, "Epochs per task.", min=1, role="training", protocol=True)
    batch_size: int = setting(32, "New examples per step.", min=1, role="training", protocol=True)
    memory_batch: int = setting(
        32, "Memory examples per step.", min=1, role="memory", protocol=True
    )
    optimizer: str = setting(
        "sgd", "Optimizer of the training.", choices=OPTIMIZERS, role="training", late=True
    )
    lr: float | None = setting(None, "Learning rate.", min=0, role="training", owner="method")
    momentum: float | None = setting(
        None, "Momentum, of sgd and rmsprop.", min=0, max=1, role="training", owner="method"
    )
    weight_decay: float | None = setting(
        None, "Weight decay.", min=0, role="training", owner="method"
    )
    lr_drop_at: tuple[int, ...] = setting(
        tuple, "Epochs of each task at which the learning rate drops.", min=1, role="training"
    )
    validation: float = setting(
        0.0,
        "Share of each task's train examples that is held out, to keep the best epoch's weights.",
        min=0,
        max=0.9,
        role="training",
        late=True,
    )
    patience: int = setting(
        3,
        "End a phase after this many epochs without a lower validation loss.",
        min=1,
        role="training",
        late=True,
    )
    test_every: int = setting(
        1,
        "Test only after every N-th task and after the last; the time of all tests together grows "
        "with the square of the number of tasks.",
        min=1,
        role="training",
        late=True,
        protocol=True,
    )
    lr_drop: float = setting(
        0.1, "Factor on the learning rate at each drop.", min=0, max=1, role="training"
    )
    augment: bool = setting(
        True, "Augment new examples where the benchmark knows how.", role="training"
    )
    augment_memory: bool = setting(True, "Augment replayed examples likewise.", role="memory")
    precision: str = setting(
        "fp32", "Arithmetic of the forward pass.", choices=("fp32", "bf16"), role="machine"
    )
    compile: bool = setting(False, "Compile the model (torch.compile).", role="machine")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps.", role="machine")
    threads: int = setting(
        2,
        "CPU threads; part of the spec, because their number changes the last bits.",
        min=1,
        max=1024,
        role="machine",
    )
    seed: int = setting(1231, "Seed of every random stream.", min=0, role="seed")

    def __post_init__(self) -> None:
        validate(self)
        for name, value in vars(self.corrections).items():  # sorted: the same ones, the same run
            object.__setattr__(self, name, value)

    @property
    def corrections(self) -> Corrections:
        """What a person has said of examples."""
        return Corrections(self.exclude, self.relabel, self.verified)

    @property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of the content."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The run's directory name: readable, ending in the digest."""
        method = self.method if self.influence == "none" else f"{self.method}-{self.influence}"
        parts = (self.benchmark, method, f"m{self.memory}", f"s{self.seed}", self.digest)
        return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.")[:60] for part in parts)

    def as_dict(self) -> dict[str, object]:
        """Plain values by name; without what is None, or late and at its default."""
        values = {key: to_list(value) for key, value in asdict(self).items() if value is not None}
        for entry in fields(self):
            usual = [] if entry.default is MISSING else entry.default
            if entry.metadata.get("late") and values.get(entry.name) == usual:
                del values[entry.name]
        values["settings"] = {k: to_list(v) for k, v in self.settings.items() if v is not None}
        return values

    def to_toml(self) -> str:
        values: dict[str, Any] = self.as_dict()
        settings = values.pop("settings")
        lines = [f"{key} = {as_toml(value)}" for key, value in values.items()]
        if settings:
            lines += ["", "[settings]"]
            lines += [f"{key} = {as_toml(value)}" for key, value in settings.items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, object], source: str = "the spec") -> Self:
        known = {entry.name for entry in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown(f"key in {source}", key, known)
        settings = values.get("settings", {})
        if not isinstance(settings, Mapping):
            raise UserError(f"settings in {source} must be a table of the method's settings.")
        plain_values = {key: frozen(value) for key, value in values.items()}
        if "settings" in values:
            plain_values["settings"] = {k: frozen(v) for k, v in settings.items()}
        return cls(**plain_values)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        return cls.from_dict(read_toml(path), str(path))

    def with_(self, **changes: object) -> Self:
        checked_at_once: dict[str, Any] = changes
        return replace(self, **checked_at_once)


def to_list(value: Any) -> Any:
    return [to_list(item) for item in value] if isinstance(value, tuple) else value


def validate(owner: Any) -> None:
    """Check the settings of a training, a run's or a learner's, one by one and together."""
    for entry in fields(owner):
        validate_field(owner, entry)
    if owner.lr == 0:
        raise UserError("lr must be greater than 0: with 0 nothing is learned.")
    if owner.rehearse_last is not None and owner.rehearse_last > owner.epochs:
        raise UserError(
            f"rehearse_last is {owner.rehearse_last} but a task has only {owner.epochs} epochs: "
            "give at most that many."
        )
