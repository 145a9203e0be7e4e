"""How a failed schedule is told: what broke, how to see it again, and the whole journal."""

import msgspec

from midrun.core.entries import Entry
from midrun.core.ids import Epoch
from midrun.core.transitions import Accepted, NoChange
from tests.support.simulate.scene import Scene, Told
from tests.support.simulate.setup import Setup


def told(scene: Scene, problem: str) -> str:
    """Return everything that is needed to understand and repeat a failure."""
    setup = scene.setup
    parameters = "\n".join(
        f"  {name} = {getattr(setup, name)!r}" for name in Setup.__struct_fields__
    )
    return "\n".join(
        (
            f"FAILED seed {setup.seed}, strategy {setup.strategy}: {problem}",
            f"again: {again(setup)}",
            "schedule:",
            parameters,
            f"  script = {scene.program.turns!r}",
            "journal:",
            journal(scene),
            "replies:",
            *(f"  {_reply(one)}" for one in scene.told),
            f"world: {', '.join(scene.world.seen)}",
        )
    )


def again(setup: Setup) -> str:
    """Return the command that shows the failure again."""
    seed = f"--schedules 1 --seed {setup.seed} --strategy {setup.strategy}"
    return f"python -m tests.support.simulate {seed} --verbose"


def journal(scene: Scene) -> str:
    """Return the journal, one entry a line."""
    return "\n".join(
        f"  {seq:3} {_line(entry, epoch)}"
        for seq, (entry, epoch) in enumerate(scene.desk.written, 1)
    )


def _line(entry: Entry, epoch: Epoch | None) -> str:
    fields = msgspec.to_builtins(entry)
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items() if name != "kind")
    by = "   " if epoch is None else f"@{epoch} "
    return f"{by}{type(entry).__name__}({shown})"


def _reply(one: Told) -> str:
    name = type(one.control).__name__
    request = f" {one.control.request}" if one.control.request else ""
    if isinstance(one.verdict, Accepted):
        answer = f"accepted as {one.first}"
    elif isinstance(one.verdict, NoChange):
        answer = f"= {one.verdict.name}"
    else:
        answer = f"refused {one.verdict.reason}"
    return f"{name}{request} by {one.control.by.name} at {one.seq} ({one.phase}): {answer}"
