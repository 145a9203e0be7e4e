"""The entries, by subject; `midrun.core.entries` has them all in one place."""
