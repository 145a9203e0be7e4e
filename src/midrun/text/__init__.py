"""Turn entries and states into the sentences that people read. Pure; one layer above `core`."""
