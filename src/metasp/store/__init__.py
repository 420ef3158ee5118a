"""What a run leaves on disk."""

from metasp.store.run_dir import RunDir, runs_in

__all__ = ["RunDir", "runs_in"]
