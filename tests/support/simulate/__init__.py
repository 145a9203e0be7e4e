"""The simulator: the real core and the real store contract under a seeded scheduler.

One schedule is one run of an agent with everything that can happen to it: processes that crash,
freeze and wake up fenced, leases that lapse at any moment, replies that are lost and asked for
again, a latch, clocks that jump, people who press every button. Nothing here waits and nothing
is left to chance that the seed has not drawn, so a schedule that fails does so again.

`python -m tests.support.simulate --schedules 1000`
"""
