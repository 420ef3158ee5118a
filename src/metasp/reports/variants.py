"""Whether a row is a method as its paper has it, or a variant of it."""

from metasp.reports.configurations import Configuration
from metasp.reports.names import LABELS, bare, is_setting, unusual

SCHEDULED = ("metasp", "metasp-rehsel")  # published with rehearsal in the last epochs only


def as_published(row: Configuration) -> bool:
    """Whether a row is a method of the paper as it was published, not a control or variant."""
    spec = row.spec
    if any(spec.get(name) for name in LABELS):  # verified or corrected examples
        return False
    usual = row.defaults.get("selection")
    if spec.get("selection", usual) != usual or not settings_as_published(row):
        return False
    return row.method in SCHEDULED or spec.get("rehearse_last") in (None, spec.get("epochs"))


def settings_as_published(row: Configuration) -> bool:
    """The same, but for what the memory keeps."""
    settings = {key: value for key, value in row.spec.items() if is_setting(key)}
    changed = any(
        unusual(key, value, row.defaults)
        for key, value in settings.items()
        if f"schedule.{bare(key)}" not in row.defaults
    )
    return not changed and not row.spec["observe"] and row.spec["influence"] == "none"
