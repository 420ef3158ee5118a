"""The paper's figures of what one setting changes, drawn in `effects.py`."""

from metasp.reports.figures import Kind

PLACE = "metasp.paper.effects:"
EFFECTS: dict[str, Kind] = {
    "validation-size": Kind(
        f"{PLACE}validation_size", "effect of the validation size", "paper-validation-size"
    ),
    "influence-epochs": Kind(
        f"{PLACE}influence_epochs", "effect of the last epochs", "paper-influence-epochs"
    ),
    "pseudo-steps": Kind(f"{PLACE}pseudo_steps", "effect of pseudo steps", "paper-pseudo-steps"),
}
