"""The simulator: the real session, core and store contract under a seeded scheduler.

A schedule is one run of an agent under faults: processes crash, or freeze and wake up fenced,
leases expire, the store fails or its replies are lost, requests are repeated, operators halt
the run, the clock jumps, and clients send every control. The environment is simulated: calls,
hooks, clients and the network. The decisions are those of the shipped `core.session`, which
`worker.RunLoop` drives. All random choices come from the seed and nothing waits for real time,
so a schedule that fails will fail again.

`python -m tests.support.simulate --schedules 1000`
"""
