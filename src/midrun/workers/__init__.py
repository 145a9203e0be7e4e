"""Workers: the processes that drive runs, and the rules which runs they take.

`local.LocalWorker` drives the runs of one store in this process. It starts a run that was
started or resumed here, a run whose change the store reports, and whatever its sweep finds once
a second: runs without a live holder, and runs whose wake-up time has come. For each run it
starts one task with a `RunLoop` of the driver. It may try too often; the lease in the store
decides which process drives a run.

`concurrency_limits` has the settings of a worker (`Fleet`) and the `ConcurrencyLimiter`, which
decides whether a run may be started now. `quotas` bounds the spend and the files of users and
tenants. `local.RunPlacement` is the protocol of an external scheduler that decides where runs
are driven; `temporal` implements it.

Invariants: a run has at most one task in a process; a failure of one run never ends another; a
shutdown gives every lease back; no safety depends on the worker, only progress. Start with
`local`.
"""
