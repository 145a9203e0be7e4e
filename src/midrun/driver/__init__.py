"""The driver: the I/O shell around the pure core. It drives runs and decides nothing.

A worker (`midrun.workers`) holds one `DriverContext` and one `RunLoop` for each run that it
drives. The loop takes the run's lease, asks the core for the next step, and appends the answer
to the journal (`journal_writer`). Only after that does it act:

    RunLoop ── start, abort ──► CallDispatcher ──► one InFlightCall for each call
       ▲                                              │  model_calls, tool_calls, child_runs
       └── Wakeup ◄── DriverInput: the outcome ◄──────┘  (user code: function_runner)

Function tools run in the event loop (`user_code`), in a forked process (`subprocess`), or in a
thread. `LeaseHeartbeat` keeps the leases alive and fences this process when it cannot. Secrets
are replaced before anything is journaled (`redaction`); `live` carries tokens and notes that
are never journaled.

Invariants: no call is made before its start is journaled under a live lease. No outcome is lost
while the process lives: it is journaled, or recorded as late. An error of user code ends its
call and nothing else. No call can hold up its run, or another run, for longer than its grace
when the run is cancelled.

Start with `run_loop.py`, then `dispatcher.py`, `in_flight_call.py` and `function_runner.py`.
"""
