"""Every SQL statement that is sent, as a constant; the functions are in `migrations`.

Values are bound as parameters, never formatted into the text. `now` is NULL for the server's
own clock. `no` is the number of a run in order of creation.
"""

from typing import Final

# ── connections ──────────────────────────────────────────────────────────────
# One statement after connecting instead of startup options: poolers refuse options that they do
# not know. A synchronous_commit that the server's configuration has weakened is raised again; a
# stronger one is kept.
SET_UP_SESSION: Final = """
    SELECT set_config('synchronous_commit', CASE
               WHEN %(relaxed)s THEN 'off'
               WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
               ELSE current_setting('synchronous_commit')
           END, FALSE),
           set_config('statement_timeout', %(patience_ms)s::text, FALSE),
           set_config('lock_timeout', %(patience_ms)s::text, FALSE),
           set_config('idle_in_transaction_session_timeout', '5s', FALSE),
           set_config('default_transaction_isolation', 'read committed', FALSE),
           pg_backend_pid(),
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""
BACKEND_PID: Final = "SELECT pg_backend_pid()"

# ── migrations ───────────────────────────────────────────────────────────────
BEGIN: Final = "BEGIN"
COMMIT: Final = "COMMIT"
LOCK_SCHEMA: Final = """
    SELECT pg_advisory_xact_lock(
        1296647251, current_schema()::regnamespace::oid::bigint::bit(32)::integer
    )
"""
# Not `to_regclass`: its lookup may be cached from before the lock was taken, and then misses a
# table that another process has just created.
HAS_SCHEMA: Final = """
    SELECT EXISTS (
        SELECT FROM pg_class
        WHERE relname = 'midrun_schema'
          AND relnamespace = ANY(current_schemas(FALSE)::regnamespace[])
    )
"""
CREATE_SCHEMA_TABLE: Final = """
    CREATE TABLE midrun_schema (
        version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now()
    )
"""
SCHEMA_VERSION: Final = "SELECT coalesce(max(version), 0) FROM midrun_schema"
INSERT_VERSION: Final = "INSERT INTO midrun_schema (version) VALUES (%(version)s)"
SET_KEY: Final = """
    INSERT INTO midrun_chain_key (key_id) VALUES (%(key_id)s)
    ON CONFLICT DO NOTHING RETURNING key_id
"""
KEY: Final = "SELECT key_id FROM midrun_chain_key"
ENCRYPTION_KEYS: Final = "SELECT key_id FROM midrun_encryption_keys ORDER BY no"
ADD_ENCRYPTION_KEY: Final = """
    INSERT INTO midrun_encryption_keys (key_id) VALUES (%(key_id)s) ON CONFLICT DO NOTHING
"""
SERVER_INFO: Final = """
    SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(),
           coalesce(current_schema(), ''), current_setting('server_encoding')
"""

# ── writing ──────────────────────────────────────────────────────────────────
WRITE: Final = "SELECT midrun_write(%(requests)s::json, %(is_retry)s, %(now)s)"
# A notification need not survive a crash, so its commit does not wait for the disk.
ANNOUNCE: Final = """
    SELECT set_config('synchronous_commit', 'off', TRUE),
           pg_notify('midrun_' || midrun_schema_key(), payload)
    FROM midrun_payloads(%(lines)s) AS payload
"""
RUN_ROW_STATES: Final = """
    SELECT run, seq, hash, at, epoch, holder, head FROM midrun_runs WHERE run = ANY(%(runs)s)
"""
ADD_FILE: Final = """
    INSERT INTO midrun_files (hash, body) VALUES (%(hash)s, %(body)s) ON CONFLICT DO NOTHING
"""
DELETE_UNUSED_FILES: Final = """
    DELETE FROM midrun_files AS f
    WHERE hash = ANY(%(hashes)s)
      AND NOT EXISTS (SELECT FROM midrun_run_files AS r WHERE r.hash = f.hash)
"""
ADD_CHUNKS: Final = """
    INSERT INTO midrun_chunks (hash, body)
    SELECT * FROM unnest(%(hashes)s::bytea[], %(bodies)s::bytea[])
    ON CONFLICT (hash) DO NOTHING
