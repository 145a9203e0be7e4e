"""The state machine of a run. Pure: no clock, no I/O, no randomness; all of them are arguments.

Theory of operation. The only stored truth about a run is its **journal**, an append-only list
of entries (`entries.py`). Everything else is computed from it, in a cycle:

1. `evolve.fold` turns the journal into a `State` (`state.py`), one entry at a time. Each kind
   of entry has one function in `evolve/`, and `transitions.py` says which kinds may follow in
   which phase.
2. `scheduler.advance(state, now)` returns the entries that follow without any input: a step
   boundary, the start of a call or of an undo, the end of a phase. `scheduler.list_effects`
   returns the work that needs no entry: abort a call, check an unknown call.
   Both read the state only. A worker that has just loaded a journal therefore does the same as
   one that never stopped, and recovery after a crash needs no code of its own.
3. The driver makes the calls that were started and reports their outcomes as inputs
   (`driver_inputs.py`). People send the other half of the inputs, as controls (`controls.py`):
   pause, redirect, cancel ...
4. `decide(state, input, now)` answers an input with a verdict (`transitions.py`): entries to
   append, no change, or a refusal by name. The table in `transitions.py` decides by phase, then
   a function in `decide/` checks the rest of the state.
5. The caller appends these entries after exactly the seq that the decision has seen. If another
   writer was first, the append conflicts; the caller reads the new entries and decides again.
   The order of the journal is therefore the only arbiter of races. Then back to 1.

Invariants:

- A call or an undo starts only after its `CallStarted` or `UndoStarted` entry is stored. A
  crash can leave a started call without an end, never an end without a start. Such a call
  becomes *unknown* and is repeated only if that is safe.
- A request and its fulfilment are two entries: `PauseRequested`, later `RunPaused`.
- `decide` never raises. `evolve` raises `JournalCorrupt` for an entry that cannot follow.
- `evolve` costs the same at every length of the journal: all growing parts of the state are
  persistent vectors (`vector.py`).
- Sentences for people are in `midrun.text`; `journaled_text.py` has only those that entries
  store.

Start reading with `transitions.py`, then `state.py` (class `CallState`), `evolve/calls.py`,
`scheduler.py` and `decide/controls.py`.
"""
