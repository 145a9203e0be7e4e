-- Which key the chains of this file are made with: one row, empty if none, and never changed.
-- Beside the schema, like the marks. A file from before had none; an empty one may still choose.

CREATE TABLE IF NOT EXISTS chains (
    kid TEXT NOT NULL
) STRICT;

INSERT INTO chains SELECT '' WHERE EXISTS (SELECT 1 FROM runs) AND NOT EXISTS (SELECT 1 FROM chains);