"""
SAVE_SNAPSHOT: Final = """
    INSERT INTO midrun_snapshots AS kept (no, seq, hash, body)
    SELECT no, %(seq)s, %(hash)s, %(body)s FROM midrun_runs WHERE run = %(run)s
    ON CONFLICT (no) DO UPDATE SET seq = greatest(kept.seq, excluded.seq),
        hash = CASE WHEN excluded.seq >= kept.seq THEN excluded.hash ELSE kept.hash END,
        body = CASE WHEN excluded.seq >= kept.seq THEN excluded.body ELSE kept.body END
    RETURNING no
"""
UPSERT_HEARTBEAT: Final = """
    WITH at AS (SELECT coalesce(%(now)s, midrun_now()) AS now),
         forgotten AS (
             DELETE FROM midrun_holders USING at
             WHERE (beat_at + ttl < now - 86400000000 OR beat_at - ttl >= now)
               AND holder <> %(holder)s
         )
    INSERT INTO midrun_holders (holder, beat_at, ttl, lag)
    SELECT %(holder)s, now, %(ttl)s, %(lag)s FROM at
    ON CONFLICT (holder) DO UPDATE SET beat_at = excluded.beat_at, ttl = excluded.ttl,
                                       lag = excluded.lag
"""
DELETE_HOLDER: Final = "DELETE FROM midrun_holders WHERE holder = %(holder)s"
DROP_LEASES: Final = """
    WITH gone AS (DELETE FROM midrun_holders)
    UPDATE midrun_runs SET holder = %(holder)s WHERE holder <> ''
"""
INSERT_HALT: Final = """
    SELECT midrun_set_halt(%(scope)s, %(by)s, %(reason)s, %(tenant)s, %(now)s)
"""
DELETE_HALT: Final = "SELECT midrun_remove_halt(%(scope)s, %(tenant)s, %(now)s)"

# ── reading one run ──────────────────────────────────────────────────────────
ROW: Final = """
    SELECT run, head, seq, hash, epoch, holder, started_at, at FROM midrun_runs
    WHERE run = %(run)s
"""
_IS_VISIBLE: Final = """
      AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
      AND (%(owner)s::text IS NULL OR owner = %(owner)s OR team = ANY(%(teams)s::text[]))
"""
VISIBLE_ROW: Final = ROW + _IS_VISIBLE
INDEXED_ROW: Final = """
    SELECT run, head, seq, hash, epoch, holder, started_at, at,
           phase, agent, thread, parent, owner, tenant, team, attention, wake_at,
           ARRAY(SELECT label FROM midrun_labels WHERE no = r.no)
    FROM midrun_runs AS r WHERE run = %(run)s
"""
# The run's row, then its entries: one statement, so one snapshot of both. The entry at `after`
# itself comes along, for its hash.
JOURNAL: Final = """
    WITH its AS MATERIALIZED (
        SELECT no, seq, hash, head, at, epoch, holder FROM midrun_runs WHERE run = %(run)s
    )
    SELECT seq, hash, head, at, epoch, holder FROM its
    UNION ALL
    (SELECT e.seq, e.hash, e.line, NULL, NULL, NULL
     FROM its JOIN midrun_entries AS e ON e.no = its.no
     WHERE e.seq >= %(after)s AND e.seq <= least(its.seq, %(end)s)
     ORDER BY e.seq)
"""
FILE: Final = """
    SELECT f.body FROM midrun_runs AS r
    LEFT JOIN (midrun_run_files AS o JOIN midrun_files AS f USING (hash))
        ON o.no = r.no AND o.hash = %(hash)s
    WHERE r.run = %(run)s
"""
CHUNKS: Final = "SELECT hash, body FROM midrun_chunks WHERE hash = ANY(%(hashes)s)"
SNAPSHOT: Final = """
    SELECT s.seq, s.hash, s.body
    FROM midrun_runs AS r
    LEFT JOIN (
        midrun_snapshots AS s
        JOIN midrun_entries AS e ON e.no = s.no AND e.seq = s.seq AND e.hash = s.hash
    ) ON s.no = r.no
    WHERE r.run = %(run)s
"""

# ── lists ────────────────────────────────────────────────────────────────────
# Sent without a prepared plan. Planned with its actual values, a filter that is NULL disappears
# from the plan.
LIST_RUNS: Final = """
    SELECT no, run, head, seq, hash, epoch, holder, started_at, at FROM midrun_runs AS r
    WHERE no < %(before)s
      AND (%(phases)s::text[] IS NULL OR phase = ANY(%(phases)s))
      AND (%(agent)s::text IS NULL OR agent = %(agent)s)
      AND (%(thread)s::text IS NULL OR (thread = %(thread)s AND thread <> ''))
      AND (%(parent)s::text IS NULL OR (parent = %(parent)s AND parent <> ''))
      AND (%(attention)s::boolean IS NULL OR attention <> '')
      AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
      AND (%(decider)s::text IS NULL OR owner = %(decider)s OR team = ANY(%(teams)s::text[])
           OR %(decider)s IN (SELECT json_array_elements_text(
               convert_from(head, 'UTF8')::json -> 'addressees'
           )))
