"""RunSpec: everything that changes a result, in one frozen value."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from metasp.config import Config, Text, read_toml, setting
from metasp.corrections import Corrections
from metasp.errors import UserError, unknown

ADDED = "influence."  # begins the names of the settings of an influence that is added
TABLES = ("method", "influence")  # of a spec's file: a name, and settings
Optimizer = Literal["sgd", "adam", "adamw", "nadam", "rmsprop", "adagrad"]
NoiseKind = Literal["symmetric", "one-sided", "pairs", "junk"]

of_data, of_labels = partial(setting, role="data"), partial(setting, role="labels")
of_method, of_memory = partial(setting, role="method"), partial(setting, role="memory")
of_model, of_training = partial(setting, role="model"), partial(setting, role="training")
of_machine = partial(setting, role="machine")


class TrainingSpec(Config):
    """What a run and a `ContinualLearner` are both given. None means "the method's default"."""

    influence: Literal["none", "metasp", "robust"] = of_method(
        "none",
        "Weigh the examples of the method's updates by influence, as metasp or metasp-robust does "
        "and with their settings; see `metasp list methods` for what is weighed.",
    )
    settings: Mapping[str, object] = of_method(
        {}, "The method's own settings; `influence.NAME` for those of an influence."
    )
    memory: int = of_memory(200, "Examples the memory may hold.", min=0)
    selection: Text | None = of_memory(
        None, "What the memory keeps; see `metasp list selections`.", owner="method"
    )
    rehearse_last: int | None = of_training(
        None, "Rehearse only in the last N epochs of a task; plain fine-tuning before.", min=1
    )
    epochs: int = of_training(5, "Epochs per task.", min=1, protocol=True)
    batch_size: int = of_training(32, "New examples per step.", min=1, protocol=True)
    memory_batch: int = of_memory(32, "Memory examples per step.", min=1, protocol=True)
    lr: float | None = of_training(None, "Learning rate.", min=0, owner="method")
    momentum: float | None = of_training(
        None, "Momentum, of sgd and rmsprop.", min=0, max=1, owner="method"
    )
    weight_decay: float | None = of_training(None, "Weight decay.", min=0, owner="method")
    precision: Literal["fp32", "bf16", "fp64"] = of_machine(
        "fp32", "Arithmetic of the forward pass; fp64 also of the weights."
    )
    compile: bool = of_machine(False, "Compile the model (torch.compile).")
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
        return self.model_dump(mode="json", exclude_none=True)


class RunSpec(TrainingSpec):
    """One run. None means "the benchmark's, method's or backbone's own default"; a stored spec
    has none of those left, so a changed default can never change the meaning of an old file."""

    benchmark: Text = of_data("split-digits", "Where the stream of tasks comes from.")
    data_digest: Text | None = of_data(None, "Digest of the data.", owner="run")
    tasks: int | None = of_data(None, "Number of tasks that the classes are divided into.", min=1)
    classes_per_task: tuple[int, ...] = of_data(
        (), "Classes of each task where they are not equal, such as 4,3,3.", protocol=True
    )
    class_order: Text = of_data(
        "fixed",
        "Order in which classes appear: fixed, shuffled, or their numbers: 3,0,2,1.",
        protocol=True,
    )
    split_by: Text | None = of_data(
        None,
        "What makes a task: class; or, with the same classes in every task, order (of the "
        "rows) or column:NAME.",
    )
    limit_per_class: int | None = of_data(
        None, "At most this many train examples per class of a task.", min=1, protocol=True
    )
    image_size: int | None = of_data(
        None, "Resize pictures to N×N pixels.", min=4, max=1024, protocol=True
    )
    colour: Literal["grey", "rgb"] | None = of_data(None, "Make pictures grey or rgb.")
    label_column: Text | None = of_data(None, "Column of the table that holds the label.")
    true_label_column: Text | None = of_data(
        None, "Column that holds the true label; used only for scoring and for test data."
    )
    text_column: Text | None = of_data(
        None, "Column of texts to learn from, instead of numbers or pictures."
    )
    id_column: Text | None = of_data(
        None, "Column of the ids of the examples, instead of row numbers."
    )
    test: Text | None = of_data(None, "File of test data, for csv:FILE, json:FILE or parquet:FILE.")
    decode: Literal["auto", "eager", "lazy"] = of_data(
        "auto",
        "Decode pictures all before training (eager) or as they are needed (lazy); auto: by their "
        "size, lazy above 2 GB.",
    )
    skip_corrupt: bool = of_data(
        False, "Leave out pictures that cannot be decoded, and count them."
    )
    labels: Text | None = of_data(
        None,
        "CSV or Parquet file (columns id and label, or --label-column) whose labels replace those "
        "of the train data; the labels of the data count as the true ones.",
    )
    label_noise: float = of_data(
        0.0, "Part of the train labels that is replaced by wrong ones.", min=0, max=1, protocol=True
    )
    label_noise_kind: NoiseKind = of_data(
        "symmetric",
        "How labels are made wrong. symmetric: a label becomes any other class. one-sided: "
        "examples of every second class get the label of the next one. pairs: examples of each "
        "class get the label of one fixed other class. junk: the label stays, and the example is "
        "replaced by one of another class.",
        protocol=True,
    )
    label_noise_scope: Literal["task", "seen"] = of_data(
        "task", "Take wrong labels from the classes of the task, or from all classes seen so far."
    )
    imbalance: float = of_data(
        1.0,
        "Share of its train examples that every second class of a task keeps.",
        min=0,
        max=1,
        protocol=True,
    )
    trusted: int = of_labels(
        0,
        "Examples per class whose true labels are given, as if a person had verified them; they "
        "leave the stream and are pinned in the memory.",
        min=0,
        shown_as="{} verified",
    )
    exclude: tuple[int, ...] = of_labels((), "Train ids to leave out.")
    weightless: tuple[int, ...] = of_labels(
        (),
        "Train ids that count nothing in the updates of the run without this setting, whose "
        "decisions are kept; see `metasp what-if`.",
        owner="run",
    )
    relabel: tuple[tuple[int, int], ...] = of_labels(
        (), "Ids of train examples with the class that each is."
    )
    verified: tuple[tuple[int, int], ...] = of_labels(
        (),
        "Ids of train examples with the class that a person verified; they leave the stream and "
        "are pinned in the memory.",
    )
    method: Text = of_method(
        "metasp-robust",
        "How to learn; see `metasp list methods`. On a clean stream begin with best.",
    )
    observe: int = of_training(
        0, "Record influence, with this many pseudo steps, without using it.", min=0
    )
    backbone: Text | None = of_model(
        None,
        "The network; see `metasp list backbones`. By default convnet for pictures and mlp for "
        "rows of numbers or texts.",
        protocol=True,
    )
    width: int | None = of_model(
        None,
        "Channels (or units) of the first layer.",
        min=1,
        max=65_536,
        owner="backbone",
        protocol=True,
    )
    model_name: Text | None = of_model(None, "Class of your own model.", owner="run")
    model_digest: Text | None = of_model(None, "Digest of its shapes.", owner="run")
    optimizer: Optimizer = of_training("sgd", "Optimizer of the training.")
    lr_drop_at: tuple[Annotated[int, Field(ge=1)], ...] = of_training(
        (), "Epochs of each task at which the learning rate drops.", min=1
    )
    validation: float = of_training(
        0.0,
        "Share of each task's train examples that is held out, to keep the best epoch's weights.",
        min=0,
        max=0.9,
    )
    patience: int = of_training(
        3, "End a phase after this many epochs without a lower validation loss.", min=1
    )
    test_every: int = of_training(
        1,
        "Test only after every N-th task and after the last; the time of all tests together grows "
        "with the square of the number of tasks.",
        min=1,
        protocol=True,
    )
    lr_drop: float = of_training(0.1, "Factor on the learning rate at each drop.", min=0, max=1)
    augment: bool = of_training(True, "Augment new examples where the benchmark knows how.")
    augment_memory: bool = of_memory(True, "Augment replayed examples likewise.")
    device: Text = of_machine("auto", "auto, cpu, cuda, cuda:N or mps.")
    threads: int = of_machine(
        2,
        "CPU threads; part of the spec, because their number changes the last bits.",
        min=1,
        max=1024,
    )

    @model_validator(mode="after")
    def _sort_corrections(self) -> Self:
        self.__dict__.update(vars(self.corrections))  # the same corrections are the same run
        return self

    @property
    def corrections(self) -> Corrections:
        """The ids that a person left out, relabelled or verified."""
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
            if value is not None:
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
        """Read the spec of a file."""
        return cls.from_dict(read_toml(path), str(path))


def flat_items(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return names and values, those in the tables `method` and `influence` as `method.NAME` and
    `influence.NAME`, and the name of such a table as that of the table itself."""
    items = []
    for key, value in values.items():
        if key not in TABLES or not isinstance(value, Mapping):
            items.append((key, value))
            continue
        for name, inner in value.items():
            items.append((key if name == "name" else f"{key}.{name}", inner))
    return items
