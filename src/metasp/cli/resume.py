"""metasp resume: continue a run that was stopped."""

import os
from pathlib import Path
from typing import Any

import click

from metasp.cli.cluster import on_cluster, worker_options
from metasp.cli.options import (
    checkpoint_option,
    data_option,
    import_option,
    json_option,
    keep_option,
    track_option,
)
from metasp.cli.run import execute, show_finished

EXAMPLES = """
\b
Examples:
  metasp resume runs/split-digits-er-m200-s1231-0123456789ab
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@import_option
@data_option
@checkpoint_option
@keep_option
@track_option
@worker_options
@json_option
def command(
    run: Path,
    data: Path | None,
    checkpoint_seconds: float,
    keep_checkpoints: str,
    track: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> int:
    """Continue a run from its last checkpoint, whatever its folder is called by now. It ends with
    the same bits as if it had never been stopped."""
    from metasp.store import open_run

    cluster = on_cluster(data, given)
    stored = open_run(run)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"  # of several processes only the first shows it
    if alone and stored.finished:
        return show_finished(stored, as_json, track)
    from metasp.plugins import changed_since

    changed_since(stored.path)  # raises where code of the user's own is not imported
    from metasp.experiment import prepare
    from metasp.processes import joined

    options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}
    options["keep_checkpoints"] = keep_checkpoints
    options |= {"device": cluster.device} if cluster else {"ranks": joined()}
    experiment = prepare(stored.spec(), stored.path.parent, data, stored=stored, **options)
    return execute(experiment, as_json, track, cluster)
