"""Benchmarks: the cost of midrun, compared with the raw limit in the same run."""
