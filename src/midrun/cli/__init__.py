"""The command `midrun`: everything a handle can do, in words for a shell."""
