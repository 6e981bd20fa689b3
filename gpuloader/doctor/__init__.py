"""Check whether a machine has what a loader needs; each finding has a verdict and advice."""
