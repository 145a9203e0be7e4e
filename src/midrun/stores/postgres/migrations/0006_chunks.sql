-- Schema 6. Parts of the first lines of runs, shared by all runs of a thread: see
-- `stores/chunks.py`. They are written before the run that refers to them; if that run is then
-- refused, its chunks stay behind and are shared by the next run with the same history.

CREATE TABLE midrun_chunks (
    hash bytea PRIMARY KEY,       -- SHA-256 of the body
    body bytea NOT NULL
);
