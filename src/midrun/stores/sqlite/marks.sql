-- How far followers have got with each run. Beside the schema, and not of its version: a midrun
-- that does not know these tables does not miss them.

CREATE TABLE IF NOT EXISTS followers (
    follower TEXT    PRIMARY KEY,
    holder   TEXT    NOT NULL,       -- empty: nobody has the place
    until    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS marks (
    follower TEXT    NOT NULL,
    no       INTEGER NOT NULL REFERENCES runs,
    seq      INTEGER NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (follower, no)
) STRICT, WITHOUT ROWID;
