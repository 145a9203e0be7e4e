-- The schema of a midrun database. `application_id` identifies it, `user_version` is its version.
-- Entries are only added. The triggers enforce that for other programs that open the file, too.

CREATE TABLE runs (
    no         INTEGER PRIMARY KEY,  -- in order of creation; used by cursors
    run        TEXT    NOT NULL UNIQUE,
    seq        INTEGER NOT NULL,
    hash       BLOB    NOT NULL,
    at         INTEGER NOT NULL,     -- of the newest entry
    started_at INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    holder     TEXT    NOT NULL,     -- empty: no lease is held
    head       BLOB    NOT NULL,     -- JSON; the columns below are its indexed fields
    phase      TEXT    NOT NULL,
    attention  TEXT    NOT NULL,
    wake_at    INTEGER,
    agent      TEXT    NOT NULL,
    thread     TEXT    NOT NULL,
    parent     TEXT    NOT NULL,
    owner      TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX runs_by_phase ON runs (phase);
CREATE INDEX runs_by_agent ON runs (agent);
CREATE INDEX runs_by_owner ON runs (owner);
CREATE INDEX runs_by_thread ON runs (thread) WHERE thread <> '';
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent <> '';
CREATE INDEX runs_by_attention ON runs (no) WHERE attention <> '';
CREATE INDEX runs_by_wake ON runs (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_by_holder ON runs (holder)
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling');

CREATE TABLE labels (
    label TEXT    NOT NULL,
    no    INTEGER NOT NULL REFERENCES runs,
    PRIMARY KEY (label, no)
) STRICT, WITHOUT ROWID;

-- `id` is the order of commits over all runs, because only one writer is active at a time: it
-- serves as the change feed. Entries of many runs in one commit are stored on few pages.
-- `no` refers to runs. It has no foreign key, because every append would pay for the check.
CREATE TABLE entries (
    id   INTEGER PRIMARY KEY,
    no   INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    line BLOB    NOT NULL,
    hash BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX entries_in_order ON entries (no, seq);

CREATE TRIGGER entries_do_not_change BEFORE UPDATE ON entries
BEGIN
    SELECT raise(ABORT, 'entries are never changed');
END;

CREATE TRIGGER entries_do_not_go BEFORE DELETE ON entries
BEGIN
    SELECT raise(ABORT, 'entries are never removed');
END;

CREATE TABLE snapshots (
    no   INTEGER PRIMARY KEY REFERENCES runs,
    seq  INTEGER NOT NULL,
    hash BLOB    NOT NULL,
    body BLOB    NOT NULL
) STRICT;

CREATE TABLE holders (
    holder  TEXT    PRIMARY KEY,
    beat_at INTEGER NOT NULL,        -- alive while |now - beat_at| < ttl: after the clock was
    ttl     INTEGER NOT NULL,        -- set back, a dead holder must not count as alive
    lag     REAL    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE halts (
    scope  TEXT    PRIMARY KEY,
    "by"   TEXT    NOT NULL,
    reason TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT;

-- One row, incremented by every halt and lift, so that other processes notice.
CREATE TABLE latches (
    turns INTEGER NOT NULL
) STRICT;

INSERT INTO latches VALUES (0);

PRAGMA application_id = 1296647250;  -- "MIDR"
PRAGMA user_version = 2;
