"""Every SQL statement of the SQLite store, as a constant.

Values are bound as parameters, never formatted into the text. `no` is the number of a run in
order of creation, the primary key that all tables share.
"""

from typing import Final

# ── the current row of a run ─────────────────────────────────────────────────
# An append to a driven run leaves the row as it is and stores the changed values with its last
# entry, see the schema. A reader joins that entry (`e`); without one, the row is up to date.
_NEWEST: Final = """
    LEFT JOIN entries AS e
    ON r.holder <> '' AND e.no = r.no AND e.at IS NOT NULL AND e.seq > r.seq
       AND e.seq = (SELECT max(seq) FROM entries WHERE no = r.no)
"""
_ROW: Final = """
    SELECT r.no, r.run,
           iif(e.seq IS NULL, r.head, CAST(json_set(
               CAST(r.head AS TEXT), '$.step', e.step, '$.cost', e.cost, '$.tokens', e.tokens
           ) AS BLOB)),
           coalesce(e.seq, r.seq), coalesce(e.hash, r.hash), r.epoch, r.holder, r.started_at,
           coalesce(e.at, r.at)
"""
_FROM_RUN: Final = "FROM runs AS r" + _NEWEST + "WHERE r.run = ?"

# ── writing ──────────────────────────────────────────────────────────────────
RUN_EXISTS: Final = "SELECT 1 FROM runs WHERE run = ?"
# A new run never gets the number of a deleted one.
INSERT_RUN: Final = """
    INSERT INTO runs (no, run, seq, hash, at, started_at, epoch, holder, head, phase, attention,
                      wake_at, agent, thread, parent, owner, tenant, team)
    VALUES (
        1 + max(coalesce((SELECT max(no) FROM runs), 0),
                coalesce((SELECT max(no) FROM tombstones), 0)),
        ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
    )
    RETURNING no
"""
ADD_WORDS: Final = "INSERT INTO search (rowid, words) VALUES (?, ?)"
ADD_MORE_WORDS: Final = "UPDATE search SET words = words || ' ' || ?2 WHERE rowid = ?1"
ADD_LABEL: Final = "INSERT OR IGNORE INTO labels (label, no) VALUES (?, ?)"
ADD_ENTRY: Final = "INSERT INTO entries (no, seq, line, hash) VALUES (?, ?, ?, ?)"
ADD_LAST_ENTRY: Final = """
    INSERT INTO entries (no, seq, line, hash, at, step, cost, tokens)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
HAS_FILE: Final = "SELECT 1 FROM files WHERE hash = ?"
ADD_FILE: Final = "INSERT OR IGNORE INTO files (hash, body) VALUES (?, ?)"
ADD_RUN_FILE: Final = "INSERT OR IGNORE INTO run_files (no, hash) VALUES (?, ?)"
ADD_CHUNK: Final = "INSERT OR IGNORE INTO chunks (hash, body) VALUES (?, ?)"
ADD_CHUNK_USE: Final = "INSERT OR IGNORE INTO chunk_uses (no, hash) VALUES (?, ?)"

UPDATE_ROW: Final = """
    UPDATE runs SET seq = ?, hash = ?, at = ?, head = ?, epoch = ?, holder = ?, phase = ?,
                    attention = ?, wake_at = ?
    WHERE no = ?
"""

SAVE_SNAPSHOT: Final = """
    INSERT INTO snapshots (no, seq, hash, body)
    SELECT no, ?2, ?3, ?4 FROM runs WHERE run = ?1
    ON CONFLICT (no) DO UPDATE SET seq = excluded.seq, hash = excluded.hash,
                                   body = excluded.body
    WHERE excluded.seq >= snapshots.seq
"""
UPSERT_HEARTBEAT: Final = """
    INSERT INTO holders (holder, beat_at, ttl, lag) VALUES (?, ?, ?, ?)
    ON CONFLICT (holder) DO UPDATE SET beat_at = excluded.beat_at, ttl = excluded.ttl,
                                       lag = excluded.lag
