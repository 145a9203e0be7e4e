-- Schema 1. All names begin with midrun_, so that the store can share a database with other
-- applications. Text that is only compared has the collation "C", the fastest and the same
-- on every server.

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
    parent     text   COLLATE "C" NOT NULL
) WITH (fillfactor = 70);  -- an append that changes no indexed column stays on its page

CREATE INDEX midrun_runs_by_phase ON midrun_runs (phase, no);
CREATE INDEX midrun_runs_by_agent ON midrun_runs (agent, no);
CREATE INDEX midrun_runs_by_thread ON midrun_runs (thread, no) WHERE thread <> '';
CREATE INDEX midrun_runs_by_parent ON midrun_runs (parent, no) WHERE parent <> '';
CREATE INDEX midrun_runs_by_attention ON midrun_runs (no) WHERE attention <> '';
CREATE INDEX midrun_runs_by_wake ON midrun_runs (wake_at, no) WHERE wake_at IS NOT NULL;
CREATE INDEX midrun_runs_to_drive ON midrun_runs (no)
    WHERE phase IN ('queued', 'running', 'pausing', 'cancelling');

CREATE TABLE midrun_labels (
    label text   COLLATE "C" NOT NULL,
    no    bigint NOT NULL REFERENCES midrun_runs,
    PRIMARY KEY (label, no)
);
CREATE INDEX midrun_labels_of_run ON midrun_labels (no);

-- Lines are stored as they were hashed. jsonb would reorder and rewrite them.
-- `no` refers to midrun_runs. It has no foreign key, because every append would pay for the check.
CREATE TABLE midrun_entries (
    no   bigint NOT NULL,
    seq  bigint NOT NULL,
    line bytea  NOT NULL,
    hash bytea  NOT NULL,
    PRIMARY KEY (no, seq)
);

CREATE FUNCTION midrun_entries_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'entries are never changed and never removed';
END
$$;

CREATE TRIGGER midrun_entries_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON midrun_entries
    FOR EACH STATEMENT EXECUTE FUNCTION midrun_entries_stay();

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

CREATE TABLE midrun_halts (
    no     bigint GENERATED ALWAYS AS IDENTITY,
    scope  text   COLLATE "C" PRIMARY KEY,
    who    text   NOT NULL,
    reason text   NOT NULL,
    at     bigint NOT NULL
);

-- Notifications for processes that missed them: a row for each commit, kept for a while. The
-- transaction number is not a position, because an earlier transaction may commit later. Readers
-- ask for the rows that were not visible to their last query.
CREATE TABLE midrun_news (
    xid  xid8   NOT NULL,
    at   bigint NOT NULL,
    told text   NOT NULL          -- a run and its seq on each line, see `midrun_tell`
);
CREATE INDEX midrun_news_by_xid ON midrun_news (xid);

-- ── helpers ──────────────────────────────────────────────────────────────────────────────
-- Functions in plpgsql cache their plans; those in SQL can be inlined into queries.

-- The store's clock, in microseconds since 1970.
CREATE FUNCTION midrun_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Distinguishes the locks and channels of this schema from those of other schemas.
CREATE FUNCTION midrun_key() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT 'midrun_runs'::regclass::oid::bigint::bit(32)::integer
$$;

CREATE FUNCTION midrun_is_alive(one text, now bigint) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM midrun_holders WHERE holder = one AND abs(now - beat_at) < ttl);
END
$$;

-- Groups lines of news into payloads for NOTIFY, which are limited to 8000 bytes.
CREATE FUNCTION midrun_parts(told text[]) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(one, E'\n') FROM unnest(told) WITH ORDINALITY AS t (one, place)
    GROUP BY (place - 1) / 80  -- a line has 96 bytes at most
$$;

-- ── writing ──────────────────────────────────────────────────────────────────────────────

-- Executes the operations of one process in one transaction. `bids` is a list of new runs and
-- appends, in the order in which rows are locked. Each names the seq after which it was decided.
-- If the run has another seq by now, the operation is skipped, and its answer is the current row.
--
-- With `again`, the answer to the same list was lost: an operation whose entries are stored
-- already, with the same seq and hash, counts as done.
--
-- No transaction stays open between two messages of the client, so a frozen process holds no
-- lock. Processes are notified after the commit, in a separate transaction: if the commit of the
-- entries contained a NOTIFY, all such commits of the cluster would wait for each other's disk.
-- A process that missed a notification finds it in midrun_news.
CREATE PROCEDURE midrun_write(bids json, again boolean, at_hand bigint, INOUT answer text)
LANGUAGE plpgsql AS $$
DECLARE
    bid     record;
    stands  midrun_runs;
    latch   midrun_halts;
    fits    boolean;
    alive   boolean;
    now     bigint := coalesce(at_hand, midrun_now());
    answers json[] := '{}';
    told    text[] := '{}';
