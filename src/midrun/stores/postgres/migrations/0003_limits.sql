-- Schema 3. Concurrency limits over all processes: a lease beyond the limit of a scope is refused.

-- Only a small part of all runs is held. An append does not change the holder.
CREATE INDEX midrun_runs_held ON midrun_runs (holder) WHERE holder <> '';

-- Returns a scope of `limits` whose limit is reached by other runs with a live holder, or NULL.
-- The caller holds the locks of all these scopes.
CREATE FUNCTION midrun_reached(limits json, but bigint, now bigint) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
    RETURN (
        SELECT scope FROM json_each_text(limits) AS l (scope, most)
        WHERE most::bigint <= (
            SELECT count(*) FROM midrun_runs AS r
            WHERE holder <> '' AND no <> but
              AND holder IN (SELECT holder FROM midrun_holders WHERE abs(now - beat_at) < ttl)
              AND CASE
                  WHEN scope = 'all' THEN TRUE
                  WHEN scope LIKE 'agent:%' THEN agent = substr(scope, 7)
                  ELSE EXISTS (
                      SELECT FROM midrun_labels AS m
                      WHERE m.no = r.no AND m.label = substr(scope, 7)
                  )
              END
        )
        LIMIT 1
    );
END
$$;

-- As in schema 1 (see there), and with limits.
CREATE OR REPLACE PROCEDURE midrun_write(
    bids json, again boolean, at_hand bigint, INOUT answer text
) LANGUAGE plpgsql AS $$
DECLARE
    bid     record;
    stands  midrun_runs;
    latch   midrun_halts;
    reached text;
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
    FOR bid IN
        SELECT * FROM json_to_recordset(bids) AS b (
            run text, "after" bigint, seq bigint, hash text, at bigint, lines json,
            starts boolean, taker text, limits json, epoch bigint, holder text, head text,
            phase text,
            attention text, wake_at bigint, agent text, thread text, parent text, labels json,
            started_at bigint
        )
    LOOP
        fits := FALSE;
        alive := FALSE;
        latch := NULL;
        reached := NULL;
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
            IF fits AND bid.limits IS NOT NULL AND stands.holder <> bid.taker THEN
                reached := midrun_reached(bid.limits, stands.no, now);
                fits := reached IS NULL;
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
                'full', reached
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
