"""The settings of the methods of this package, with the published defaults; free of torch, so that
listing and checking them does not load it. A plugin's settings stand beside its method."""

from typing import Literal, Self

from pydantic import model_validator

from metasp.config import Config, setting
from metasp.errors import UserError

FEWEST_FOR_BATCHNORM = 2  # examples: fewer have no statistics


class Settings(Config):
    """Base of the settings of a method."""

    def filled_in(self, epochs: int, memory: int) -> Self:
        """Return the settings with a value for whatever follows from other things unless it is
        chosen, so that a stored spec says what was done."""
        return self


class AERSettings(Settings):
    drop: float = setting(
        0.75, "Share of a batch, of the highest loss, that is not offered to the memory.",
        min=0, max=1,
    )  # fmt: skip


class AnalyticSettings(Settings):
    shrinkage: float = setting(
        1e-4, "Part of the identity in the covariance (slda).", min=1e-12, max=0.999
    )
    verified_weight: float = setting(10.0, "Weight of a verified example; of others 1.", min=0)
    weigh_labels: bool = setting(
        False, "Weigh examples by how likely their labels are right, each left out of the head."
    )
    keep_features: bool = setting(
        True, "Keep the features of all examples, so that each can be forgotten."
    )


class RidgeSettings(AnalyticSettings):
    random_features: int = setting(1024, "Random ReLU features (M).", min=1)


class CLSERSettings(Settings):
    consistency: float = setting(0.1, "Weight of the distance to an average's outputs (λ).", min=0)
    plastic_rate: float = setting(
        0.9, "Chance that a step moves the plastic average.", min=0, max=1
    )
    stable_rate: float = setting(0.7, "Chance that a step moves the stable average.", min=0, max=1)
    plastic_decay: float = setting(
        0.999, "What the plastic average keeps of itself when it moves.", min=0, max=1
    )
    stable_decay: float = setting(
        0.999, "What the stable average keeps of itself when it moves.", min=0, max=1
    )
    span: float = setting(
        0.1, "Part of a task's steps that an average spans at most: in short tasks it keeps less.",
        min=0, max=1,
    )  # fmt: skip


class DERSettings(Settings):
    alpha: float = setting(0.2, "Weight of the distance to stored outputs (α).", min=0)
    beta: float = setting(
        0.5, "Weight of the loss of a second draw from memory (β); 0: no draw, DER.", min=0
    )


class LossFilterSettings(Settings):
    drop: float = setting(0.5, "Share of new examples that is dropped.", min=0, max=1)
    told: bool = setting(
        False, "Control: drop the true share of wrong labels instead.", shown_as="told the share"
    )
    per_class: bool = setting(
        False, "Drop that share of each class, not of each batch.", shown_as="by class"
    )
    weigh_from: int = setting(2, "First epoch of a task in which examples are dropped.", min=1)


class PrototypeFilterSettings(Settings):
    weigh_from: int = setting(2, "First epoch of a task in which examples are dropped.", min=1)


class KNNFilterSettings(PrototypeFilterSettings):
    neighbours: int = setting(10, "Nearest neighbours whose labels are compared (k).", min=1)


class GDumbSettings(Settings):
    memory_epochs: int = setting(250, "Epochs over the memory after each task.", min=1)
    train_batch: int = setting(16, "Memory examples per step of the training on the memory.", min=2)
    cutmix: float = setting(0.5, "Chance that a step mixes its images.", min=0, max=1)
    clip: float = setting(10.0, "Largest norm of a gradient.", min=1e-6)


class GEMSettings(Settings):
    margin: float = setting(
        0.5, "Least weight of each past task's gradient when a conflict is undone.", min=0
    )
    ridge: float = setting(1e-3, "Added to the diagonal of the projection problem.", min=0)
    memory_statistics: bool = setting(
        True, "Let the memory's passes move BatchNorm's running statistics, as public code does."
    )


class GLCSettings(Settings):
    correct_from: int = setting(
        4, "First epoch of a task whose loss is corrected; earlier ones show the mistakes.", min=2
    )


class GMEDSettings(Settings):
    edit_rate: float = setting(0.1, "Step size of an edit (α), in network inputs.", min=0)
    edit_decay: float = setting(
        0.0, "How much smaller each further edit of the same example is.", min=0, max=1
    )
    loss_weight: float = setting(
        0.01, "Weight of the example's present loss in the edit (β).", min=0
    )
    loss_sign: Literal["text", "code"] = setting(
        "text",
        "Whether an edit lowers the present loss (the paper's text) or raises it (its code).",
    )