"""
DELETE_HOLDER: Final = "DELETE FROM holders WHERE holder = ?"
REPLACE_HOLDERS: Final = "UPDATE runs SET holder = ? WHERE holder <> ''"
DELETE_HOLDERS: Final = "DELETE FROM holders"
SET_KEY: Final = "INSERT INTO chain_key SELECT ? WHERE NOT EXISTS (SELECT 1 FROM chain_key)"
DELETE_DEAD_HOLDERS: Final = """
    DELETE FROM holders WHERE beat_at + ttl < ?1 - ?2 OR beat_at - ttl >= ?1
"""
# A holder is alive while the clock is within `ttl` of its last beat, in either direction. After
# the clock was set back a little, a beat from the future still counts.
HOLDER_ALIVE: Final = "SELECT 1 FROM holders WHERE holder = ? AND abs(? - beat_at) < ttl"
# Runs of the scope that a live holder holds, without the run that is about to be taken. The
# partial index `runs_by_holder` has exactly these phases.
COUNT_HELD: Final = """
    SELECT count(*) FROM runs AS r INDEXED BY runs_by_holder
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling')
      AND holder IN (SELECT holder FROM holders WHERE abs(?1 - beat_at) < ttl)
      AND run <> ?2
      AND CASE
          WHEN ?3 = 'all' THEN TRUE
          WHEN substr(?3, 1, 6) = 'agent:' THEN agent = substr(?3, 7)
          WHEN substr(?3, 1, 7) = 'tenant:' THEN tenant = substr(?3, 8)
          ELSE EXISTS (SELECT 1 FROM labels AS l WHERE l.label = substr(?3, 7) AND l.no = r.no)
      END
"""
INSERT_HALT: Final = """
    INSERT OR IGNORE INTO halts (scope, by, reason, at, tenant) VALUES (?, ?, ?, ?, ?)
"""
DELETE_HALT: Final = "DELETE FROM halts WHERE scope = ? AND tenant = ?"
BUMP_HALT_COUNTER: Final = "UPDATE halt_counter SET changes = changes + 1"

# ── reading one run ──────────────────────────────────────────────────────────
ROW: Final = _ROW + _FROM_RUN
# Parameters: run, tenant (NULL: any), owner (NULL: any), teams as a JSON array.
_IS_VISIBLE: Final = """
      AND (?2 IS NULL OR r.tenant = ?2)
      AND (?3 IS NULL OR r.owner = ?3 OR r.team IN (SELECT value FROM json_each(?4)))
"""
VISIBLE_ROW: Final = ROW + _IS_VISIBLE
_INDEXED_COLUMNS: Final = """,
           r.phase, r.agent, r.thread, r.parent, r.owner, r.tenant, r.team, r.attention,
           r.wake_at,
           (SELECT json_group_array(label) FROM labels WHERE no = r.no)
"""
INDEXED_ROW: Final = _ROW + _INDEXED_COLUMNS + _FROM_RUN
RUN_END: Final = "SELECT r.no, coalesce(e.seq, r.seq), coalesce(e.hash, r.hash) " + _FROM_RUN
SELECT_LINES: Final = """
    SELECT line, hash FROM entries WHERE no = ? AND seq > ? AND seq <= ? ORDER BY seq
"""
# A line that refers to chunks begins with "#". It counts as 1 MiB, because it is long when it
# is joined.
LINES_BYTES: Final = """
    SELECT coalesce(sum(length(line) + iif(substr(line, 1, 1) = x'23', 1048576, 0)), 0)
    FROM entries WHERE no = ? AND seq > ? AND seq <= ?
"""
CHUNK: Final = "SELECT body FROM chunks WHERE hash = ?"
FILE: Final = """
    SELECT f.body FROM runs AS r
    JOIN run_files AS o ON o.no = r.no JOIN files AS f ON f.hash = o.hash
    WHERE r.run = ? AND o.hash = ?
