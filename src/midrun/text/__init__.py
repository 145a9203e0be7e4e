"""Sentences that people read: pure functions of entries and states, one layer above the core."""
