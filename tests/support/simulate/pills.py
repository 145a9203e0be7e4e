"""Pills: a call that takes its whole process with it, and one that never gets done."""

from midrun.core.ids import Seq
from tests.support.simulate.flight import Task
from tests.support.simulate.scene import Killed, Scene
from tests.support.simulate.schedule import Process, Steps


def swallowed(scene: Scene, process: Process, task: Task, steps: Steps, doubt: Steps) -> Steps:
    """Make a call as it is made, unless the script says that it is a pill.

    Before it has done anything its process ends, or it cannot say whether it has: `doubt`.
    """
    name = task.call.use.tool or "model"
    if name == scene.program.pill and scene.poison:
        scene.killed.append(Killed(call=task.call.id, seq=Seq(scene.desk.state.seq)))
        fall(scene, process)
    elif name == scene.program.doubted and scene.doubts:
        scene.doubts -= 1
        yield from doubt
    else:
        yield from steps


def checked(scene: Scene, process: Process, tool: str, steps: Steps) -> Steps:
    """Ask a check as it is asked; that of a pill may end the process, too."""
    yield None
    if tool == scene.program.pill and scene.poison and scene.chance(0.3):
        fall(scene, process)
        return
    yield from steps


def fall(scene: Scene, process: Process) -> None:
    """End the process, with everything that it has under way."""
    scene.poison -= 1
    scene.scheduler.end(process)
    scene.fallen.append(process)
