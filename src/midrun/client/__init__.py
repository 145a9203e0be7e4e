"""The client: the runs of a server, with the same handles as at home."""
