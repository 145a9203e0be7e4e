"""The default store: one SQLite file, shared by the processes of one machine.

`store.SqliteStore` implements the port. It wraps a prepared write in an operation
(`operations`) and hands that to the one `SqliteWriter`, which commits operations of many tasks
in one transaction. Inside the transaction an operation sees the run's
row through `row_cache`. Reads use two read-only connections (`reader`): one for short reads in
the event loop's thread, one for long reads in a worker thread. WAL mode lets them run beside
the writer.

`change_poller` finds commits of other processes and wakes the watchers; `relay` carries live
deltas between processes over datagram sockets; `cursors` stores the positions of followers.
`connection` opens the file, checks it, and translates SQLite's errors. All SQL is in `queries`.

Invariants: one write connection per process; every check that decides a race runs inside the
write transaction; entries are only added; a refusal comes before the first change. Start with
`writer`, then `operations` and `row_cache`.
"""
