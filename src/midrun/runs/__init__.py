"""Embedding: `Midrun` and `Run`, for programs that start runs and control them from here."""