"""
ENTRY_HASH: Final = "SELECT hash FROM entries WHERE no = ? AND seq = ?"
SNAPSHOT_BYTES: Final = """
    SELECT length(s.body) FROM runs AS r JOIN snapshots AS s USING (no) WHERE r.run = ?
"""
SNAPSHOT: Final = """
    SELECT s.seq, s.hash, s.body
    FROM runs AS r JOIN snapshots AS s USING (no)
    JOIN entries AS e ON e.no = r.no AND e.seq = s.seq AND e.hash = s.hash
    WHERE r.run = ?
"""

# ── lists ────────────────────────────────────────────────────────────────────
# One statement for each leading filter, which names its index; the other filters only thin out
# its result. SQLite would otherwise choose by statistics that the file may not have.
# Parameters: before, limit, label, phase, agent, thread, parent, attention, owner, decider,
# tenant, teams, words; NULL means any. Teams are a JSON array.
_COLUMNS: Final = _ROW + "FROM runs AS r "
_FILTERS: Final = """
      AND (?4 IS NULL OR r.phase = ?4) AND (?5 IS NULL OR r.agent = ?5)
      AND (?6 IS NULL OR r.thread = ?6) AND (?7 IS NULL OR r.parent = ?7)
      AND (?8 IS NULL OR r.attention <> '') AND (?11 IS NULL OR r.tenant = ?11)
      AND (?9 IS NULL OR r.owner = ?9 OR r.team IN (SELECT value FROM json_each(?12)))
      AND (?10 IS NULL OR r.owner = ?10 OR r.team IN (SELECT value FROM json_each(?12))
           OR EXISTS (
               SELECT 1 FROM json_each(CAST(r.head AS TEXT), '$.addressees') WHERE value = ?10
           ))
"""
_LABEL_FILTER: Final = """
      AND (?3 IS NULL OR EXISTS (SELECT 1 FROM labels WHERE label = ?3 AND no = r.no))
"""
_FILTERS_AND_ORDER: Final = _FILTERS + _LABEL_FILTER + "ORDER BY r.no DESC LIMIT ?2"
LIST_ALL: Final = _COLUMNS + _NEWEST + "WHERE r.no < ?1" + _FILTERS_AND_ORDER
LIST_BY_PHASE: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_phase "
    + _NEWEST
    + "WHERE r.phase = ?4 AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_AGENT: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_agent "
    + _NEWEST
    + "WHERE r.agent = ?5 AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_THREAD: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_thread "
    + _NEWEST
    + "WHERE r.thread = ?6 AND r.thread <> '' AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_PARENT: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_parent "
    + _NEWEST
    + "WHERE r.parent = ?7 AND r.parent <> '' AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_ATTENTION: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_attention "
    + _NEWEST
    + "WHERE r.attention <> '' AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_OWNER: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_owner "
    + _NEWEST
    + "WHERE r.owner = ?9 AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_TENANT: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_tenant "
    + _NEWEST
    + "WHERE r.tenant = ?11 AND r.tenant <> '' AND r.no < ?1"
    + _FILTERS_AND_ORDER
)
LIST_BY_LABEL: Final = (
    _ROW
    + "FROM labels AS l CROSS JOIN runs AS r ON r.no = l.no"
    + _NEWEST
    + "WHERE l.label = ?3 AND l.no < ?1"
    + _FILTERS
    + "ORDER BY l.no DESC LIMIT ?2"
)
LIST_BY_WORDS: Final = (
    _ROW
    + "FROM search AS s CROSS JOIN runs AS r ON r.no = s.rowid"
    + _NEWEST
    + "WHERE s.words MATCH ?13 AND s.rowid < ?1"
    + _FILTERS
    + _LABEL_FILTER
    + "ORDER BY s.rowid DESC LIMIT ?2"
)
# Parameters: tenant, owner, since. A quota is checked at each start of a run, so the statements
# read the runs of the period, or of the owner, and not all that are stored.
_USAGE_COLUMNS: Final = """
    SELECT (
               SELECT count(*) FROM runs INDEXED BY runs_by_phase
               WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting',
                               'cancelling', 'failed', 'halted')
                 AND tenant = ?1 AND (?2 = '' OR owner = ?2)
           ),
           count(*),
           coalesce(sum(coalesce(e.cost, CAST(head AS TEXT) ->> 'cost', 0)), 0),
           coalesce(sum(coalesce(e.tokens, CAST(head AS TEXT) ->> 'tokens', 0)), 0),
           min(started_at)
