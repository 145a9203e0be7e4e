"""Planted faults: each breaks one rule on purpose, and the simulator must notice.

A check that never fails proves nothing. Every fault here replaces a named function or a cell
of a table of the real core, of the store's rules, or of the simulated shell, for as long as a
`with` lasts. A second layer, which another one hides, is planted together with that other one.

`python -m tests.support.mutants` prints how many schedules each strategy needed, and fails if
one survived.
"""
