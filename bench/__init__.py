"""Benchmarks: what midrun costs, measured against the raw limit in the same run."""
