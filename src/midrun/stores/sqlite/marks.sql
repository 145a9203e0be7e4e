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

-- Followers that came to a file which had runs. Those up to `since` counted as told, as far as
-- they had got: they have no mark until they grow, and then one for where they stood. A midrun
-- that does not know this table would take them for runs that were never told of, so it finds
-- the place among the others taken for ever: it is kept here.
CREATE TABLE IF NOT EXISTS latecomers (
    follower TEXT    PRIMARY KEY REFERENCES followers,
    since    INTEGER NOT NULL,
    holder   TEXT    NOT NULL,
    until    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS runs_that_grow_get_marks BEFORE UPDATE OF seq ON runs
WHEN old.no <= (SELECT max(since) FROM latecomers)
BEGIN
    INSERT INTO marks SELECT follower, old.no, old.seq, '' FROM latecomers AS l
    WHERE since >= old.no
      AND NOT EXISTS (SELECT 1 FROM marks WHERE follower = l.follower AND no = old.no);
END;
