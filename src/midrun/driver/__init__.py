"""The shell that drives runs: it performs what the core orders, and decides nothing."""
