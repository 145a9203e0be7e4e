"""Planted faults: each breaks one rule on purpose, and the simulator must find it.

A fault replaces a named function or a table cell of the core, of the store's validation or of
the simulated environment, inside a `with` block. If two layers check the same rule, the fault
is planted in both. A constant such as `_PLAN_PAUSING` holds the original function, which the
replacement calls.

`python -m tests.support.mutants` prints the schedules that each strategy needed, and fails if
a fault was not found.
"""
