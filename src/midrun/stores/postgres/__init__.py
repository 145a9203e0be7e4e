"""The store on a Postgres database, which any number of processes may share.

`store.PostgresStore` implements the port. Each event loop of a process has a small pool of
connections for reads and one connection for writes. `writer` sends the appends of many tasks in
one call of the function `midrun_write` (in `migrations`; its messages are in `operations`).
The write is optimistic: lines and hashes are built from the cached row of the run; the server
compares under the row's lock, writes the matching requests in one transaction, and answers the
others with their current rows. A request whose answer was lost is sent again; its hash tells
whether it was committed.

`connection` wraps one connection, `pool` repeats safe requests over new ones, `ServerClock`
estimates the server's time, `listener` reports commits of other processes, `relay` carries live
deltas by NOTIFY, `setup` checks the server and applies migrations.

Invariants: no transaction stays open between two messages, so a frozen client holds no lock;
leases, halts and limits are checked inside the function; a refusal never rests on cached data.
Start with `writer`, then `operations` and the migration.
"""
