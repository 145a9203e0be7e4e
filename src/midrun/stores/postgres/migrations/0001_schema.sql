-- Schema 1. All names begin with midrun_, so that the store can share a database with other
-- applications. Text that is only compared has the collation "C", the fastest and the same
-- on every server. Times are microseconds since 1970.

CREATE TABLE midrun_runs (
    no         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in order of creation
    run        text   COLLATE "C" NOT NULL UNIQUE,
    seq        bigint NOT NULL,
    hash       bytea  NOT NULL,
    at         bigint NOT NULL,                   -- of the newest entry
    started_at bigint NOT NULL,
    epoch      bigint NOT NULL,
    holder     text   COLLATE "C" NOT NULL,       -- empty: no lease is held
    head       bytea  NOT NULL,                   -- JSON; the columns below are its indexed fields
    phase      text   COLLATE "C" NOT NULL,
    attention  text   COLLATE "C" NOT NULL,
    wake_at    bigint,
    agent      text   COLLATE "C" NOT NULL,
    thread     text   COLLATE "C" NOT NULL,
    parent     text   COLLATE "C" NOT NULL,
    owner      text   COLLATE "C" NOT NULL,       -- the user who started it
    tenant     text   COLLATE "C" NOT NULL,       -- empty: the default tenant
    team       text   COLLATE "C" NOT NULL,       -- users of this team see the run; empty: none
    ended_at   bigint                             -- `at`, while the run may be deleted
) WITH (fillfactor = 70);  -- an append that changes no indexed column stays on its page

CREATE INDEX midrun_runs_by_phase ON midrun_runs (phase, no);
CREATE INDEX midrun_runs_by_agent ON midrun_runs (agent, no);
CREATE INDEX midrun_runs_by_owner ON midrun_runs (owner, no) WHERE owner <> '';
CREATE INDEX midrun_runs_by_tenant ON midrun_runs (tenant, no) WHERE tenant <> '';
CREATE INDEX midrun_runs_by_start ON midrun_runs (tenant, started_at);
CREATE INDEX midrun_runs_by_thread ON midrun_runs (thread, no) WHERE thread <> '';
CREATE INDEX midrun_runs_by_parent ON midrun_runs (parent, no) WHERE parent <> '';
CREATE INDEX midrun_runs_by_attention ON midrun_runs (no) WHERE attention <> '';
CREATE INDEX midrun_runs_by_wake ON midrun_runs (wake_at, no) WHERE wake_at IS NOT NULL;
CREATE INDEX midrun_runs_to_drive ON midrun_runs (no)
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling');
-- For the retention. Not on `at`: every append changes that, and could not stay on its page.
CREATE INDEX midrun_runs_by_end ON midrun_runs (ended_at, no) WHERE ended_at IS NOT NULL;
-- Only a small part of all runs is held. An append does not change the holder.
CREATE INDEX midrun_runs_held ON midrun_runs (holder) WHERE holder <> '';

CREATE TABLE midrun_labels (
    label text   COLLATE "C" NOT NULL,
    no    bigint NOT NULL REFERENCES midrun_runs,
    PRIMARY KEY (label, no)
);
CREATE INDEX midrun_labels_of_run ON midrun_labels (no);

-- The words of each run: see `stores/search.py`. A table of its own, because every append writes a
-- new version of the row in midrun_runs.
CREATE TABLE midrun_search (
    no    bigint   PRIMARY KEY REFERENCES midrun_runs ON DELETE CASCADE,
    words tsvector NOT NULL
);
CREATE INDEX midrun_search_by_words ON midrun_search USING gin (words);

-- Lines are stored as they were hashed. jsonb would reorder and rewrite them.
-- `no` refers to midrun_runs. It has no foreign key, because every append would pay for the check.
CREATE TABLE midrun_entries (
    no   bigint NOT NULL,
    seq  bigint NOT NULL,
    line bytea  NOT NULL,
    hash bytea  NOT NULL,
    PRIMARY KEY (no, seq)
);

CREATE FUNCTION midrun_refuse_entry_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries are never changed and never removed';
END
$$;

CREATE TRIGGER midrun_refuse_entry_change BEFORE UPDATE OR TRUNCATE ON midrun_entries
    FOR EACH STATEMENT EXECUTE FUNCTION midrun_refuse_entry_change();