"""
USAGE_OF_OWNER: Final = (
    _USAGE_COLUMNS
    + "FROM runs AS r INDEXED BY runs_by_owner "
    + _NEWEST
    + "WHERE owner = ?2 AND tenant = ?1 AND started_at >= ?3"
)
USAGE_OF_TENANT: Final = (
    _USAGE_COLUMNS
    + "FROM runs AS r INDEXED BY runs_by_start "
    + _NEWEST
    + "WHERE tenant = ?1 AND started_at >= ?3"
)
# The runs of a quota, counted up to its bound. Parameters: tenant, owner, since, bound.
COUNT_OPEN: Final = """
    SELECT count(*) FROM (
        SELECT ?3 FROM runs INDEXED BY runs_by_phase
        WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting', 'cancelling',
                        'failed', 'halted')
          AND tenant = ?1 AND (?2 = '' OR owner = ?2)
        LIMIT ?4
    )
"""
COUNT_RECENT: Final = """
    SELECT count(*) FROM (
        SELECT ?2 FROM runs INDEXED BY runs_by_start
        WHERE tenant = ?1 AND started_at >= ?3 LIMIT ?4
    )
"""
COUNT_RECENT_OF_OWNER: Final = """
    SELECT count(*) FROM (
        SELECT 1 FROM runs INDEXED BY runs_by_owner
        WHERE owner = ?2 AND tenant = ?1 AND started_at >= ?3
        ORDER BY no DESC LIMIT ?4
    )
"""
# Parameters: tenant, owner.
STORED_BYTES: Final = """
    SELECT coalesce(sum((SELECT sum(length(line)) FROM entries WHERE no = r.no) + (
               SELECT coalesce(sum(length(f.body)), 0)
               FROM run_files AS o JOIN files AS f USING (hash) WHERE o.no = r.no
           )), 0)
    FROM runs AS r WHERE tenant = ?1 AND (?2 = '' OR owner = ?2)
"""
# A cursor of another tenant is unknown. Parameters: run, tenant (NULL: any).
RUN_NUMBER: Final = """
    SELECT no FROM runs WHERE run = ?1 AND (?2 IS NULL OR tenant = ?2)
    UNION ALL SELECT no FROM tombstones WHERE run = ?1 AND (?2 IS NULL OR tenant = ?2)
"""
COUNTS: Final = "SELECT phase, count(*) FROM runs GROUP BY phase"
COUNTS_OF_DEFAULT: Final = "SELECT phase, count(*) FROM runs WHERE tenant = '' GROUP BY phase"
COUNTS_OF_TENANT: Final = """
    SELECT phase, count(*) FROM runs INDEXED BY runs_by_tenant
    WHERE tenant = ? AND tenant <> '' GROUP BY phase
"""
OPEN_RUNS: Final = """
    SELECT agent, phase, count(*), coalesce(sum(asks), 0), min(at), min(iif(asks > 0, at, NULL))
    FROM (
        SELECT agent, phase, at, CAST(head AS TEXT) ->> 'asks' AS asks
        FROM runs INDEXED BY runs_by_phase
        WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting', 'cancelling',
                        'failed', 'halted')
    )
    GROUP BY agent, phase ORDER BY agent, phase
