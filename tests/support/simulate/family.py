"""Child runs as their parent sees them: born once, decided for, and never left behind."""

from midrun.core.ids import CallId
from midrun.core.state import State
from tests.support.simulate.scene import Scene
from tests.support.simulate.violation import Violation
from tests.support.simulate.world import Child


def born(scene: Scene, key: str) -> Child:
    """Return the child of the call with this key; a second attempt finds the first one's."""
    rng = scene.rng
    new = Child(
        asks=rng.choice((0, 0, 1, 1, 2)), left=rng.randint(0, 2), fails=rng.random() < 0.1
    )
    return scene.world.children.setdefault(key, new)


def decided(view: State, call: CallId) -> int:
    """Return how much of what the child of `call` asked was decided, here or on the child."""
    asks = (ask for ask in view.asks if ask.call == call)
    return sum(ask.close_reason in {"answered", "elsewhere"} for ask in asks)


def left_behind(scene: Scene, view: State) -> None:
    """Check that no child works on for a call that its parent has given up.

    Raises:
        Violation: the parent goes on with its next step, or waits, and there is one.
    """
    for call in view.calls:
        child = scene.world.children.get(scene.key(call.id))
        if child is None or child.ended or child.fails or call.is_open:
            continue
        parked = any(call.number in frame.parked_calls for frame in view.frames)
        if not parked and call.release.attempts < view.run_started.undo_attempts:
            raise Violation("LEFT", f"the child of {call.id} was left to itself")
