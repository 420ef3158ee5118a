"""The keyword arguments of `metasp.run`, `metasp.split` and `metasp.ContinualLearner`.

Made by docs/make_typed.py from the dataclasses that own these settings: change them there.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class SplitKeywords(TypedDict, total=False):
    """What `metasp.split` may be told about the tasks."""

    classes_per_task: Sequence[int]
    """Classes of each task where they are not equal, such as 4,3,3."""
    class_order: str
    """Order in which classes appear: fixed, shuffled, or their numbers: 3,0,2,1. Default:
    fixed."""
    split_by: str | None
    """What makes a task: class; or, with the same classes in every task, order (of the rows) or
    column:NAME."""
    limit_per_class: int | None
    """At most this many train examples per class of a task."""
    image_size: int | None
    """Resize pictures to N×N pixels."""
    colour: str | None
    """Make pictures grey or rgb. One of grey, rgb."""
    label_noise: float
    """Part of the train labels that is replaced by wrong ones. Default: 0.0."""
    label_noise_kind: str
    """How labels are made wrong. symmetric: a label becomes any other class. one-sided: examples
    of every second class get the label of the next one. pairs: examples of each class get the
    label of one fixed other class. junk: the label stays, and the example is replaced by one of
    another class. One of symmetric, one-sided, pairs, junk. Default: symmetric."""
    label_noise_scope: str
    """Take wrong labels from the classes of the task, or from all classes seen so far. One of
    task, seen. Default: task."""
    imbalance: float
    """Share of its train examples that every second class of a task keeps. Default: 1.0."""


class SpecKeywords(SplitKeywords, total=False):
    """The fields of a `RunSpec`."""

    tasks: int | None
    """Number of tasks that the classes are divided into."""
    label_column: str | None
    """Column of the table that holds the label."""
    true_label_column: str | None
    """Column that holds the true label; used only for scoring and for test data."""
    decode: str
    """Decode pictures all before training (eager) or as they are needed (lazy); auto: by their
    size, lazy above 2 GB. One of auto, eager, lazy. Default: auto."""
    skip_corrupt: bool
    """Leave out pictures that cannot be decoded, and count them. Default: False."""
    labels: str | None
    """CSV or Parquet file (columns id and label, or --label-column) whose labels replace those of
    the train data; the labels of the data count as the true ones."""
    trusted: int
    """Examples per class whose true labels are given, as if a person had verified them; they leave
    the stream and are pinned in the memory. Default: 0."""
    exclude: Sequence[int]
    """Train ids to leave out."""
    relabel: Sequence[tuple[int, int]]
    """Ids of train examples with the class that each is."""
    verified: Sequence[tuple[int, int]]
    """Ids of train examples with the class that a person verified; they leave the stream and are
    pinned in the memory."""
    method: str
    """How to learn; see `metasp list methods`. On a clean stream begin with best. Default:
    metasp-robust."""
    settings: Mapping[str, object]
    """The method's own settings."""
    influence: str
    """Weigh the examples of the method's updates by influence, as metasp or metasp-robust does and
    with their settings; see `metasp list methods` for what is weighed. One of none, metasp,
    robust. Default: none."""
    memory: int
    """Examples the memory may hold. Default: 200."""
    selection: str | None
    """What the memory keeps; see `metasp list selections`."""
    rehearse_last: int | None
    """Rehearse only in the last N epochs of a task; plain fine-tuning before."""
    observe: int
    """Record influence, with this many pseudo steps, without using it. Default: 0."""
    backbone: str
    """The network; see `metasp list backbones`. Default: convnet."""
    width: int | None
    """Channels (or units) of the first layer."""
    epochs: int
    """Epochs per task. Default: 5."""
    batch_size: int
    """New examples per step. Default: 32."""
    memory_batch: int
    """Memory examples per step. Default: 32."""
    optimizer: str
    """Optimizer of the training. One of sgd, adam, adamw, nadam, rmsprop, adagrad. Default:
    sgd."""
    lr: float | None
    """Learning rate."""
    momentum: float | None
    """Momentum, of sgd and rmsprop."""
    weight_decay: float | None
    """Weight decay."""
    lr_drop_at: Sequence[int]
    """Epochs of each task at which the learning rate drops."""
    validation: float
    """Share of each task's train examples that is held out, to keep the best epoch's weights.
    Default: 0.0."""
    patience: int
    """End a phase after this many epochs without a lower validation loss. Default: 3."""
    test_every: int
    """Test only after every N-th task and after the last; the time of all tests together grows
    with the square of the number of tasks. Default: 1."""
    lr_drop: float
    """Factor on the learning rate at each drop. Default: 0.1."""
    augment: bool
    """Augment new examples where the benchmark knows how. Default: True."""
    augment_memory: bool
    """Augment replayed examples likewise. Default: True."""
    precision: str
    """Arithmetic of the forward pass. One of fp32, bf16. Default: fp32."""
    compile: bool
    """Compile the model (torch.compile). Default: False."""
    device: str
    """auto, cpu, cuda, cuda:N or mps. Default: auto."""
    threads: int
    """CPU threads; part of the spec, because their number changes the last bits. Default: 2."""
    seed: int
    """Seed of every random stream. Default: 1231."""


