"""Followers: deliver the history of runs to other systems.

A follower gets every run of a store that has come to rest (paused, waiting, failed or ended)
and delivers the entries it has not delivered yet. Two are built in: `webhooks` posts signed
CloudEvents, `spans` emits OpenTelemetry spans. Each needs an extra; neither is imported here.

    async with Midrun(…) as midrun, following(midrun, Webhook("https://…", secret="…")):
        …

The journals are the queue. For each follower and run, the store keeps a cursor: the seq up to
which entries are delivered. `FollowerWorker` in `worker` finds runs that have grown past their
cursor, calls `Follower.deliver`, and moves the cursor after each delivery. So delivery is at
least once, in order within a run, and survives restarts. One process at a time leads for a
follower; the leadership is a lease in the store. Failed deliveries are retried with growing
delays, in a queue of their own, so that they do not block new ones. `span_builder` is pure: it
turns entries into spans. `metrics` is a follower, too, and counts what it is given:
`prometheus` and `otel_metrics` show the numbers. Start with `worker`.
"""

from midrun.followers.worker import Follower, PendingRun, RetryLater, following

__all__ = ["Follower", "PendingRun", "RetryLater", "following"]
