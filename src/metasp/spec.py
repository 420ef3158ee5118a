"""RunSpec: everything that changes a result, in one frozen value."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from metasp.config import Config, setting
from metasp.corrections import Corrections
from metasp.errors import UserError, unknown
from metasp.toml import read_toml

ADDED = "influence."  # begins the names of the settings of an influence that is added
TABLES = ("method", "influence")  # of a spec's file: a name, and settings
Optimizer = Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad"]


class TrainingSpec(Config):
    """What a run and a `ContinualLearner` are both given. None means "the method's default"."""

    influence: Literal["none", "metasp", "robust"] = setting(
        "none",
        "Weigh the examples of the method's updates by influence, as metasp or metasp-robust does "
        "and with their settings; see `metasp list methods` for what is weighed.",
        role="method",
    )
    settings: Mapping[str, object] = setting(
        {}, "The method's own settings; `influence.NAME` for those of an influence.", role="method"
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
    epochs: int = setting(5, "Epochs per task.", min=1, role="training", protocol=True)
    batch_size: int = setting(32, "New examples per step.", min=1, role="training", protocol=True)
    memory_batch: int = setting(
        32, "Memory examples per step.", min=1, role="memory", protocol=True
    )
    lr: float | None = setting(None, "Learning rate.", min=0, role="training", owner="method")
    momentum: float | None = setting(
        None, "Momentum, of sgd and rmsprop.", min=0, max=1, role="training", owner="method"
    )
    weight_decay: float | None = setting(
        None, "Weight decay.", min=0, role="training", owner="method"
    )
    precision: Literal["fp32", "bf16"] = setting(
        "fp32", "Arithmetic of the forward pass.", role="machine"
    )
    compile: bool = setting(False, "Compile the model (torch.compile).", role="machine")
    seed: int = setting(1231, "Seed of every random stream.", min=0, role="seed")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.lr == 0:
            raise UserError("lr must be greater than 0: with 0 nothing is learned.")
        if self.rehearse_last is not None and self.rehearse_last > self.epochs:
            raise UserError(
                f"rehearse_last is {self.rehearse_last} but a task has only {self.epochs} epochs: "
                "give at most that many."
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by name, without what is None."""
        return {name: to_list(value) for name, value in self if value is not None}


