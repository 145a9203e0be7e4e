-- From schema 1 to 2: lists are filtered by the owner of a run, the user who started it.

ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';

UPDATE runs SET owner = coalesce(
    (SELECT CAST(line AS TEXT) ->> '$.entry.by' FROM entries AS e WHERE e.no = runs.no AND seq = 1),
    ''
);
UPDATE runs SET head = CAST(json_set(CAST(head AS TEXT), '$.owner', owner) AS BLOB);

CREATE INDEX runs_by_owner ON runs (owner);

PRAGMA user_version = 2;