class RunKeywords(SpecKeywords, total=False):
    """What `metasp.run` may be told: the fields of a `RunSpec`, and what single methods take."""

    alpha: float
    """(der, derpp) Weight of the distance to stored outputs (α). Default: 0.2."""
    anchor_steps: int
    """(hal) Gradient steps that learn an anchor. Default: 100."""
    anchor_weight: float
    """(hal) Weight of the anchors in the update (λ). Default: 0.1."""
    beta: float
    """(der, derpp) Weight of the loss of a second draw from memory (β); 0: no draw, DER. Default:
    0.5."""
    candidates: int
    """(mir) Memory examples that are searched for the most harmed. Default: 50."""
    clip: float
    """(gdumb) Largest norm of a gradient. Default: 10.0."""
    cluster: str | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) What RehSel clusters; default: what
    the selection says (rehsel: pixels). One of pixels, features."""
    consistency: float
    """(cls-er) Weight of the distance to an average's outputs (λ). Default: 0.1."""
    correct_from: int
    """(glc) First epoch of a task whose loss is corrected; earlier ones show the mistakes.
    Default: 4."""
    cutmix: float
    """(gdumb) Chance that a step mixes its images. Default: 0.5."""
    decisive: float
    """(metasp-robust) Factor on the evidence for a label; 1: the weight is the chance that it is
    right. Default: 4.0."""
    drift_at: str
    """(hal) Side of ‖trial − now‖² that is differentiated: trial holds the predictions, now is
    what public code does. One of trial, now. Default: trial."""
    drop: float
    """(loss-filter) Share of new examples that is dropped. Default: 0.5."""
    easiest: float
    """(metasp-robust) Share of a class that represents it if none is verified. Default: 0.2."""
    edit_decay: float
    """(gmed) How much smaller each further edit of the same example is. Default: 0.0."""
    edit_rate: float
    """(gmed) Step size of an edit (α), in network inputs. Default: 0.1."""
    every: int
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Compute influence at every k-th step;
    plain rehearsal between. Default: 1."""
    every_epoch: bool
    """(gss) Offer a task's examples to the memory in all of its epochs, not only the first.
    Default: False."""
    feature_memory: float
    """(hal) Share of the past in the running mean feature (β). Default: 0.3."""
    feature_weight: float
    """(hal) Pull of an anchor to the mean feature of its task (γ). Default: 0.1."""
    gamma: float | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Weight of Stability (1) against
    Plasticity (0); default: Pareto."""
    influence_last: int | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Last epochs of a task with influence
    (and, in metasp, with rehearsal); default: a tenth."""
    loss_sign: str
    """(gmed) Whether an edit lowers the present loss (the paper's text) or raises it (its code).
    One of text, code. Default: text."""
    loss_weight: float
    """(gmed) Weight of the example's present loss in the edit (β). Default: 0.01."""
    margin: float
    """(gem) Least weight of each past task's gradient when a conflict is undone. Default: 0.5."""
    memory_epochs: int
    """(gdumb) Epochs over the memory after each task. Default: 250."""
    memory_statistics: bool
    """(gem) Let the memory's passes move BatchNorm's running statistics, as public code does.
    Default: True."""
    per_class: bool
    """(loss-filter) Drop that share of each class, not of each batch. Default: False."""
    plastic_decay: float
    """(cls-er) What the plastic average keeps of itself when it moves. Default: 0.999."""
    plastic_rate: float
    """(cls-er) Chance that a step moves the plastic average. Default: 0.9."""
    pseudo_steps: int
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Steps that are only simulated to
    measure influence (pseudo steps). Default: 1."""
    references: int
    """(gss) Random memory examples whose gradients a new one is compared with. Default: 4."""
    reuse: int | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Keep V_old and V_new, and the inputs
    of the head for them, for this many steps; needs the scope head."""
    ridge: float
    """(gem) Added to the diagonal of the projection problem. Default: 0.001."""
    rule: str
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Update rule: of the authors' code
    (released) or of the paper's text (as-written). One of released, as-written. Default:
    released."""
    running: bool
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Weigh by each example's mean influence
    in the task, not by this batch's. Default: False."""
    scope: str | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Start of the names of the parameters
    that influence is computed for."""
    shuffle_influence: bool
    """(metasp-robust, metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Control: shuffle the
    weights within each batch. Default: False."""
    span: float
    """(cls-er) Part of a task's steps that an average spans at most: in short tasks it keeps less.
    Default: 0.1."""
    stable_decay: float
    """(cls-er) What the stable average keeps of itself when it moves. Default: 0.999."""
    stable_rate: float
    """(cls-er) Chance that a step moves the stable average. Default: 0.7."""
    strength: float
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Factor on the influence in the
    weights; above 1, negative weights become 0. Default: 1.0."""
    strict: float
    """(metasp-robust) Share of wrong labels above which only the better half of a class is
    learned. Default: 0.05."""
    told: bool
    """(loss-filter) Control: drop the true share of wrong labels instead. Default: False."""
    train_batch: int
    """(gdumb) Memory examples per step of the training on the memory. Default: 16."""
    validation_new: float | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) New examples that influence is
    measured on, V_new (2 or more); below 1: a fraction of the task; default: memory / 10."""
    validation_old: float | None
    """(metasp, metasp-rehsel, metasp-only-s, metasp-only-p) Old examples that influence is
    measured on, V_old (2 or more); below 1: a fraction of the memory; default: memory / 10."""
    weigh_from: int
    """(loss-filter) First epoch of a task in which examples are dropped. Default: 2.
    (metasp-robust) First epoch of a task whose examples are weighed. Default: 2."""


class LearnerKeywords(TypedDict, total=False):
    """What a `ContinualLearner` may be told."""

    memory: int
    """Examples the memory may hold. Default: 500."""
    lr: float | None
    """Learning rate."""
    epochs: int
    """Epochs per task. Default: 10."""
    batch_size: int
    """New examples per step. Default: 32."""
    memory_batch: int
    """Memory examples per step. Default: 32."""
    momentum: float | None
    """Momentum, of sgd and rmsprop."""
    weight_decay: float | None
    """Weight decay."""
    selection: str | None
    """What the memory keeps; see `metasp list selections`."""
    rehearse_last: int | None
    """Rehearse only in the last N epochs of a task; plain fine-tuning before."""
    influence: str
    """Weigh the examples of the method's updates by influence, as metasp or metasp-robust does and
    with their settings; see `metasp list methods` for what is weighed. One of none, metasp,
    robust. Default: none."""
    seed: int
    """Seed of every random stream. Default: 1231."""
    settings: Mapping[str, object]
    """The method's own settings."""
    precision: str
    """Arithmetic of the forward pass. One of fp32, bf16. Default: fp32."""
    compile: bool
    """Compile the model (torch.compile). Default: False."""
    clip_norm: float | None
    """The norm to which gradients are shortened before a step."""
    head: str | None
    """The linear layer that grows when new classes appear."""
    scheduler_step: str
    """When the scheduler moves, in each task anew. One of epoch, step. Default: epoch."""
    window: int
    """Newest examples that stand for what is new in a stream without tasks. Default: 200."""
    keep: str
    """What the memory holds, with an encoder. One of inputs, features. Default: inputs."""


class Scores(TypedDict):
    """What one scenario of a run comes to; fractions, not percent."""

    matrix: list[list[float | None]]
    """Row t: accuracy on each task after task t; None: not tested."""
    before: list[float]
    """Accuracy on task t just before it was trained."""
    S: list[list[float]]
    """Stability: row t is the change on each old task after task t."""
    P: list[float | None]
    """Plasticity: what training on task t has added on it."""
    A_1: float
    """Mean accuracy on each task right after it was trained."""
    A_inf: float
    """Mean accuracy on all tasks after the last."""
    A_m: float
    """Mean over time of the mean accuracy on the tasks seen so far."""
    BWT: float | None
    """Mean change of the old tasks' accuracy since they were trained."""
