"""The simulator: the real core and the real store contract under a seeded scheduler.

A schedule is one run of an agent under faults: processes crash, or freeze and wake up fenced,
leases expire, replies are lost and requests repeated, operators halt the run, the clock jumps,
and clients send every control. All random choices come from the seed and nothing waits for
real time, so a schedule that fails will fail again.

`python -m tests.support.simulate --schedules 1000`
"""
