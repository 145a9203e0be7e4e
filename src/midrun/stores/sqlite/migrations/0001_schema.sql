-- The schema of a midrun database. `application_id` identifies it, `user_version` is the number of
-- its newest migration.
-- Entries are only added; those of a deleted run are removed after its tombstone was written.
-- The triggers enforce that for other programs that open the file, too.

-- While a run is driven, most appends change only seq, hash, at, and the step, cost and tokens of
-- the head. They do not touch this row: their last entry has these values. So the newest entry of
-- a run tells whether the row is up to date. It always is when no lease is held.
CREATE TABLE runs (
    no         INTEGER PRIMARY KEY,  -- in order of creation, never used again; for cursors
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
    owner      TEXT    NOT NULL,     -- the user who started it
    tenant     TEXT    NOT NULL,     -- empty: the default tenant
    team       TEXT    NOT NULL      -- users of this team see the run; empty: none
) STRICT;

CREATE INDEX runs_by_phase ON runs (phase);
CREATE INDEX runs_by_agent ON runs (agent);
CREATE INDEX runs_by_owner ON runs (owner);
CREATE INDEX runs_by_tenant ON runs (tenant) WHERE tenant <> '';
CREATE INDEX runs_by_start ON runs (tenant, started_at);
CREATE INDEX runs_by_thread ON runs (thread) WHERE thread <> '';
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent <> '';
CREATE INDEX runs_by_attention ON runs (no) WHERE attention <> '';
CREATE INDEX runs_by_wake ON runs (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_by_holder ON runs (holder)
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling');

-- The runs that may be deleted, for the retention.
CREATE INDEX runs_by_end ON runs (at) WHERE phase IN ('cancelled', 'completed', 'failed');

-- `no` refers to runs. It has no foreign key: to delete a run, SQLite would search all labels.
CREATE TABLE labels (
    label TEXT    NOT NULL,
    no    INTEGER NOT NULL,
    PRIMARY KEY (label, no)
) STRICT, WITHOUT ROWID;

-- The words of each run, by its number: see `stores/search.py`. The words of a deleted row do not
-- stay in the index.
CREATE VIRTUAL TABLE search USING fts5 (
    words, tokenize = 'unicode61 remove_diacritics 0', prefix = '2 3'
);
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);

CREATE TRIGGER runs_that_go_take_their_words AFTER DELETE ON runs
BEGIN
    DELETE FROM search WHERE rowid = old.no;
END;

-- `id` is the order of commits over all runs, because only one writer is active at a time: it
-- serves as the change feed. Entries of many runs in one commit are stored on few pages.
-- `no` refers to runs. It has no foreign key, because every append would pay for the check. An id
-- is never used again: if the newest entry is removed, an entry of run 0 keeps its id.
CREATE TABLE entries (
    id     INTEGER PRIMARY KEY,
    no     INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    line   BLOB    NOT NULL,
    hash   BLOB    NOT NULL,
    at     INTEGER,                  -- this and the rest: of the run after this entry, if the
    step   INTEGER,                  -- append did not update the run's row
    cost   INTEGER,
    tokens INTEGER
) STRICT;

CREATE UNIQUE INDEX entries_in_order ON entries (no, seq);

CREATE TRIGGER entries_do_not_change BEFORE UPDATE ON entries
BEGIN
    SELECT raise(ABORT, 'entries are never changed');
END;

CREATE TRIGGER entries_do_not_go BEFORE DELETE ON entries
WHEN old.no <> 0 AND NOT EXISTS (SELECT 1 FROM tombstones WHERE no = old.no AND removed = 0)
BEGIN
    SELECT raise(ABORT, 'entries are never removed before their run has a tombstone');
END;

