"""Followers: they tell others what has happened to runs.

`midrun.followers.webhooks` posts it, `midrun.followers.spans` emits it for OpenTelemetry; each
needs its own extra, so neither is imported here.

async with Midrun(…) as midrun, following(midrun, Webhook("https://…", secret="…")):
    …
"""

from midrun.followers.worker import Followed, Follower, Later, following

__all__ = ["Followed", "Follower", "Later", "following"]
