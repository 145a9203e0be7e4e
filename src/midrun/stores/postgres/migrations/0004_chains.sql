-- Schema 4. The id of the key of the hash chains: one row, empty if there is no key, never changed.
-- A store that already has runs has no key. In an empty one it is set when the store is opened.

CREATE TABLE midrun_chains (
    one boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    kid text    COLLATE "C" NOT NULL
);

INSERT INTO midrun_chains (kid) SELECT '' WHERE EXISTS (SELECT FROM midrun_runs);
