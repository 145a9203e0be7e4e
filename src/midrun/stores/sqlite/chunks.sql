-- Parts of the first lines of runs, shared by all runs of a thread: see `stores/chunks.py`.

CREATE TABLE IF NOT EXISTS chunks (
    hash BLOB PRIMARY KEY,           -- SHA-256 of the body
    body BLOB NOT NULL
) STRICT;