class GSSSettings(Settings):
    references: int = setting(
        4, "Random memory examples whose gradients a new one is compared with.", min=1
    )
    every_epoch: bool = setting(
        False, "Offer a task's examples to the memory in all of its epochs, not only the first."
    )


class HALSettings(Settings):
    anchor_weight: float = setting(0.1, "Weight of the anchors in the update (λ).", min=0)
    anchor_steps: int = setting(100, "Gradient steps that learn an anchor.", min=0)
    feature_memory: float = setting(
        0.3, "Share of the past in the running mean feature (β).", min=0, max=1
    )
    feature_weight: float = setting(
        0.1, "Pull of an anchor to the mean feature of its task (γ).", min=0
    )
    drift_at: Literal["trial", "now"] = setting(
        "trial",
        "Side of ‖trial − now‖² that is differentiated: trial holds the predictions, now is what "
        "public code does.",
    )


class MetaSPSettings(Settings):
    """The paper's defaults."""

    influence_last: int | None = setting(
        None,
        "Last epochs of a task with influence (and, in metasp, with rehearsal); default: a tenth.",
        min=1,
        role="schedule",
    )
    validation_old: float | None = setting(
        None,
        "Old examples that influence is measured on, V_old (2 or more); below 1: a fraction of "
        "the memory; default: memory / 10.",
        min=0,
    )
    validation_new: float | None = setting(
        None,
        "New examples that influence is measured on, V_new (2 or more); below 1: a fraction of "
        "the task; default: memory / 10.",
        min=0,
    )
    pseudo_steps: int = setting(
        1, "Steps that are only simulated to measure influence (pseudo steps).", min=1
    )
    rule: Literal["released", "as-written"] = setting(
        "released",
        "Update rule: of the authors' code (released) or of the paper's text (as-written).",
    )
    gamma: float | None = setting(
        None, "Weight of Stability (1) against Plasticity (0); default: Pareto.", min=0, max=1
    )
    strength: float = setting(
        1.0, "Factor on the influence in the weights; above 1, negative weights become 0.", min=0
    )
    running: bool = setting(
        False, "Weigh by each example's mean influence in the task, not by this batch's."
    )
    scope: str | None = setting(
        None, "Start of the names of the parameters that influence is computed for."
    )
    reuse: int | None = setting(
        None,
        "Keep V_old and V_new, and the inputs of the head for them, for this many steps; needs "
        "the scope head.",
        min=1,
    )
    every: int = setting(1, "Compute influence at every k-th step; plain rehearsal between.", min=1)
    cluster: Literal["pixels", "features"] | None = setting(
        None,
        "What RehSel clusters; default: what the selection says (rehsel: pixels).",
    )
    drop: Literal["balanced", "as-written"] = setting(
        "balanced",
        "Old examples that RehSel drops: the least helpful, evenly over tasks and classes "
        "(balanced, as the authors' code), or of the whole memory (as-written, Algorithm 2).",
    )
    shuffle_influence: bool = setting(
        False, "Control: shuffle the weights within each batch.", shown_as="shuffled"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        for name in ("validation_old", "validation_new"):
            size = getattr(self, name)
            if size is not None and not 0 < size < 1 and (size < 2 or size != int(size)):
                raise UserError(
                    f"{name} is {size:g}: give a whole number of at least 2, or a fraction between "
                    "0 and 1."
                )
        return self

    def filled_in(self, epochs: int, memory: int) -> Self:
        if self.influence_last is not None and self.influence_last > epochs:
            raise UserError(
                f"influence_last is {self.influence_last} but a task has only {epochs} epochs: "
                "give at most that many."
            )
        tenth = float(max(FEWEST_FOR_BATCHNORM, memory // 10))
        return self.with_(
            influence_last=influence_epochs(self.influence_last, epochs),
            validation_old=self.validation_old or tenth,
            validation_new=self.validation_new or tenth,
        )


class MIRSettings(Settings):
    candidates: int = setting(50, "Memory examples that are searched for the most harmed.", min=1)


class RobustSettings(Settings):
    weigh_from: int = setting(2, "First epoch of a task whose examples are weighed.", min=2)
    shuffle_influence: bool = setting(
        False, "Control: shuffle the weights within each batch.", shown_as="shuffled"
    )


def influence_epochs(wanted: int | None, epochs: int) -> int:
    """Return the paper's 5 of 50, scaled: a tenth of the epochs, at least one."""
    return wanted or max(1, round(epochs / 10))