"""
# Conditions on another table are added only if they apply. As one side of an OR, the planner
# could not turn them into a join. It would read the rows of all runs to find a few that match.
LIST_LABEL: Final = """
      AND no IN (SELECT no FROM midrun_labels WHERE label = %(label)s AND no < %(before)s)
"""
LIST_WORDS: Final = """
      AND no IN (SELECT no FROM midrun_search WHERE words @@ %(words)s::tsquery)
"""
# With teams, the index of owners does not help.
LIST_OWNER: Final = "      AND owner = %(owner)s AND owner <> ''\n"
LIST_OWNER_OR_TEAMS: Final = """
      AND ((owner = %(owner)s AND owner <> '') OR team = ANY(%(teams)s::text[]))
"""
LIST_ORDER: Final = " ORDER BY no DESC LIMIT %(limit)s"
# A cursor of another tenant is unknown.
RUN_NUMBER: Final = """
    SELECT no FROM midrun_runs
    WHERE run = %(run)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    UNION ALL SELECT no FROM midrun_tombstones
    WHERE run = %(run)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
"""
# A quota is checked at each start of a run, so this reads the runs of the period, and not all
# that are stored. Sent without a prepared plan, as LIST_RUNS.
USAGE: Final = """
    SELECT (
               SELECT count(*) FROM midrun_runs
               WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting',
                               'cancelling', 'failed', 'halted')
                 AND tenant = %(tenant)s AND (%(owner)s::text IS NULL OR owner = %(owner)s)
           ),
           count(*), coalesce(sum((its ->> 'cost')::bigint), 0)::bigint,
           coalesce(sum((its ->> 'tokens')::bigint), 0)::bigint, min(started_at)
    FROM midrun_runs, LATERAL (SELECT convert_from(head, 'UTF8')::json) AS h (its)
    WHERE tenant = %(tenant)s AND started_at >= %(since)s
      AND (%(owner)s::text IS NULL OR (owner = %(owner)s AND owner <> ''))
"""
STORED_BYTES: Final = """
    SELECT coalesce(sum((
               SELECT coalesce(sum(length(line)), 0) FROM midrun_entries AS e WHERE e.no = r.no
           ) + (
               SELECT coalesce(sum(length(f.body)), 0) FROM midrun_run_files AS o
               JOIN midrun_files AS f USING (hash) WHERE o.no = r.no
           )), 0)::bigint
    FROM midrun_runs AS r
    WHERE tenant = %(tenant)s
      AND (%(owner)s::text IS NULL OR (owner = %(owner)s AND owner <> ''))
"""
# Sent without a prepared plan, as LIST_RUNS.
COUNTS: Final = """
    SELECT phase, count(*) FROM midrun_runs
    WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) GROUP BY phase
"""
OPEN_RUNS: Final = """
    SELECT agent, phase, count(*), coalesce(sum(asks), 0)::bigint, min(at),
           min(at) FILTER (WHERE asks > 0)
    FROM midrun_runs,
         LATERAL (SELECT (convert_from(head, 'UTF8')::json ->> 'asks')::bigint) AS h (asks)
    WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting', 'cancelling',
                    'failed', 'halted')
    GROUP BY agent, phase ORDER BY agent, phase
"""
DRIVABLE: Final = """
    SELECT run FROM midrun_runs
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling')
      AND (%(agents)s::text[] IS NULL OR agent = ANY(%(agents)s))
      AND NOT EXISTS (
          SELECT FROM midrun_holders AS h
          WHERE h.holder = midrun_runs.holder
            AND abs((SELECT coalesce(%(now)s, midrun_now())) - h.beat_at) < h.ttl
      )
    ORDER BY no LIMIT %(limit)s
"""
DUE: Final = """
    SELECT run FROM midrun_runs WHERE wake_at <= (SELECT coalesce(%(now)s, midrun_now()))
    ORDER BY wake_at, no LIMIT %(limit)s
