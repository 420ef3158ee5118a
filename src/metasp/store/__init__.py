"""What a run leaves on disk."""

from metasp.store.run_dir import RunDir, open_run, runs_in

__all__ = ["RunDir", "open_run", "runs_in"]