"""
DRIVABLE: Final = """
    SELECT run FROM runs INDEXED BY runs_by_holder
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling')
      AND holder NOT IN (SELECT holder FROM holders WHERE abs(?1 - beat_at) < ttl)
      AND (?2 IS NULL OR agent IN (SELECT value FROM json_each(?2)))
    ORDER BY no LIMIT ?3
"""
DUE: Final = """
    SELECT run FROM runs WHERE wake_at IS NOT NULL AND wake_at <= ? ORDER BY wake_at, no LIMIT ?
"""
KEY: Final = "SELECT key_id FROM chain_key"
ENCRYPTION_KEYS: Final = "SELECT key_id FROM encryption_keys ORDER BY no"
ADD_ENCRYPTION_KEY: Final = """
    INSERT INTO encryption_keys (key_id)
    SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM encryption_keys WHERE key_id = ?1)
"""
ADD_AUDIT: Final = "INSERT INTO audit (id, at, tenant, body, hash) VALUES (?, ?, ?, ?, ?)"
SET_AUDIT_END: Final = """
    INSERT INTO audit_end (one, no, hash, seal) VALUES (1, ?1, ?2, ?3)
    ON CONFLICT (one) DO UPDATE SET no = ?1, hash = ?2, seal = ?3
"""
AUDIT_END: Final = "SELECT no, hash, seal FROM audit_end"
LAST_AUDIT_LINE: Final = "SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1"
AUDIT_LINES: Final = """
    SELECT id, at, tenant, body, hash FROM audit WHERE id > ? ORDER BY id LIMIT ?
"""
AUDIT: Final = """
    SELECT id, at, body FROM audit WHERE id > ? AND at >= ? AND at < ? ORDER BY id LIMIT ?
"""
AUDIT_OF_TENANT: Final = """
    SELECT id, at, body FROM audit
    WHERE id > ?1 AND at >= ?2 AND at < ?3 AND tenant = ?5 ORDER BY id LIMIT ?4
"""
HALTS: Final = "SELECT scope, by, reason, at, tenant FROM halts ORDER BY at, rowid"
HALTS_OF_TENANT: Final = """
    SELECT scope, by, reason, at, tenant FROM halts WHERE tenant IN ('*', ?) ORDER BY at, rowid
"""
HOLDERS: Final = "SELECT holder, lag FROM holders WHERE abs(? - beat_at) < ttl ORDER BY holder"

# ── deletion ─────────────────────────────────────────────────────────────────
# Parameters: before, limit, label, agent, thread, owner, at and number of the last run, tenant.
_ENDED_FILTERS: Final = """
      AND (?4 IS NULL OR r.agent = ?4) AND (?5 IS NULL OR r.thread = ?5)
      AND (?6 IS NULL OR r.owner = ?6) AND (?9 IS NULL OR r.tenant = ?9)
      AND (r.parent = '' OR NOT EXISTS (SELECT 1 FROM runs AS p WHERE p.run = r.parent))
      AND (?3 IS NULL OR EXISTS (SELECT 1 FROM labels WHERE label = ?3 AND no = r.no))
"""
ENDED: Final = (
    _COLUMNS
    + "INDEXED BY runs_by_end "
    + _NEWEST
    + "WHERE r.phase IN ('cancelled', 'completed', 'failed') "
    + "AND r.at < ?1 AND (r.at, r.no) > (?7, ?8)"
    + _ENDED_FILTERS
    + "ORDER BY r.at, r.no LIMIT ?2"
)
CHILDREN: Final = "SELECT run FROM runs WHERE parent = ? AND parent <> ''"
TOMBSTONE: Final = """
    SELECT run, seq, hash, "by", at, reason, proof, tenant FROM tombstones WHERE run = ?
"""
ADD_TOMBSTONE: Final = """
    INSERT INTO tombstones (no, run, seq, hash, "by", at, reason, proof, tenant)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
