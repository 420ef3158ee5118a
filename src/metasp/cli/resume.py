"""metasp resume: continue a run that was stopped."""

from pathlib import Path

import click

from metasp.cli.options import checkpoint_option, data_option, json_option, track_option
from metasp.cli.run import execute
from metasp.errors import UserError

EXAMPLES = """
\b
Examples:
  metasp resume runs/split-digits-er-m200-s1231-0123456789ab
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@data_option
@checkpoint_option
@track_option
@json_option
def command(
    run: Path,
    data: Path | None,
    checkpoint_seconds: float,
    track: tuple[str, ...],
    as_json: bool,
) -> int:
    """Continue a run from its last checkpoint. It ends with the same bits as if it had never
    been stopped."""
    from metasp.experiment import prepare
    from metasp.store import open_run

    stored = open_run(run)
    experiment = prepare(
        stored.spec(), stored.path.parent, data, checkpoint_seconds=checkpoint_seconds
    )
    if experiment.directory.path != stored.path:
        raise UserError(
            f"{run} was renamed: give it its own name back, {experiment.directory.path.name}."
        )
    return execute(experiment, as_json, track)