-- The runs that were deleted. `removed` is true once all their entries are gone, too.
CREATE TABLE midrun_tombstones (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    no      bigint NOT NULL UNIQUE,            -- the number that the run had
    run     text   COLLATE "C" NOT NULL UNIQUE,
    seq     bigint NOT NULL,                   -- this and the next: of the last entry
    hash    bytea  NOT NULL,
    set_by  text   NOT NULL,
    at      bigint NOT NULL,
    reason  text   NOT NULL,
    tenant  text   COLLATE "C" NOT NULL,
    proof   bytea  NOT NULL,                   -- links the columns above to `hash`
    removed boolean NOT NULL DEFAULT FALSE
);
CREATE INDEX midrun_tombstones_with_leftovers ON midrun_tombstones (id) WHERE NOT removed;

CREATE FUNCTION midrun_check_entry_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM (SELECT DISTINCT no FROM gone) AS g
        WHERE NOT EXISTS (
            SELECT FROM midrun_tombstones AS t WHERE t.no = g.no AND NOT t.removed
        )
    ) THEN
        RAISE EXCEPTION 'entries are never removed before their run has a tombstone';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER midrun_check_entry_removal AFTER DELETE ON midrun_entries
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION midrun_check_entry_removal();

CREATE FUNCTION midrun_refuse_tombstone_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'tombstones are never changed and never removed';
END
$$;

CREATE TRIGGER midrun_refuse_tombstone_change
    BEFORE UPDATE OF no, run, seq, hash, set_by, at, reason, tenant, proof OR DELETE OR TRUNCATE
    ON midrun_tombstones
    FOR EACH STATEMENT EXECUTE FUNCTION midrun_refuse_tombstone_change();

-- Parts of the first lines of runs, shared by all runs of a thread: see `stores/chunks.py`. They
-- are written before the run that refers to them. If that run is then refused, its chunks stay
-- and are shared by the next run with the same history.
CREATE TABLE midrun_chunks (
    hash bytea PRIMARY KEY,       -- SHA-256 of the body
    body bytea NOT NULL
);

-- Files of runs, each stored once, and the runs whose entries name them. A body is written before
-- the entry that names it, and that entry is written only if the body is there (`midrun_write`).
CREATE TABLE midrun_files (
    hash bytea PRIMARY KEY,       -- SHA-256 of the body
    body bytea NOT NULL
);
ALTER TABLE midrun_files ALTER COLUMN body SET STORAGE EXTERNAL;  -- images are compressed already

CREATE TABLE midrun_run_files (
    no   bigint NOT NULL,         -- refers to midrun_runs; of a deleted run, it is removed later
    hash bytea  NOT NULL REFERENCES midrun_files,
    PRIMARY KEY (no, hash)
);
CREATE INDEX midrun_run_files_by_hash ON midrun_run_files (hash);

-- The runs that use each chunk. A chunk without one is removed with the last run that used it.
CREATE TABLE midrun_chunk_uses (
    no   bigint NOT NULL,
    hash bytea  NOT NULL,
    PRIMARY KEY (no, hash)
);
CREATE INDEX midrun_chunk_uses_by_hash ON midrun_chunk_uses (hash);

-- The id of the key of the hash chains: one row, empty if there is no key, never changed.
CREATE TABLE midrun_chain_key (
    one    boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    key_id text    COLLATE "C" NOT NULL
);

-- The ids of the keys with which entries were encrypted, in the order of their first use.
CREATE TABLE midrun_encryption_keys (
    no     bigint GENERATED ALWAYS AS IDENTITY,
    key_id text   COLLATE "C" PRIMARY KEY
);

CREATE TABLE midrun_snapshots (
    no   bigint PRIMARY KEY REFERENCES midrun_runs,
    seq  bigint NOT NULL,
    hash bytea  NOT NULL,
    body bytea  NOT NULL
);

CREATE TABLE midrun_holders (
    holder  text   COLLATE "C" PRIMARY KEY,
    beat_at bigint NOT NULL,      -- alive while |now - beat_at| < ttl: after the clock was
    ttl     bigint NOT NULL,      -- set back, a dead holder must not count as alive
    lag     double precision NOT NULL
) WITH (fillfactor = 50);