DELETE_ROW: Final = "DELETE FROM runs WHERE no = ?"
DELETE_LABEL: Final = "DELETE FROM labels WHERE label = ? AND no = ?"
DELETE_SNAPSHOT: Final = "DELETE FROM snapshots WHERE no = ?"
DELETE_CURSORS: Final = """
    DELETE FROM cursors WHERE follower IN (SELECT follower FROM followers) AND no = ?
"""
DELETE_TARGETS: Final = "DELETE FROM push_targets WHERE run = ?"
NEXT_LEFTOVER: Final = "SELECT no FROM tombstones WHERE removed = 0 ORDER BY id LIMIT 1"
LEFTOVER_SIZES: Final = """
    SELECT seq, length(line) FROM entries WHERE no = ? ORDER BY seq LIMIT ?
"""
DELETE_ENTRIES: Final = "DELETE FROM entries WHERE no = ? AND seq <= ?"
DELETE_CHUNKS: Final = """
    DELETE FROM chunks WHERE hash IN (SELECT hash FROM chunk_uses WHERE no = ?1)
      AND NOT EXISTS (SELECT 1 FROM chunk_uses AS u WHERE u.hash = chunks.hash AND u.no <> ?1)
"""
DELETE_CHUNK_USES: Final = "DELETE FROM chunk_uses WHERE no = ?"
NEXT_RUN_FILE: Final = """
    SELECT o.hash, length(f.body) FROM run_files AS o JOIN files AS f USING (hash)
    WHERE o.no = ? LIMIT 1
"""
DELETE_RUN_FILE: Final = "DELETE FROM run_files WHERE no = ? AND hash = ?"
DELETE_UNUSED_FILE: Final = """
    DELETE FROM files WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM run_files WHERE hash = ?1)
"""
SET_REMOVED: Final = "UPDATE tombstones SET removed = 1 WHERE no = ?"
# Entries of run 0 keep the id of a removed entry until a newer entry has a higher one.
KEEP_LAST_ID: Final = """
    INSERT INTO entries (id, no, seq, line, hash)
    SELECT ?1, 0, ?1, x'', x'' WHERE ?1 > (SELECT coalesce(max(id), 0) FROM entries)
"""
DELETE_KEPT_IDS: Final = """
    DELETE FROM entries WHERE no = 0 AND id < (SELECT max(id) FROM entries)
"""
FREE_PAGES: Final = "PRAGMA freelist_count"
AUTO_VACUUM: Final = "PRAGMA auto_vacuum"
VACUUM_STEP: Final = "PRAGMA incremental_vacuum(64)"

# ── changes of other processes ───────────────────────────────────────────────
# The position of the change poller: see `change_poller.py`.
DATA_VERSION: Final = "PRAGMA data_version"
VERSION: Final = "PRAGMA user_version"
OLDEST_SUPPORTED: Final = "SELECT oldest FROM schema_support"
LAST_ENTRY_ID: Final = "SELECT coalesce(max(id), 0) FROM entries"
HALT_COUNTER: Final = "SELECT changes FROM halt_counter"
LAST_TOMBSTONE_ID: Final = "SELECT coalesce(max(id), 0) FROM tombstones"
DELETED_RUNS: Final = "SELECT run, seq + 1, id FROM tombstones WHERE id > ?"
# NOT INDEXED: to group by run, SQLite would walk the index of all entries in the file. Without
# the index it reads only the range of ids.
CHANGED_RUNS: Final = """
    SELECT r.run, max(e.seq), max(e.id)
    FROM entries AS e NOT INDEXED JOIN runs AS r ON r.no = e.no
    WHERE e.id > ? GROUP BY e.no
"""

# ── growing the log ──────────────────────────────────────────────────────────
# A blob that is larger than the page cache is spilled into the log: see `_grow_wal`.
CACHE_SIZE: Final = "PRAGMA cache_size"
SMALL_CACHE: Final = "PRAGMA cache_size = 10"
CREATE_FILLER: Final = "CREATE TABLE room (zeros BLOB)"
INSERT_FILLER: Final = "INSERT INTO room VALUES (zeroblob(?))"
