"""Speed, measured as ratios in one process: `python -m benchmarks NAME` in the clone."""