class RunSpec(TrainingSpec):
    """One run. None means "the benchmark's, method's or backbone's own default"; a stored spec
    has none of those left, so a changed default can never change the meaning of an old file."""

    benchmark: str = setting("split-digits", "Where the stream of tasks comes from.", role="data")
    data_digest: str | None = setting(None, "Digest of the data.", role="data", owner="run")
    tasks: int | None = setting(
        None, "Number of tasks that the classes are divided into.", min=1, role="data"
    )
    classes_per_task: tuple[int, ...] = setting(
        (),
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
    colour: Literal["grey", "rgb"] | None = setting(None, "Make pictures grey or rgb.", role="data")
    label_column: str | None = setting(
        None, "Column of the table that holds the label.", role="data"
    )
    true_label_column: str | None = setting(
        None,
        "Column that holds the true label; used only for scoring and for test data.",
        role="data",
    )
    text_column: str | None = setting(
        None, "Column of texts to learn from, instead of numbers or pictures.", role="data"
    )
    id_column: str | None = setting(
        None, "Column of the ids of the examples, instead of row numbers.", role="data"
    )
    test: str | None = setting(
        None, "File of test data, for csv:FILE, json:FILE and parquet:FILE.", role="data"
    )
    decode: Literal["auto", "eager", "lazy"] = setting(
        "auto",
        "Decode pictures all before training (eager) or as they are needed (lazy); auto: by their "
        "size, lazy above 2 GB.",
        role="data",
    )
    skip_corrupt: bool = setting(
        False,
        "Leave out pictures that cannot be decoded, and count them.",
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
    label_noise_kind: Literal["symmetric", "one-sided", "pairs", "junk"] = setting(
        "symmetric",
        "How labels are made wrong. symmetric: a label becomes any other class. one-sided: "
        "examples of every second class get the label of the next one. pairs: examples of each "
        "class get the label of one fixed other class. junk: the label stays, and the example is "
        "replaced by one of another class.",
        role="data",
        protocol=True,
    )
    label_noise_scope: Literal["task", "seen"] = setting(
        "task",
        "Take wrong labels from the classes of the task, or from all classes seen so far.",
        role="data",
    )
    imbalance: float = setting(
        1.0,
        "Share of its train examples that every second class of a task keeps.",
        min=0,
        max=1,
        role="data",
        protocol=True,
    )
    trusted: int = setting(
        0,
        "Examples per class whose true labels are given, as if a person had verified them; they "
        "leave the stream and are pinned in the memory.",
        min=0,
        role="labels",
        words="{} verified",
    )
    exclude: tuple[int, ...] = setting((), "Train ids to leave out.", role="labels")
    relabel: tuple[tuple[int, int], ...] = setting(
        (), "Ids of train examples with the class that each is.", role="labels"
    )
    verified: tuple[tuple[int, int], ...] = setting(
        (),
        "Ids of train examples with the class that a person verified; they leave the stream and "
        "are pinned in the memory.",
        role="labels",
    )
    method: str = setting(
        "metasp-robust",
        "How to learn; see `metasp list methods`. On a clean stream begin with best.",
        role="method",
    )
    observe: int = setting(
        0,
        "Record influence, with this many pseudo steps, without using it.",
        min=0,
        role="training",
    )
    backbone: str | None = setting(
        None,
        "The network; see `metasp list backbones`. By default convnet for pictures and mlp for "
        "rows of numbers or texts.",
        role="model",
        protocol=True,
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
    optimizer: Optimizer = setting("sgd", "Optimizer of the training.", role="training")
    lr_drop_at: tuple[Annotated[int, Field(ge=1)], ...] = setting(
        (), "Epochs of each task at which the learning rate drops.", role="training"
    )
    validation: float = setting(
        0.0,
        "Share of each task's train examples that is held out, to keep the best epoch's weights.",
        min=0,
        max=0.9,
        role="training",
    )
    patience: int = setting(
        3,
        "End a phase after this many epochs without a lower validation loss.",
        min=1,
        role="training",
    )
    test_every: int = setting(
        1,
        "Test only after every N-th task and after the last; the time of all tests together grows "
        "with the square of the number of tasks.",
        min=1,
        role="training",
        protocol=True,
    )
    lr_drop: float = setting(
        0.1, "Factor on the learning rate at each drop.", min=0, max=1, role="training"
    )
    augment: bool = setting(
        True, "Augment new examples where the benchmark knows how.", role="training"
    )
    augment_memory: bool = setting(True, "Augment replayed examples likewise.", role="memory")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps.", role="machine")
    threads: int = setting(
        2,
        "CPU threads; part of the spec, because their number changes the last bits.",
        min=1,
        max=1024,
        role="machine",
    )

    @model_validator(mode="after")
    def _sort_corrections(self) -> Self:
        self.__dict__.update(vars(self.corrections))  # the same corrections are the same run
        return self

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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values as in a file: the method and the influence as tables that hold their
        name and their settings, without what is None."""
        values = super().as_dict()
        settings: dict[str, Any] = values.pop("settings")
        for table in TABLES:
            values[table] = {"name": values.pop(table)}
        for key, value in settings.items():
            table = "influence" if key.startswith(ADDED) else "method"
            values[table][key.removeprefix(ADDED)] = value
        return values

    def flat(self) -> dict[str, Any]:
        """Return plain values by one name each: settings as `method.NAME` or `influence.NAME`."""
        return dict(flat_items(self.as_dict()))

    def to_toml(self) -> str:
        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the spec") -> Self:
        """Return the spec of plain values, in tables as in a file or flat."""
        fields: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for key, value in flat_items(values):
            if key.startswith(("method.", ADDED)):
                settings[key.removeprefix("method.")] = value
            elif key in cls.model_fields:
                fields[key] = value
            else:
                raise unknown(f"key in {source}", key, cls.model_fields)
        if settings:
            fields["settings"] = {**fields.get("settings", {}), **settings}
        return cls(**fields)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        return cls.from_dict(read_toml(path), str(path))


def flat_items(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values, those in the tables `method` and `influence` as `method.NAME` and
    `influence.NAME`, and the name of such a table as that of the table itself."""
    for key, value in values.items():
        if key not in TABLES or not isinstance(value, Mapping):
            yield key, value
            continue
        for name, inner in value.items():
            yield (key if name == "name" else f"{key}.{name}"), inner


def to_list(value: Any) -> Any:
    """Turn tuples into lists, as JSON and TOML have them, and leave out what is None in tables."""
    if isinstance(value, tuple):
        return [to_list(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_list(item) for key, item in value.items() if item is not None}
    return value
