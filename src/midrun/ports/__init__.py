"""Ports: the Protocols through which the shell reaches stores, models, clocks and processes.

Theory of operation. The core decides, and everything outside is behind one of these interfaces:
`store` (journals, leases, snapshots, lists, halts), `model` (a provider that streams replies),
`environment` (clock, randomness, ids), `relay` (live text between processes),
`follower_cursors` (the progress of webhooks and spans) and `push_targets` (addresses that
clients register for a run). `write_permissions` lists which writer may append which kind of
entry; every store enforces it.

A store implements `Store`. Further abilities are small Protocols of their own (`HasRelay`,
`HasFollowerCursors`, `HasClock` …), which callers test for with `isinstance`. This package does
no I/O except for reading clocks. `midrun.testing.store_suite` is the contract of a store as
tests.

Start reading with `Store.append`: it carries the guarantee that all others build on.
"""
