"""A2A 1.0: a run is a task.

`routes.py` serves the public agent card (`tasks.py`) and forwards authenticated calls to the
routes of the A2A SDK. Behind these is `TaskHandler` (`handler.py`), which implements each
method with `Midrun` and `Run`, and `tasks.py`, which shows a run's state as a task. Only
`handler.py` and `tasks.py` import the SDK, an optional dependency.

The SDK's own executor is not used: it queues a second message until the first is done, but a
redirect has to reach a run that is at work. A task is not stored apart from its run: it is
computed from the run's state on every request.
"""

PAUSE_METHOD = "midrun/PauseTask"
"""The JSON-RPC method of Midrun's extension: A2A has no pause."""

A2A_PATH_PREFIX = "/a2a/"
"""The prefix of the paths of A2A; an agent's name follows."""
