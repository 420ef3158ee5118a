"""metasp resume: continue a run that was stopped."""

from pathlib import Path

import click

from metasp.cli.options import checkpoint_option, data_option, json_option, track_option
from metasp.cli.run import execute
from metasp.errors import UserError
from metasp.experiment import prepare
from metasp.store import RunDir

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
    if not (run / "spec.toml").is_file():
        raise UserError(f"{run} is not a run: it has no spec.toml; see `metasp list runs`.")
    run = run.resolve()
    spec = RunDir(run).spec()
    experiment = prepare(spec, run.parent, data, checkpoint_seconds=checkpoint_seconds)
    if experiment.directory.path != run:
        raise UserError(
            f"{run} was renamed: give it its own name back, {experiment.directory.path.name}."
        )
    return execute(experiment, as_json, track)
