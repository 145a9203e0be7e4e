-- Schema 4. Which key the chains of this store are made with: one row, empty if none, and never
-- changed. A store that has runs already has none; an empty one is asked when it is opened.

CREATE TABLE midrun_chains (
    one boolean PRIMARY KEY DEFAULT TRUE CHECK (one),
    kid text    COLLATE "C" NOT NULL
);

INSERT INTO midrun_chains (kid) SELECT '' WHERE EXISTS (SELECT FROM midrun_runs);
