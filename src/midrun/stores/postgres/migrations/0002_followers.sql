-- Schema 2. Followers, and the cursor of each follower in each run.

CREATE TABLE midrun_followers (
    follower text   COLLATE "C" PRIMARY KEY,
    holder   text   COLLATE "C" NOT NULL,  -- the process that is the leader; empty: none
    until    bigint NOT NULL
);

CREATE TABLE midrun_marks (
    follower text   COLLATE "C" NOT NULL REFERENCES midrun_followers,
    no       bigint NOT NULL REFERENCES midrun_runs,
    seq      bigint NOT NULL,
    note     text   NOT NULL,
    PRIMARY KEY (follower, no)
);

-- Takes the leadership of a follower if it is free. A new follower starts after all existing
-- entries.
CREATE FUNCTION midrun_attend(who text, its_holder text, lasts bigint, at_hand bigint)
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
    WHERE follower = who AND (holder IN ('', its_holder) OR until <= now);
    RETURN FOUND;
END
$$;
