"""What of a spec the reading of data depends on."""

from dataclasses import dataclass
from typing import Self

from metasp.errors import UserError
from metasp.spec import RunSpec

COLUMN = "column:"
FIELDS = (
    "image_size", "colour", "label_column", "true_label_column", "decode", "skip_corrupt",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """How pictures are to come out, and which columns are wanted; None: as the data is. `decode`
    is None where the size of the data is to decide."""

    image_size: int | None = None
    colour: str | None = None
    label_column: str | None = None
    domain_column: str | None = None
    true_label_column: str | None = None
    decode: str | None = None
    skip_corrupt: bool | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        by = spec.split_by or ""
        # With a file of labels, the label column is one of the file, and what the data has is true.
        of_data = spec.true_label_column if spec.labels else spec.label_column
        # A complete spec says so where it is lazy: if it says nothing, it is not.
        decoding = spec.decode if spec.decode != "auto" else "eager" if spec.data_digest else None
        return cls(
            spec.image_size,
            spec.colour,
            of_data,
            by.removeprefix(COLUMN) if by.startswith(COLUMN) else None,
            None if spec.labels else spec.true_label_column,
            decoding,
            spec.skip_corrupt or None,
        )

    def refuse(self, name: str, *allowed: str) -> None:
        """One sentence if something was asked for that a source has no use for."""
        for field in FIELDS:
            if field not in allowed and getattr(self, field) not in (None, "eager"):
                flag = f"--{field.replace('_', '-')}"
                raise UserError(f"{flag} does not apply to {name}: leave it out.")
