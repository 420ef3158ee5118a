"""From a grid to many runs: the same specs on this machine or on a Ray cluster."""
