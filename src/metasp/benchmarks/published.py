"""The published benchmarks, read."""

from dataclasses import replace
from pathlib import Path

from metasp.benchmarks.catalogue import Published
from metasp.benchmarks.own import held_out_source, read_table_set, source_of
from metasp.benchmarks.places import local_folder
from metasp.benchmarks.request import Request
from metasp.benchmarks.source import Source, constants
from metasp.errors import UserError


def published(about: Published, request: Request, data: Path | None) -> Source:
    """A published set from a local folder, from the cache, or from the hub."""
    asked = replace(
        request,
        image_size=request.image_size or about.size,
        colour=request.colour or about.colour,
        label_column=request.label_column or about.label,
    )
    found = read_table_set(about.hub, local_folder(data, about.folder, about.hub), asked)
    usual = about.label in (asked.label_column, asked.true_label_column)
    if usual and len(found.class_names) != about.classes:
        raise UserError(
            f"{about.folder} has {len(found.class_names)} classes and should have "
            f"{about.classes}: this is another data set; give it as folder: or hub: instead."
        )
    if about.pooled:
        # The hub's test split is 50 further pictures per class; the field pools the 600 others.
        source = held_out_source(about.folder, found, found.rows("train", "validation"))
    else:
        for split in ("train", "test"):
            if not found.splits.get(split):
                raise UserError(f"{about.folder} lacks its {split} split: get it again.")
        source = source_of(about.folder, found, found.rows("train"), found.rows("test"))
    mean, std = about.mean, about.std
    if asked.colour != about.colour:
        mean, std = constants(source.train)
    colour = asked.colour == "rgb"
    return replace(
        source,
        mean=mean,
        std=std,
        tasks=about.tasks,
        crop_padding=4 if colour else 0,
        flip=colour,
    )