-- The runs that were deleted. `removed` is 1 once all their entries are gone, too.
CREATE TABLE tombstones (
    id      INTEGER PRIMARY KEY,     -- in order of deletion
    no      INTEGER NOT NULL UNIQUE, -- the number that the run had
    run     TEXT    NOT NULL UNIQUE,
    seq     INTEGER NOT NULL,        -- this and the next: of the last entry
    hash    BLOB    NOT NULL,
    "by"    TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    reason  TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    proof   BLOB    NOT NULL,        -- links the columns above to `hash`
    removed INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX tombstones_with_leftovers ON tombstones (id) WHERE removed = 0;

CREATE TRIGGER tombstones_do_not_change
BEFORE UPDATE OF id, no, run, seq, hash, "by", at, reason, tenant, proof ON tombstones
BEGIN
    SELECT raise(ABORT, 'tombstones are never changed');
END;

CREATE TRIGGER tombstones_do_not_go BEFORE DELETE ON tombstones
BEGIN
    SELECT raise(ABORT, 'tombstones are never removed');
END;

-- Parts of the first lines of runs, shared by all runs of a thread: see `stores/chunks.py`.
CREATE TABLE chunks (
    hash BLOB PRIMARY KEY,           -- SHA-256 of the body
    body BLOB NOT NULL
) STRICT;

-- Files of runs, each stored once, and the runs whose entries name them. A body that no run names
-- is of no use. It is removed with the last run that named it.
CREATE TABLE files (
    hash BLOB PRIMARY KEY,           -- SHA-256 of the body
    body BLOB NOT NULL
) STRICT;

CREATE TABLE run_files (
    no   INTEGER NOT NULL,           -- refers to runs; of a deleted run, it is removed later
    hash BLOB    NOT NULL REFERENCES files,
    PRIMARY KEY (no, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_files_by_hash ON run_files (hash);

-- The runs that use each chunk. A chunk without one is removed.
CREATE TABLE chunk_uses (
    no   INTEGER NOT NULL,
    hash BLOB    NOT NULL,
    PRIMARY KEY (no, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX chunk_uses_by_hash ON chunk_uses (hash);

-- The id of the key of the hash chains: at most one row, empty if there is no key, never changed.
CREATE TABLE chain_key (
    key_id TEXT NOT NULL
) STRICT;

-- The ids of the keys with which entries were encrypted, in the order of their first use.
CREATE TABLE encryption_keys (
    no     INTEGER PRIMARY KEY,
    key_id TEXT NOT NULL
) STRICT;

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
    scope  TEXT    NOT NULL,
    "by"   TEXT    NOT NULL,
    reason TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    tenant TEXT    NOT NULL,         -- '*': all tenants
    PRIMARY KEY (tenant, scope)
) STRICT;

-- One row, incremented by every halt and lift, so that other processes notice.
CREATE TABLE halt_counter (
    changes INTEGER NOT NULL
) STRICT;

INSERT INTO halt_counter VALUES (0);

-- The audit log: actions of people that no journal records. The body is JSON. The hash links each
-- line to all lines before it.
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,      -- from 1, without gaps
    at     INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    body   BLOB    NOT NULL,
    hash   BLOB    NOT NULL
) STRICT;

-- The last line of the audit log, in one row, so that a missing end is noticed. The seal proves
-- the row, if the store has a chain key.
CREATE TABLE audit_end (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    no   INTEGER NOT NULL,
    hash BLOB    NOT NULL,
    seal BLOB    NOT NULL
) STRICT;

CREATE INDEX audit_by_tenant ON audit (tenant) WHERE tenant <> '';

CREATE TRIGGER audit_does_not_change BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'audit entries are never changed');
END;

CREATE TRIGGER audit_does_not_go BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'audit entries are never removed');
END;

-- Followers, and the cursor of each follower in each run. When a follower first starts, the
-- existing entries of all runs up to number `since` count as delivered. Such a run has no cursor
-- until it grows; then the trigger adds one for its old seq. Of a run after `since` without a
-- cursor, nothing was delivered.
CREATE TABLE followers (
    follower TEXT    PRIMARY KEY,
    holder   TEXT    NOT NULL,       -- empty: no process is the leader
    until    INTEGER NOT NULL,
    since    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE cursors (
    follower TEXT    NOT NULL REFERENCES followers,
    no       INTEGER NOT NULL,       -- refers to runs, without a foreign key, as in labels
    seq      INTEGER NOT NULL,
    note     TEXT    NOT NULL,
    PRIMARY KEY (follower, no)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER runs_that_grow_get_cursors BEFORE INSERT ON entries
WHEN new.no > 0 AND new.no <= (SELECT max(since) FROM followers)
BEGIN
    INSERT INTO cursors SELECT follower, new.no, new.seq - 1, '' FROM followers AS f
    WHERE since >= new.no
      AND NOT EXISTS (SELECT 1 FROM cursors WHERE follower = f.follower AND no = new.no);
END;

-- Addresses that clients have registered for a run: see `ports/push_targets.py`. A target may be
-- stored before its run is started, so it has the name of the run and not its number.
CREATE TABLE push_targets (
    run  TEXT NOT NULL,
    id   TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

-- The oldest schema whose processes may go on writing. A process that has the file open when a
-- newer midrun migrates it goes on, if its own schema is not older than this. A migration under
-- which older processes must not write raises the number to its own.
CREATE TABLE schema_support (
    oldest INTEGER NOT NULL
) STRICT;

INSERT INTO schema_support VALUES (1);

PRAGMA application_id = 1296647250;  -- "MIDR"
