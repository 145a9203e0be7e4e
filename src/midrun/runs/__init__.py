"""The public handles `Midrun` and `Run`, and the values that they take and return.

`Midrun` (`midrun.py`) opens a store, the agents of this process and the worker that drives
their runs. It starts runs, lists them and resumes checkpoints. `Run` (`run.py`) is the handle
of one run: each control method builds a control and gives it to `RunService` (`service.py`).
The service decides the control against the journal, appends the result, wakes the worker and
returns a `Receipt`. Nothing here keeps state about a run: every view is computed from the
journal when it is asked for (`views.py`, `turns.py`), and a feed reads the journal from any
position (`feed.py`), so all methods work from any process that has the store open.

Arguments are checked in `validation.py` before anything is appended. `checkpoints.py` moves a
run and its child runs between stores; `in_memory.py` is behind `Agent.run`, without a store.
`midrun.client` implements the same interface (`protocols.py`) over HTTP, and shares only
`values.py`, `validation.py` and the specs. `control_specs.py` describes each control once, for
HTTP, client, command line and terminal. Start reading at `Midrun.start`, then
`RunService.submit`.
"""
