"""Where an example came from, in the user's own terms: a file, or a row of one."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from metasp.data.loading import load_source
from metasp.data.source import Origin
from metasp.errors import UserError
from metasp.spec import RunSpec


def texts_of(spec: RunSpec, data: Path | None, size: int) -> Sequence[str] | None:
    """Return the `size` rows of a run's data in words, where the user's file says."""
    texts = load_source(spec, data).texts
    return texts if texts is not None and len(texts) == size else None


def origins_of(
    spec: RunSpec, data: Path | None, ids: Iterable[int]
) -> tuple[dict[int, Origin], str | None]:
    """Return the origins of some train ids that are in files of the user's, or one sentence about
    why they cannot be told."""
    try:
        source = load_source(spec, data)
        if source.digest != spec.data_digest:
            raise UserError("the data is no longer what the run was trained on.")
    except UserError as error:
        return {}, str(error)
    origins = {identity: source.origin(identity) for identity in ids}
    return {identity: origin for identity, origin in origins.items() if origin is not None}, None
