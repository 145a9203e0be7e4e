"""A2A 1.0: a run as a task, by the routes of its own SDK and a handler of ours.

The SDK's executor is not used: it lets a second message wait until the first is done, and a
redirect has to reach a run that is at work.
"""

PAUSE_METHOD = "midrun/PauseTask"
"""The method of our extension: A2A itself has no word for a pause from outside."""

UNDER = "/a2a/"
"""The path that the agents of A2A are under, each by its name."""
