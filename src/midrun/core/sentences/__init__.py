"""What a person reads of each entry, by subject; `midrun.core.aloud` has them in one place."""
