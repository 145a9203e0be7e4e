"""Test support that ships with the package: contract suites, a scenario DSL, test servers.

The contract of each port is a class of tests. An implementation inherits it and provides a
fixture: `store_suite` for stores, `run_suite` for the handles `Midrun` and `Run`, local or
remote, `worker_suite` for engines that decide where runs are driven, and `host_suite` for hosts
of agents of other frameworks.

`scenario` builds journals step by step through the real `decide` and `evolve`, without a store
or a driver. `check` checks the invariants of a journal. `controllable_tools` has tools that
wait at gates, so that a test can hold a run at any point. `postgres` and `temporal` start real
servers in a temporary folder.

Nothing in the other packages imports this one.
"""
