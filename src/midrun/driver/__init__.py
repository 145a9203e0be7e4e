"""The driver: the I/O shell around the pure core. It drives runs and decides nothing.

A worker (`midrun.workers`) holds one `DriverContext` and one `RunLoop` for each run that it
drives. The loop takes the run's lease, asks the core for the next step, and appends the answer
to the journal (`journal_writer`). Only after that does it act:

    RunLoop ── start, abort ──► CallDispatcher ──► one InFlightCall for each call
       ▲                                              │  model_calls, tool_calls, child_runs
       └── Wakeup ◄── DriverInput: the outcome ◄──────┘

Function tools run in the event loop (`user_code`), in a forked process (`subprocess`), or in a
thread. `LeaseHeartbeat` keeps the leases alive and fences this process when it cannot. Secrets
are replaced before anything is journaled (`redaction`); `live` carries tokens and notes that
are never journaled.

Invariants: no call is made before its start is journaled under a live lease. No outcome is lost
while the process lives: it is journaled, or recorded as late. An error of user code ends its
call and nothing else. No call holds up a run that is cancelled for longer than its grace (a
blocking tool: until its killed process has ended, 5 s at most), and none holds up another run.
An undo or a release has a time limit of its own; in a thread it cannot be stopped.

A child run has no such limit: its parent waits until the child has stopped its own calls, each
within its grace, and has undone them. If the child's worker is gone, another worker takes the
child when its lease has expired; the parent's own worker can, as it has the child's agent. The
parent waits longer if an operator has halted the child, or if no worker of the child's version
runs (`Fleet(versions="same")`).

`ARCHITECTURE.md` has the order in which to read the modules.
"""
