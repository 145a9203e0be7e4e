-- The cursor of each follower in each run. Not part of the schema version: a midrun that does not
-- know these tables works without them.

CREATE TABLE IF NOT EXISTS followers (
    follower TEXT    PRIMARY KEY,
    holder   TEXT    NOT NULL,       -- empty: no process is the leader
    until    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS marks (
    follower TEXT    NOT NULL,
    no       INTEGER NOT NULL REFERENCES runs,
    seq      INTEGER NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (follower, no)
) STRICT, WITHOUT ROWID;

-- Followers that first started when the file already had runs. The existing entries of runs up to
-- `since` count as delivered. Such a run has no mark until it grows; then it gets one for its old
-- seq. A midrun that does not know this table would deliver those entries again. Therefore the
-- leadership is stored here, and in `followers` it appears to be taken for ever.
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