"""
# Of two processes that have read the same end, one inserts the next number. The other waits for
# its commit, inserts nothing, and reads the end again.
ADD_AUDIT: Final = """
    WITH added AS (
        INSERT INTO midrun_audit (id, at, tenant, body, hash)
        VALUES (%(number)s, %(at)s, %(tenant)s, %(body)s, %(hash)s)
        ON CONFLICT (id) DO NOTHING RETURNING id
    )
    INSERT INTO midrun_audit_end (one, no, hash, seal)
    SELECT TRUE, id, %(hash)s, %(seal)s FROM added
    ON CONFLICT (one) DO UPDATE
    SET no = excluded.no, hash = excluded.hash, seal = excluded.seal
    RETURNING no
"""
AUDIT_END: Final = """
    SELECT coalesce(%(now)s, midrun_now()), e.no, e.hash, e.seal, l.id, l.hash
    FROM (SELECT) AS one
    LEFT JOIN midrun_audit_end AS e ON TRUE
    LEFT JOIN (SELECT id, hash FROM midrun_audit ORDER BY id DESC LIMIT 1) AS l ON TRUE
"""
AUDIT_LINES: Final = """
    SELECT id, at, tenant, body, hash FROM midrun_audit WHERE id > %(after)s
    ORDER BY id LIMIT %(limit)s
"""
AUDIT: Final = """
    SELECT id, at, body FROM midrun_audit
    WHERE id > %(after)s AND at >= %(since)s AND at < %(until)s
      AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    ORDER BY id LIMIT %(limit)s
"""
HALTS: Final = """
    SELECT scope, set_by, reason, at, tenant FROM midrun_halts
    WHERE (%(tenant)s::text IS NULL OR tenant IN ('*', %(tenant)s)) ORDER BY at, no
"""
HOLDERS: Final = """
    SELECT holder, lag FROM midrun_holders
    WHERE abs((SELECT coalesce(%(now)s, midrun_now())) - beat_at) < ttl ORDER BY holder
"""

# ── deletion ─────────────────────────────────────────────────────────────────
ENDED: Final = """
    SELECT no, run, head, seq, hash, epoch, holder, started_at, at FROM midrun_runs AS r
    WHERE ended_at IS NOT NULL AND ended_at < %(before)s
      AND (ended_at, no) > (%(after_at)s, %(after_no)s)
      AND (%(agent)s::text IS NULL OR agent = %(agent)s)
      AND (%(thread)s::text IS NULL OR (thread = %(thread)s AND thread <> ''))
      AND (%(owner)s::text IS NULL OR (owner = %(owner)s AND owner <> ''))
      AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
      AND (parent = '' OR NOT EXISTS (SELECT FROM midrun_runs AS p WHERE p.run = r.parent))
      AND (%(label)s::text IS NULL OR EXISTS (
          SELECT FROM midrun_labels AS l WHERE l.no = r.no AND l.label = %(label)s
      ))
    ORDER BY ended_at, no LIMIT %(limit)s
"""
# The rows of runs and all their descendants. `root` is the run that the caller named.
FAMILIES: Final = """
    WITH RECURSIVE family AS (
        SELECT r.run AS root, r.* FROM midrun_runs AS r
        WHERE r.run = ANY(%(runs)s) AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s)
        UNION
        SELECT f.root, r.* FROM family AS f
        JOIN midrun_runs AS r ON r.parent = f.run AND r.parent <> ''
    )
    SELECT root, run, seq, hash, at, epoch, holder, head,
           run = root AND EXISTS (SELECT FROM midrun_runs AS p WHERE p.run = family.parent)
    FROM family ORDER BY root, run = root DESC, no
"""
DELETE_RUNS: Final = "SELECT midrun_delete(%(families)s::json, %(now)s)"
REMOVE_LEFTOVERS: Final = "SELECT midrun_remove_leftovers(%(max_entries)s)"
TOMBSTONE: Final = """
    SELECT run, seq, hash, set_by, at, reason, proof, tenant FROM midrun_tombstones
    WHERE run = %(run)s
"""

# ── notifications between processes ──────────────────────────────────────────
LISTEN: Final = "SELECT midrun_listen(%(channel)s)"
NOTIFY: Final = "SELECT pg_notify('midrun_' || midrun_schema_key() || %(channel)s, %(message)s)"
CURRENT_SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"
# The rows whose transaction the last snapshot could not see. The first condition only narrows
# the index scan: everything below a snapshot's xmin was visible in it.
NOTICES_SINCE_SNAPSHOT: Final = """
    SELECT pg_current_snapshot()::text, array_agg(payload ORDER BY xid)
    FROM midrun_notices
    WHERE xid >= pg_snapshot_xmin(%(seen)s::pg_snapshot)
      AND NOT pg_visible_in_snapshot(xid, %(seen)s::pg_snapshot)
