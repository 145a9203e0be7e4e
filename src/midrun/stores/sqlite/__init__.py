"""The default store: one SQLite file, shared by the processes of one machine."""
