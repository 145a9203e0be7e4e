"""Stores: journals, leases, lists and halts on memory, SQLite or Postgres.

Each store implements the port `midrun.ports.store.Store`; `urls.open_store` opens one by its
address. `validation` holds the rules that all stores share: which arguments they refuse, how
entries become stamped and hashed lines, which lease is in force. `operations` applies them in
two steps. Before its transaction a store checks and encodes the arguments (`JournalStore`).
Inside the transaction it reads the run's row and compares: lease, `after`, halts, limits. Then
it inserts the lines and moves the row, all or nothing. So every store refuses the same things
in the same order and stores the same bytes.

`group_commit` lets the writes of many tasks share one commit, `watchers` reports changes to the
watches that are open in this process, `cross_thread` wakes tasks of an event loop from another
thread, `chunks` shares the long first lines of runs, `cursors` stores the positions of
followers.

Invariants: entries are never changed or removed; an append succeeds only directly after the
entry that its writer has seen; an old epoch is refused inside the transaction, whatever any
clock says. Start with `memory`, the shortest implementation, then `sqlite` and `postgres`.
"""
