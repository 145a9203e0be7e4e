-- The id of the key of the hash chains: one row, empty if there is no key, never changed. Not part
-- of the schema version, like the marks. An older file with runs has no key; in an empty file one
-- can still be set.

CREATE TABLE IF NOT EXISTS chains (
    kid TEXT NOT NULL
) STRICT;

INSERT INTO chains SELECT '' WHERE EXISTS (SELECT 1 FROM runs) AND NOT EXISTS (SELECT 1 FROM chains);