-- The audit log: actions of people that no journal records. The body is JSON. The hash links each
-- line to all lines before it.
CREATE TABLE midrun_audit (
    id     bigint PRIMARY KEY,       -- from 1, without gaps
    at     bigint NOT NULL,
    tenant text   COLLATE "C" NOT NULL,
    body   bytea  NOT NULL,
    hash   bytea  NOT NULL
);
CREATE INDEX midrun_audit_by_tenant ON midrun_audit (tenant, id) WHERE tenant <> '';

-- The last line of the audit log, in one row, so that a missing end is noticed. The seal proves
-- the row, if the store has a chain key.
CREATE TABLE midrun_audit_end (
    one  boolean PRIMARY KEY CHECK (one),
    no   bigint  NOT NULL,
    hash bytea   NOT NULL,
    seal bytea   NOT NULL
);

CREATE FUNCTION midrun_refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit entries are never changed or removed';
END
$$;

CREATE TRIGGER midrun_refuse_audit_change BEFORE UPDATE OR DELETE OR TRUNCATE ON midrun_audit
FOR EACH STATEMENT EXECUTE FUNCTION midrun_refuse_audit_change();

CREATE TABLE midrun_halts (
    no     bigint GENERATED ALWAYS AS IDENTITY,
    scope  text   COLLATE "C" NOT NULL,
    set_by text   NOT NULL,
    reason text   NOT NULL,
    at     bigint NOT NULL,
    tenant text   COLLATE "C" NOT NULL,        -- '*': all tenants
    PRIMARY KEY (tenant, scope)
);

-- Followers, and the cursor of each follower in each run. When a follower first starts, the
-- existing entries of all runs up to number `since` count as delivered. Such a run needs no cursor
-- until it grows; then it gets one for its old seq. Of a run after `since` without a cursor,
-- nothing was delivered.
CREATE TABLE midrun_followers (
    follower text   COLLATE "C" PRIMARY KEY,
    holder   text   COLLATE "C" NOT NULL,  -- the process that is the leader; empty: none
    until    bigint NOT NULL,
    since    bigint NOT NULL
);

CREATE TABLE midrun_cursors (
    follower text   COLLATE "C" NOT NULL REFERENCES midrun_followers,
    no       bigint NOT NULL,              -- refers to midrun_runs; to check a foreign key,
    seq      bigint NOT NULL,              -- Postgres would search all cursors for a deleted run
    note     text   NOT NULL,
    PRIMARY KEY (follower, no)
);

-- Addresses that clients have registered for a run. A target may be stored before its run is
-- started, so it has the name of the run and not its number.
CREATE TABLE midrun_push_targets (
    run  text  COLLATE "C" NOT NULL,
    id   text  COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (run, id)
);

-- Notifications for processes that missed them: a row for each commit, kept for a while. The
-- transaction number is not a position, because an earlier transaction may commit later. Readers
-- ask for the rows that were not visible to their last query.
CREATE TABLE midrun_notices (
    xid     xid8   NOT NULL,
    at      bigint NOT NULL,
    payload text   NOT NULL       -- as in NOTIFY: on each line a run and its seq, or "halts"
);
CREATE INDEX midrun_notices_by_xid ON midrun_notices (xid);

-- ── functions that others use ────────────────────────────────────────────────────────────
-- Functions in plpgsql cache their plans; those in SQL can be inlined into queries.

-- The store's clock, in microseconds since 1970.
CREATE FUNCTION midrun_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Distinguishes the locks and channels of this schema from those of other schemas.
CREATE FUNCTION midrun_schema_key() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT 'midrun_runs'::regclass::oid::bigint::bit(32)::integer
$$;

CREATE FUNCTION midrun_is_alive(its_holder text, now bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM midrun_holders WHERE holder = its_holder AND abs(now - beat_at) < ttl
    );
END
$$;

