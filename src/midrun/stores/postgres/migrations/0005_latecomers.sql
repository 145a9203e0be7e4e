-- Schema 5. A new follower of a store with many runs costs nothing. Of concurrent calls that start
-- the same thread, one wins.

-- When a follower first starts, the existing entries of all runs up to `since` count as delivered.
-- Such a run needs no mark until it grows; then it gets one for its old seq. Of a run after `since`
-- without a mark, nothing was delivered.
ALTER TABLE midrun_followers ADD COLUMN since bigint NOT NULL DEFAULT 0;

-- Takes the leadership of a follower if it is free. At its first start it waits for the lock that
-- writers share, so that a concurrent write lies entirely before or entirely after it.
CREATE FUNCTION midrun_follow(who text, its_holder text, lasts bigint, at_hand bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(at_hand, midrun_now());
BEGIN
    IF NOT EXISTS (SELECT FROM midrun_followers WHERE follower = who) THEN
        PERFORM pg_advisory_xact_lock(1296647250, midrun_key());
        INSERT INTO midrun_followers (follower, holder, until, since)
        SELECT who, '', 0, coalesce(max(no), 0) FROM midrun_runs
        ON CONFLICT (follower) DO NOTHING;
    END IF;
    UPDATE midrun_followers SET holder = its_holder, until = now + lasts
    WHERE follower = who AND (holder IN ('', its_holder) OR until <= now);
    RETURN FOUND;
END
$$;

-- Called by a midrun of schema 4. For that version, a run without a mark was never delivered, so
-- it must not become the leader where marks are missing.
CREATE OR REPLACE FUNCTION midrun_attend(who text, its_holder text, lasts bigint, at_hand bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now bigint := coalesce(at_hand, midrun_now());
BEGIN
    INSERT INTO midrun_followers (follower, holder, until) VALUES (who, '', 0)
    ON CONFLICT (follower) DO NOTHING;
    IF FOUND THEN
        INSERT INTO midrun_marks (follower, no, seq, note) SELECT who, no, seq, '' FROM midrun_runs;
    END IF;
    UPDATE midrun_followers SET holder = its_holder, until = now + lasts
    WHERE follower = who AND since = 0 AND (holder IN ('', its_holder) OR until <= now);
    RETURN FOUND;
END
$$;

-- As in schema 3 (the mechanism is described in schema 1), and with marks for late followers, and
-- with new runs that must be the first of their thread.
CREATE OR REPLACE PROCEDURE midrun_write(
    bids json, again boolean, at_hand bigint, INOUT answer text
) LANGUAGE plpgsql AS $$
DECLARE
    bid     record;
    stands  midrun_runs;
    latch   midrun_halts;
    reached text;
    taken   boolean;
    late    bigint;
    fits    boolean;
    alive   boolean;
    now     bigint := coalesce(at_hand, midrun_now());
    answers json[] := '{}';
    told    text[] := '{}';
BEGIN
    -- Writers share this lock; setting or lifting a halt takes it exclusively. So a start is
    -- either committed before the halt, or sees it.
    PERFORM pg_advisory_xact_lock_shared(1296647250, midrun_key());
    -- Take-ups of a limited scope run one after the other, so that each counts the lease of the
    -- one before. The locks are taken before any row lock and in one order: no deadlock.
    IF strpos(bids::text, '"limits":{') > 0 THEN  -- cheap test: limits are rare, and the list may be long
        PERFORM pg_advisory_xact_lock(1296647252, key) FROM (
            SELECT DISTINCT hashtext(midrun_key() || ' ' || scope) AS key
            FROM json_array_elements(bids) AS b, json_object_keys(b -> 'limits') AS scope
            ORDER BY key
        ) AS scopes;
    END IF;
    -- Likewise, starts of the same thread run one after the other.
    IF strpos(bids::text, '"alone":true') > 0 THEN
        PERFORM pg_advisory_xact_lock(1296647253, key) FROM (
            SELECT DISTINCT hashtext(midrun_key() || ' ' || (b ->> 'thread')) AS key
            FROM json_array_elements(bids) AS b WHERE (b ->> 'alone')::boolean
            ORDER BY key
        ) AS threads;
    END IF;
    late := (SELECT max(since) FROM midrun_followers);  -- read after the lock that a new follower takes
    FOR bid IN
        SELECT * FROM json_to_recordset(bids) AS b (
            run text, "after" bigint, seq bigint, hash text, at bigint, lines json,
            starts boolean, alone boolean, taker text, limits json, epoch bigint,
            holder text, head text, phase text, attention text, wake_at bigint, agent text,
            thread text, parent text, labels json, started_at bigint
        )
    LOOP
        fits := FALSE;
        alive := FALSE;
        latch := NULL;
        reached := NULL;
        taken := FALSE;
        IF bid.alone THEN
            taken := EXISTS (
                SELECT FROM midrun_runs WHERE thread = bid.thread AND thread <> ''
            );
        END IF;
        IF bid."after" = 0 AND NOT taken THEN
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
            IF fits AND bid.limits IS NOT NULL AND stands.holder <> bid.taker THEN
                reached := midrun_reached(bid.limits, stands.no, now);
                fits := reached IS NULL;
            END IF;
            IF fits AND stands.no <= late THEN
                INSERT INTO midrun_marks (follower, no, seq, note)
                SELECT follower, stands.no, stands.seq, '' FROM midrun_followers AS f
                WHERE since >= stands.no AND NOT EXISTS (
                    SELECT FROM midrun_marks AS m
                    WHERE m.follower = f.follower AND m.no = stands.no
                )
                ON CONFLICT (follower, no) DO NOTHING;
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
                'scope', latch.scope, 'by', latch.who, 'reason', latch.reason,
                'full', reached, 'taken', taken
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