BEGIN
    -- Writers share this lock; setting or lifting a halt takes it exclusively. So a start is
    -- either committed before the halt, or sees it.
    PERFORM pg_advisory_xact_lock_shared(1296647250, midrun_key());
    FOR bid IN
        SELECT * FROM json_to_recordset(bids) AS b (
            run text, "after" bigint, seq bigint, hash text, at bigint, lines json,
            starts boolean, taker text, epoch bigint, holder text, head text, phase text,
            attention text, wake_at bigint, agent text, thread text, parent text, labels json,
            started_at bigint
        )
    LOOP
        fits := FALSE;
        alive := FALSE;
        latch := NULL;
        IF bid."after" = 0 THEN
            INSERT INTO midrun_runs (run, seq, hash, at, started_at, epoch, holder, head, phase,
                                     attention, wake_at, agent, thread, parent)
            VALUES (bid.run, bid.seq, decode(bid.hash, 'hex'), bid.at, bid.started_at, bid.epoch,
                    '', convert_to(bid.head, 'UTF8'), bid.phase, bid.attention, bid.wake_at,
                    bid.agent, bid.thread, bid.parent)
            ON CONFLICT (run) DO NOTHING
            RETURNING * INTO stands;
            fits := FOUND;
        END IF;
        IF fits THEN
            INSERT INTO midrun_labels (label, no)
            SELECT DISTINCT label, stands.no FROM json_array_elements_text(bid.labels) AS label;
        ELSE
            SELECT * INTO stands FROM midrun_runs WHERE run = bid.run FOR UPDATE;
            IF stands.holder NOT IN ('', bid.taker) THEN
                alive := midrun_is_alive(stands.holder, now);
            END IF;
            fits := coalesce(stands.seq = bid."after", FALSE) AND NOT alive;
            IF fits AND bid.starts AND EXISTS (SELECT FROM midrun_halts) THEN
                SELECT * INTO latch FROM midrun_halts
                WHERE scope IN ('all', 'agent:' || stands.agent, 'run:' || stands.run)
                   OR scope IN (SELECT 'label:' || label FROM midrun_labels WHERE no = stands.no)
                ORDER BY no LIMIT 1;
                fits := NOT FOUND;
            END IF;
            IF fits THEN
                UPDATE midrun_runs
                SET seq = bid.seq, hash = decode(bid.hash, 'hex'), at = bid.at,
                    head = convert_to(bid.head, 'UTF8'), epoch = bid.epoch, holder = bid.holder,
                    phase = bid.phase, attention = bid.attention, wake_at = bid.wake_at
                WHERE no = stands.no;
            END IF;
        END IF;
        IF fits THEN
            INSERT INTO midrun_entries (no, seq, line, hash)
            SELECT stands.no, bid."after" + place, convert_to(one ->> 0, 'UTF8'),
                   decode(one ->> 1, 'hex')
            FROM json_array_elements(bid.lines) WITH ORDINALITY AS l (one, place);
            told := told || concat_ws(' ', bid.run, bid.seq, CASE WHEN bid.holder <> '' THEN 'held' END);
            answers := answers || json_build_object('done', TRUE);
        ELSIF again AND EXISTS (
            SELECT FROM midrun_entries
            WHERE no = stands.no AND seq = bid.seq AND hash = decode(bid.hash, 'hex')
        ) THEN
            answers := answers || json_build_object('done', TRUE);
        ELSE
            answers := answers || json_strip_nulls(json_build_object(
                'done', FALSE, 'seq', stands.seq, 'hash', encode(stands.hash, 'hex'),
                'at', stands.at, 'epoch', stands.epoch, 'holder', stands.holder,
                'head', convert_from(stands.head, 'UTF8'), 'alive', alive,
                'scope', latch.scope, 'by', latch.who, 'reason', latch.reason
            ));
        END IF;
    END LOOP;
    INSERT INTO midrun_news (xid, at, told)
    SELECT pg_current_xact_id(), now, part FROM midrun_parts(told) AS part;
    COMMIT;
    PERFORM pg_notify('midrun_' || midrun_key(), part) FROM midrun_parts(told) AS part;
    answer := json_build_object('now', midrun_now(), 'answers', answers)::text;
END
$$;

-- ── halts ────────────────────────────────────────────────────────────────────────────────

CREATE FUNCTION midrun_halt(new_scope text, its_who text, why text, at_hand bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(at_hand, midrun_now());
BEGIN
    PERFORM pg_advisory_xact_lock(1296647250, midrun_key());
    INSERT INTO midrun_halts (scope, who, reason, at) VALUES (new_scope, its_who, why, now)
    ON CONFLICT (scope) DO NOTHING;
    INSERT INTO midrun_news (xid, at, told) VALUES (pg_current_xact_id(), now, 'latches');
    PERFORM pg_notify('midrun_' || midrun_key(), 'latches');
END
$$;

CREATE FUNCTION midrun_lift(old_scope text, at_hand bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(at_hand, midrun_now());
    lifted boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(1296647250, midrun_key());
    DELETE FROM midrun_halts WHERE scope = old_scope;
    lifted := FOUND;
    INSERT INTO midrun_news (xid, at, told) VALUES (pg_current_xact_id(), now, 'latches');
    PERFORM pg_notify('midrun_' || midrun_key(), 'latches');
    RETURN lifted;
END
$$;

-- ── notifications ────────────────────────────────────────────────────────────────────────

-- Listens to a channel of this schema: '' for news, others for live items.
CREATE FUNCTION midrun_listen(what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('LISTEN %I', 'midrun_' || midrun_key() || what);
END
$$;
