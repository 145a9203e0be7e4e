-- Schema 7. Lists are filtered by the owner of a run, the user who started it.

ALTER TABLE midrun_runs ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '';

-- Cast to json, not jsonb: jsonb refuses a task that contains the character NUL.
UPDATE midrun_runs AS r
SET owner = first.by,
    head = convert_to(
        '{"owner":' || to_json(first.by) || ',' || substr(convert_from(head, 'UTF8'), 2), 'UTF8'
    )
FROM (
    SELECT no, coalesce(convert_from(line, 'UTF8')::json -> 'entry' ->> 'by', '')
    FROM midrun_entries WHERE seq = 1 AND get_byte(line, 0) = 123  -- a line that is stored whole
) AS first (no, by)
WHERE first.no = r.no;

CREATE INDEX midrun_runs_by_owner ON midrun_runs (owner, no) WHERE owner <> '';

-- The owner is in the head that `midrun_write` stores; it stays the same as long as the run.
CREATE FUNCTION midrun_runs_have_owners() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.owner := coalesce(convert_from(NEW.head, 'UTF8')::json ->> 'owner', '');
    RETURN NEW;
END
$$;

CREATE TRIGGER midrun_runs_have_owners BEFORE INSERT ON midrun_runs
    FOR EACH ROW EXECUTE FUNCTION midrun_runs_have_owners();
