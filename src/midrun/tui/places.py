"""Places: where a run is, in words that tell the steps of its plan from those of its agent."""

from midrun.handles.view import RunView


def place(view: RunView) -> str:
    """Return where a run is; nothing before it has begun.

    With a plan the items of that are counted. A cap on steps counts those of the agent: model
    calls, each with the tools it asked for.
    """
    if view.plan:
        return f"plan {view.place}"
    return view.place if view.step else ""