-- Returns `at` for a run in a phase in which it may be deleted, else NULL.
CREATE FUNCTION midrun_end_time(phase text, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN phase IN ('cancelled', 'completed', 'failed') THEN at END
$$;

-- Groups lines into payloads for NOTIFY, which are limited to 8000 bytes.
CREATE FUNCTION midrun_payloads(lines text[]) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(line, E'\n') FROM unnest(lines) WITH ORDINALITY AS l (line, place)
    GROUP BY (place - 1) / 80  -- a line has 96 bytes at most
$$;

-- Returns a scope of `limits` whose limit is reached by other runs with a live holder, or NULL.
-- The caller holds the locks of all these scopes.
CREATE FUNCTION midrun_full_scope(limits json, own_no bigint, now bigint) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT scope FROM json_each_text(limits) AS l (scope, most)
        WHERE most::bigint <= (
            SELECT count(*) FROM midrun_runs AS r
            WHERE holder <> '' AND no <> own_no
              AND holder IN (SELECT holder FROM midrun_holders WHERE abs(now - beat_at) < ttl)
              AND CASE
                  WHEN scope = 'all' THEN TRUE
                  WHEN scope LIKE 'agent:%' THEN agent = substr(scope, 7)
                  WHEN scope LIKE 'tenant:%' THEN tenant = substr(scope, 8)
                  ELSE EXISTS (
                      SELECT FROM midrun_labels AS l
                      WHERE l.no = r.no AND l.label = substr(scope, 7)
                  )
              END
        )
        LIMIT 1
    );
END
$$;