"""
ALL_NOTICES: Final = (
    "SELECT pg_current_snapshot()::text, array_agg(payload ORDER BY xid) FROM midrun_notices"
)
ALL_RUNS: Final = "SELECT run, seq FROM midrun_runs"
DELETE_OLD_NOTICES: Final = """
    DELETE FROM midrun_notices WHERE ctid IN (
        SELECT ctid FROM midrun_notices
        WHERE at < midrun_now() - %(kept)s FOR UPDATE SKIP LOCKED LIMIT 10000
    )
"""

# ── followers ────────────────────────────────────────────────────────────────
# A run up to a follower's `since` that has no cursor has not grown since the follower came. The
# follower counts as being at the run's current end.
ACQUIRE_LEADERSHIP: Final = (
    "SELECT midrun_acquire_leadership(%(follower)s, %(holder)s, %(ttl)s, %(now)s)"
)
RELEASE_LEADERSHIP: Final = """
    UPDATE midrun_followers SET holder = '', until = 0
    WHERE follower = %(follower)s AND holder = %(holder)s
"""
SELECT_SINCE: Final = "SELECT since FROM midrun_followers WHERE follower = %(follower)s"
# Sent without a prepared plan: the number of runs after `since` changes the best one.
SELECT_BEHIND: Final = """
    SELECT run, seq, note FROM (
        SELECT r.at, r.no, r.run, c.seq, c.note
        FROM midrun_cursors AS c JOIN midrun_runs AS r ON r.no = c.no AND r.seq > c.seq
        WHERE c.follower = %(follower)s AND c.no <= %(since)s AND r.no <= %(since)s
          AND r.phase NOT IN ('queued', 'running', 'pausing', 'cancelling')
        UNION ALL
        SELECT r.at, r.no, r.run, coalesce(c.seq, 0), coalesce(c.note, '')
        FROM midrun_runs AS r
        LEFT JOIN midrun_cursors AS c ON c.follower = %(follower)s AND c.no = r.no
        WHERE r.no > %(since)s AND r.seq > coalesce(c.seq, 0)
          AND r.phase NOT IN ('queued', 'running', 'pausing', 'cancelling')
    ) AS behind (at, no, run, seq, note)
    ORDER BY at, no LIMIT %(limit)s
"""
SELECT_CURSOR: Final = """
    SELECT coalesce(c.seq, CASE WHEN r.no <= f.since THEN r.seq ELSE 0 END),
           coalesce(c.note, '')
    FROM midrun_runs AS r
    LEFT JOIN midrun_followers AS f ON f.follower = %(follower)s
    LEFT JOIN midrun_cursors AS c ON c.follower = %(follower)s AND c.no = r.no
    WHERE r.run = %(run)s
"""
PUT_TARGET: Final = """
    INSERT INTO midrun_push_targets (run, id, body) VALUES (%(run)s, %(id)s, %(body)s)
    ON CONFLICT (run, id) DO UPDATE SET body = excluded.body
"""
REMOVE_TARGET: Final = "DELETE FROM midrun_push_targets WHERE run = %(run)s AND id = %(id)s"
SELECT_TARGETS: Final = """
    SELECT id, body FROM midrun_push_targets WHERE run = %(run)s ORDER BY id
"""
# The run's row is locked first, as an append does: both may be about to insert its cursor.
ADVANCE_CURSOR: Final = """
    WITH its AS (SELECT no, seq FROM midrun_runs WHERE run = %(run)s FOR KEY SHARE),
         moved AS (
             INSERT INTO midrun_cursors AS kept (follower, no, seq, note)
             SELECT %(follower)s, no, %(seq)s, %(note)s FROM its
             WHERE %(seq)s >= seq OR no > (
                       SELECT since FROM midrun_followers WHERE follower = %(follower)s
                   ) OR EXISTS (
                       SELECT FROM midrun_cursors AS c
                       WHERE c.follower = %(follower)s AND c.no = its.no
                   )
             ON CONFLICT (follower, no) DO UPDATE SET seq = excluded.seq, note = excluded.note
             WHERE excluded.seq >= kept.seq
         )
    SELECT no FROM its
"""
