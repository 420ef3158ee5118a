"""Speed, measured as ratios in one process."""