-- Returns the place and the name of the first bound of `quotas` that is reached; NULL if none is.
-- Each count ends at its bound. The caller holds the locks of all these quotas.
CREATE FUNCTION midrun_full_quota(quotas json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    quota record;
BEGIN
    FOR quota IN
        SELECT place - 1 AS place, its ->> 'tenant' AS tenant,
               coalesce(its ->> 'owner', '') AS owner, (its ->> 'open_runs')::bigint AS open_runs,
               (its ->> 'recent_runs')::bigint AS recent_runs, (its ->> 'since')::bigint AS since
        FROM json_array_elements(quotas) WITH ORDINALITY AS q (its, place) ORDER BY place
    LOOP
        IF quota.open_runs <= (SELECT count(*) FROM (
            SELECT FROM midrun_runs AS r
            WHERE phase IN ('queued', 'running', 'pausing', 'paused', 'waiting', 'cancelling',
                            'failed', 'halted')
              AND r.tenant = quota.tenant AND (quota.owner = '' OR r.owner = quota.owner)
            LIMIT quota.open_runs
        ) AS found) THEN
            RETURN json_build_object('place', quota.place, 'name', 'open_runs');
        END IF;
        IF quota.recent_runs <= (SELECT count(*) FROM (
            SELECT FROM midrun_runs AS r
            WHERE r.tenant = quota.tenant AND started_at >= quota.since
              AND (quota.owner = '' OR r.owner = quota.owner)
            LIMIT quota.recent_runs
        ) AS found) THEN
            RETURN json_build_object('place', quota.place, 'name', 'recent_runs');
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- ── writing ──────────────────────────────────────────────────────────────────────────────

-- Executes the write requests of one process in one transaction. `requests` is a list of new runs
-- and appends, in the order in which rows are locked. Each names the seq after which it was
-- decided. If the run has another seq by now, the request is skipped, and its answer is the
-- current row.
--
-- With `is_retry`, the answer to the same list was lost: a request whose entries are stored
-- already, with the same seq and hash, counts as done.
--
-- No transaction stays open between two messages of the client, so a frozen process holds no
-- lock. The client notifies other processes after the commit: if the commit of the entries
-- contained a NOTIFY, all such commits of the cluster would wait for each other's disk. A process
-- that missed a notification finds it in midrun_notices.
CREATE FUNCTION midrun_write(requests json, is_retry boolean, given_now bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    request    record;
    run_row    midrun_runs;
    halt       midrun_halts;
    tombstone  midrun_tombstones;
    full_scope text;
    full_quota json;
    lost_file  text;
    chunk_count bigint;
    last_since bigint;
    applies    boolean;
    alive      boolean;
    chunked    boolean;
    now        bigint := coalesce(given_now, midrun_now());
    answers    json[] := '{}';
    changes    text[] := '{}';
BEGIN
    -- Writers share this lock; setting or lifting a halt takes it exclusively. So a start is
    -- either committed before the halt, or sees it.
    PERFORM pg_advisory_xact_lock_shared(1296647250, midrun_schema_key());
    -- Leases of a limited scope are taken one after the other, so that each counts the one before.
    -- So are runs created under one quota. The locks are taken before any row lock and in one
    -- order: no deadlock. The test for the text is cheap: limits and quotas are rare, and the list
    -- may be long.
    IF strpos(requests::text, '"limits":{') > 0 OR strpos(requests::text, '"quotas":[') > 0 THEN
        PERFORM pg_advisory_xact_lock(1296647252, key) FROM (
            SELECT hashtext(midrun_schema_key() || ' ' || scope) AS key
            FROM json_array_elements(requests) AS r, json_object_keys(r -> 'limits') AS scope
            UNION
            SELECT hashtext(concat_ws(' ', midrun_schema_key(), 'quota', q ->> 'tenant',
                                      q ->> 'owner'))
            FROM json_array_elements(requests) AS r, json_array_elements(r -> 'quotas') AS q
            ORDER BY key
        ) AS scopes;
    END IF;
    last_since := (SELECT max(since) FROM midrun_followers);  -- after the lock of a new follower
    FOR request IN
        SELECT * FROM json_to_recordset(requests) AS r (
            run text, "after" bigint, seq bigint, hash text, at bigint, lines json,
            starts boolean, taker text, limits json, epoch bigint, holder text, head text,
            phase text, attention text, wake_at bigint, agent text, thread text, parent text,
            owner text, tenant text, team text, labels json, chunks text[], started_at bigint,
            files json, words text, quotas json
        )
    LOOP
        applies := FALSE;
        alive := FALSE;
        halt := NULL;
        full_scope := NULL;
        full_quota := NULL;
        lost_file := NULL;
        IF request.files IS NOT NULL THEN
            -- The locks keep a body until the end of this transaction.
            PERFORM FROM midrun_files WHERE hash IN (
                SELECT decode(f, 'hex') FROM json_array_elements_text(request.files) AS f
            ) ORDER BY hash FOR KEY SHARE;
            lost_file := (
                SELECT f FROM json_array_elements_text(request.files) AS f
                WHERE NOT EXISTS (SELECT FROM midrun_files WHERE hash = decode(f, 'hex'))
                LIMIT 1
            );
        END IF;
        chunked := TRUE;
        IF request."after" = 0 AND request.chunks IS NOT NULL THEN
            -- The client has stored the chunks. A deletion may have removed one of them since; a
            -- lock keeps the others. If one is missing, the client stores all of them again.
            PERFORM FROM midrun_chunks
            WHERE hash IN (SELECT decode(chunk, 'hex') FROM unnest(request.chunks) AS chunk)
            FOR KEY SHARE;
            GET DIAGNOSTICS chunk_count = ROW_COUNT;
            chunked := chunk_count = cardinality(request.chunks);
        END IF;
        IF request.quotas IS NOT NULL AND NOT EXISTS (
            SELECT FROM midrun_runs WHERE run = request.run
        ) THEN
            full_quota := midrun_full_quota(request.quotas);
        END IF;
        IF request."after" = 0 AND chunked AND lost_file IS NULL AND full_quota IS NULL THEN
            INSERT INTO midrun_runs (run, seq, hash, at, started_at, epoch, holder, head, phase,
                                     attention, wake_at, agent, thread, parent, owner, tenant,
                                     team, ended_at)
            VALUES (request.run, request.seq, decode(request.hash, 'hex'), request.at,
                    request.started_at, request.epoch, '', convert_to(request.head, 'UTF8'),
                    request.phase, request.attention, request.wake_at, request.agent,
                    request.thread, request.parent, request.owner, request.tenant, request.team,
                    midrun_end_time(request.phase, request.at))
            ON CONFLICT (run) DO NOTHING
            RETURNING * INTO run_row;
            applies := FOUND;
            -- Looked up after the insert, which has waited for a deletion that was under way.
            IF applies AND EXISTS (
                SELECT FROM midrun_tombstones WHERE run = request.run
            ) THEN
                DELETE FROM midrun_runs WHERE no = run_row.no;
                applies := FALSE;
            END IF;
        END IF;
        IF applies THEN
            INSERT INTO midrun_chunk_uses (no, hash)
            SELECT run_row.no, decode(chunk, 'hex') FROM unnest(request.chunks) AS chunk;
            INSERT INTO midrun_labels (label, no)
            SELECT DISTINCT label, run_row.no
            FROM json_array_elements_text(request.labels) AS label;
        ELSE
            SELECT * INTO run_row FROM midrun_runs WHERE run = request.run FOR UPDATE;
            IF run_row.holder NOT IN ('', request.taker) THEN
                alive := midrun_is_alive(run_row.holder, now);
            END IF;
            applies := coalesce(run_row.seq = request."after", FALSE) AND NOT alive
                       AND lost_file IS NULL;
            IF applies AND request.starts AND EXISTS (SELECT FROM midrun_halts) THEN
                SELECT * INTO halt FROM midrun_halts
                WHERE tenant IN ('*', run_row.tenant) AND (
                    scope IN ('all', 'agent:' || run_row.agent, 'run:' || run_row.run)
                    OR scope IN (
                        SELECT 'label:' || label FROM midrun_labels WHERE no = run_row.no
                    )
                )
                ORDER BY no LIMIT 1;
                applies := NOT FOUND;
            END IF;
            IF applies AND request.limits IS NOT NULL AND run_row.holder <> request.taker THEN
                full_scope := midrun_full_scope(request.limits, run_row.no, now);
                applies := full_scope IS NULL;
            END IF;
            IF applies AND run_row.no <= last_since THEN
                INSERT INTO midrun_cursors (follower, no, seq, note)
                SELECT follower, run_row.no, run_row.seq, '' FROM midrun_followers AS f
                WHERE since >= run_row.no AND NOT EXISTS (
                    SELECT FROM midrun_cursors AS c
                    WHERE c.follower = f.follower AND c.no = run_row.no
                )
                ON CONFLICT (follower, no) DO NOTHING;
            END IF;
            IF applies THEN
                UPDATE midrun_runs
                SET seq = request.seq, hash = decode(request.hash, 'hex'), at = request.at,
                    head = convert_to(request.head, 'UTF8'), epoch = request.epoch,
                    holder = request.holder, phase = request.phase,
                    attention = request.attention, wake_at = request.wake_at,
                    ended_at = midrun_end_time(request.phase, request.at)
                WHERE no = run_row.no;
            END IF;
        END IF;
        IF applies THEN
            INSERT INTO midrun_entries (no, seq, line, hash)
            SELECT run_row.no, request."after" + place, convert_to(pair ->> 0, 'UTF8'),
                   decode(pair ->> 1, 'hex')
            FROM json_array_elements(request.lines) WITH ORDINALITY AS l (pair, place);
            IF request.files IS NOT NULL THEN
                INSERT INTO midrun_run_files (no, hash)
                SELECT DISTINCT run_row.no, decode(f, 'hex')
                FROM json_array_elements_text(request.files) AS f
                ON CONFLICT (no, hash) DO NOTHING;
            END IF;
            IF request.words IS NOT NULL THEN
                INSERT INTO midrun_search AS known (no, words)
                VALUES (run_row.no, array_to_tsvector(string_to_array(request.words, ' ')))
                ON CONFLICT (no) DO UPDATE SET words = known.words || excluded.words;
            END IF;
            changes := changes || concat_ws(
                ' ', request.run, request.seq, CASE WHEN request.holder <> '' THEN 'held' END
            );
            answers := answers || json_build_object('done', TRUE);
        ELSIF is_retry AND EXISTS (
            SELECT FROM midrun_entries
            WHERE no = run_row.no AND seq = request.seq AND hash = decode(request.hash, 'hex')
        ) THEN
            answers := answers || json_build_object('done', TRUE);
        ELSE
            SELECT * INTO tombstone FROM midrun_tombstones WHERE run = request.run;
            answers := answers || json_strip_nulls(json_build_object(
                'done', FALSE, 'seq', run_row.seq, 'hash', encode(run_row.hash, 'hex'),
                'at', run_row.at, 'epoch', run_row.epoch, 'holder', run_row.holder,
                'head', convert_from(run_row.head, 'UTF8'), 'alive', alive,
                'scope', halt.scope, 'by', halt.set_by, 'reason', halt.reason,
                'full', full_scope, 'quota', full_quota -> 'place',
                'quota_name', full_quota ->> 'name', 'lost_file', lost_file, 'lost_chunks', NOT chunked,
                'erased_by', tombstone.set_by, 'erased_at', tombstone.at,
                'erased_why', tombstone.reason
            ));
        END IF;
    END LOOP;
    INSERT INTO midrun_notices (xid, at, payload)
    SELECT pg_current_xact_id(), now, payload FROM midrun_payloads(changes) AS payload;
    RETURN json_build_object('now', midrun_now(), 'answers', answers)::text;
END
$$;

-- ── deletion ─────────────────────────────────────────────────────────────────────────────

-- Replaces runs by tombstones. `families` is a list of families, each a list of tombstones: of a
-- run and of its child runs. A family is left alone if one of its runs has grown since its row
-- was read, or if it has another child. Returns the runs that were deleted.
CREATE FUNCTION midrun_delete(families json, given_now bigint) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    family  json;
    numbers bigint[];
    names   text[];
    deleted text[] := '{}';
    lines   text[] := '{}';
    now     bigint := coalesce(given_now, midrun_now());
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1296647250, midrun_schema_key());
    -- All rows are locked first, in the order in which writers lock them: no deadlock.
    PERFORM FROM midrun_runs WHERE run IN (
        SELECT t ->> 'run' FROM json_array_elements(families) AS f, json_array_elements(f) AS t
    ) ORDER BY run FOR UPDATE;
    FOR family IN SELECT * FROM json_array_elements(families) LOOP
        SELECT array_agg(r.no), array_agg(r.run) INTO numbers, names
        FROM json_to_recordset(family) AS t (run text, seq bigint, hash text)
        JOIN midrun_runs AS r ON r.run = t.run AND r.seq = t.seq
             AND r.hash = decode(t.hash, 'hex') AND r.ended_at IS NOT NULL;
        CONTINUE WHEN coalesce(cardinality(numbers), 0) < json_array_length(family)
            OR EXISTS (
                SELECT FROM midrun_runs
                WHERE parent = ANY(names) AND parent <> '' AND run <> ALL(names)
            );
        INSERT INTO midrun_tombstones (no, run, seq, hash, set_by, at, reason, tenant, proof)
        SELECT r.no, t.run, t.seq, decode(t.hash, 'hex'), t.by, t.at, t.reason, r.tenant,
               decode(t.proof, 'hex')
        FROM json_to_recordset(family) AS t (
            run text, seq bigint, hash text, by text, at bigint, reason text, proof text
        ) JOIN midrun_runs AS r ON r.run = t.run;
        DELETE FROM midrun_labels WHERE no = ANY(numbers);
        DELETE FROM midrun_snapshots WHERE no = ANY(numbers);
        DELETE FROM midrun_cursors
        WHERE follower IN (SELECT follower FROM midrun_followers) AND no = ANY(numbers);
        DELETE FROM midrun_push_targets WHERE run = ANY(names);
        DELETE FROM midrun_runs WHERE no = ANY(numbers);
        deleted := deleted || names;
        lines := lines || ARRAY(
            SELECT concat_ws(' ', t ->> 'run', (t ->> 'seq')::bigint + 1)
            FROM json_array_elements(family) AS t
        );
    END LOOP;
    INSERT INTO midrun_notices (xid, at, payload)
    SELECT pg_current_xact_id(), now, payload FROM midrun_payloads(lines) AS payload;
    RETURN QUERY SELECT unnest(deleted);
END
$$;

-- Removes up to `max_entries` entries of deleted runs. Returns whether there was one to remove.
CREATE FUNCTION midrun_remove_leftovers(max_entries bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    numbers bigint[];
    done    bigint[];
    hashes  bytea[];
BEGIN
    -- Another process may be at work on some of them: it goes on with those.
    SELECT array_agg(no) INTO numbers FROM (
        SELECT no FROM midrun_tombstones WHERE NOT removed ORDER BY id LIMIT 50
        FOR UPDATE SKIP LOCKED
    ) AS t;
    IF numbers IS NULL THEN
        RETURN FALSE;
    END IF;
    DELETE FROM midrun_entries WHERE ctid IN (
        SELECT ctid FROM midrun_entries WHERE no = ANY(numbers) LIMIT max_entries
    );
    done := ARRAY(
        SELECT no FROM unnest(numbers) AS no
        WHERE NOT EXISTS (SELECT FROM midrun_entries AS e WHERE e.no = no.no)
    );
    -- A chunk that a new run is about to use is locked, and stays. The uses are counted by a
    -- statement of its own, which sees every run that was committed before the locks were taken.
    hashes := ARRAY(
        SELECT c.hash FROM midrun_chunks AS c
        WHERE c.hash IN (SELECT u.hash FROM midrun_chunk_uses AS u WHERE u.no = ANY(done))
        ORDER BY c.hash FOR UPDATE SKIP LOCKED
    );
    DELETE FROM midrun_chunk_uses WHERE no = ANY(done);
    DELETE FROM midrun_chunks AS c
    WHERE c.hash = ANY(hashes)
      AND NOT EXISTS (SELECT FROM midrun_chunk_uses AS u WHERE u.hash = c.hash);
    -- Files in the same way.
    hashes := ARRAY(
        SELECT f.hash FROM midrun_files AS f
        WHERE f.hash IN (SELECT r.hash FROM midrun_run_files AS r WHERE r.no = ANY(done))
        ORDER BY f.hash FOR UPDATE SKIP LOCKED
    );
    DELETE FROM midrun_run_files WHERE no = ANY(done);
    DELETE FROM midrun_files AS f
    WHERE f.hash = ANY(hashes)
      AND NOT EXISTS (SELECT FROM midrun_run_files AS r WHERE r.hash = f.hash);
    UPDATE midrun_tombstones SET removed = TRUE WHERE no = ANY(done);
    RETURN TRUE;
END
$$;

-- ── halts ────────────────────────────────────────────────────────────────────────────────

CREATE FUNCTION midrun_set_halt(
    new_scope text, actor text, its_reason text, its_tenant text, given_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(given_now, midrun_now());
BEGIN
    PERFORM pg_advisory_xact_lock(1296647250, midrun_schema_key());
    INSERT INTO midrun_halts (scope, set_by, reason, at, tenant)
    VALUES (new_scope, actor, its_reason, now, its_tenant)
    ON CONFLICT (tenant, scope) DO NOTHING;
    INSERT INTO midrun_notices (xid, at, payload) VALUES (pg_current_xact_id(), now, 'halts');
    PERFORM pg_notify('midrun_' || midrun_schema_key(), 'halts');
END
$$;

CREATE FUNCTION midrun_remove_halt(old_scope text, its_tenant text, given_now bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now     bigint := coalesce(given_now, midrun_now());
    removed boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(1296647250, midrun_schema_key());
    DELETE FROM midrun_halts WHERE scope = old_scope AND tenant = its_tenant;
    removed := FOUND;
    INSERT INTO midrun_notices (xid, at, payload) VALUES (pg_current_xact_id(), now, 'halts');
    PERFORM pg_notify('midrun_' || midrun_schema_key(), 'halts');
    RETURN removed;
END
$$;

-- ── followers ────────────────────────────────────────────────────────────────────────────

-- Takes the leadership of a follower if it is free. At its first start it waits for the lock that
-- writers share, so that a concurrent write lies entirely before or entirely after it.
CREATE FUNCTION midrun_acquire_leadership(
    its_name text, its_holder text, ttl bigint, given_now bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(given_now, midrun_now());
BEGIN
    IF NOT EXISTS (SELECT FROM midrun_followers WHERE follower = its_name) THEN
        PERFORM pg_advisory_xact_lock(1296647250, midrun_schema_key());
        INSERT INTO midrun_followers (follower, holder, until, since)
        SELECT its_name, '', 0, coalesce(max(no), 0) FROM midrun_runs
        ON CONFLICT (follower) DO NOTHING;
    END IF;
    UPDATE midrun_followers SET holder = its_holder, until = now + ttl
    WHERE follower = its_name AND (holder IN ('', its_holder) OR until <= now);
    RETURN FOUND;
END
$$;

-- ── notifications ────────────────────────────────────────────────────────────────────────

-- Listens to a channel of this schema: '' for changes of runs, others for live items.
CREATE FUNCTION midrun_listen(channel text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('LISTEN %I', 'midrun_' || midrun_schema_key() || channel);
END
$$;
