"""A stage for the bar: a run in memory whose tools wait for the test, keys through a pipe."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from midrun import Agent, Call, Midrun, Run, ask_human, tool
from midrun.agents.builtin_tools import PauseHere
from midrun.core.ids import Micros
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.models import ScriptedModel
from midrun.ports.environment import read_wall_clock
from midrun.tui.controller import ExitReason
from midrun.tui.session import TerminalSession
from midrun.tui.styled_text import Hints, plain_text


class Paper(DummyOutput):
    """An output that keeps what was printed."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.written = ""

    def get_size(self) -> Size:
        return Size(rows=40, columns=self.columns)

    def write(self, data: str) -> None:
        self.written += data

    def write_raw(self, data: str) -> None:
        self.written += data


class Stage:
    """One run, its bar, and whoever sits before it."""

    def __init__(
        self,
        midrun: Midrun,
        run: Run,
        keys: PipeInput,
        paper: Paper,
        gates: dict[str, anyio.Event],
    ) -> None:
        self.run = run
        self.midrun = midrun
        self.paper = paper
        self.gates = gates
        self.left: ExitReason | None = None
        self.skipped = 0
        self._stopped: Micros | None = None
        self._keys = keys
        self._attending: TerminalSession

    async def play(self) -> None:
        """Attend the run until somebody leaves."""
        view = await self.run.view()
        hints = Hints(target_options="--store sqlite:///runs.db")
        self._attending = TerminalSession(
            self.run, view, actor="ada", hints=hints, clock=self.clock
        )
        self.left = await self._attending.run(driven_here=True)

    def clock(self) -> Micros:
        """Return the time, with what the test has skipped of it."""
        return self._stopped or Micros(read_wall_clock() + self.skipped)

    def stop_clock(self) -> None:
        """Let no time pass between keys, however long the machine takes for them."""
        self._stopped = self.clock()

    def type(self, keys: str) -> None:
        """Press keys; a second later for the toggle, which takes two quick ones for one."""
        self.skipped += 1_000_000
        self._keys.send_text(keys)

    @property
    def bar(self) -> str:
        """What is drawn now."""
        hand = self._attending._controller
        lines = [plain_text(line) for line in self._attending._screen.visible_lines()]
        return "\n".join([*lines, hand.buffer.text])

    async def sees(self, *texts: str) -> str:
        """Wait until the bar shows all of `texts`, and return it."""
        await self._until(lambda: all(text in self.bar for text in texts))
        return self.bar

    async def lacks(self, text: str) -> None:
        """Wait until the bar does not show `text` any more."""
        await self._until(lambda: text not in self.bar)

    async def caught_up(self) -> None:
        """Wait until the bar has seen the run as it is now: what is pressed goes by that."""
        seq = (await self.run.view()).seq
        await self._until(lambda: self._attending._controller.view.seq >= seq)

    async def printed(self, text: str) -> str:
        """Wait until `text` was printed above the bar."""
        await self._until(lambda: text in self.paper.written)
        return self.paper.written

    async def gone(self) -> ExitReason:
        """Wait until the bar is gone, and return why."""
        await self._until(lambda: self.left is not None)
        assert self.left is not None
        return self.left

    async def _until(self, seen: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not (hasattr(self, "_attending") and seen()):  # noqa: ASYNC110 - a screen has no bell
                await anyio.sleep(0.005)


async def discard(call: Call, args: dict[str, str], result: object) -> None:
    """Undo a draft."""


async def let_go(call: Call, args: dict[str, str], result: object) -> None:
    """Release a lock."""


@asynccontextmanager
async def staged(
    *turns: object, columns: int = 100, stop: Stop | None = None, delay: float = 0.0
) -> AsyncIterator[Stage]:
    """Play `turns` with tools that wait for their gates, under a bar of so many columns."""
    gates = {name: anyio.Event() for name in ("read", "write")}

    @tool(read_only=True)
    async def read(call: Call, what: str) -> str:
        """Read."""
        await call.note(f"opening {what}")
        await gates["read"].wait()
        return f"all of {what}"

    @tool(undo=discard)
    async def write(title: str) -> str:
        """Write."""
        await gates["write"].wait()
        return f"wrote {title}"

    @tool(release=let_go)
    async def lock(name: str) -> str:
        """Lock."""
        return f"locked {name}"

    @tool(approve=True)
    async def send(to: str) -> str:
        """Send."""
        return f"sent to {to}"

    @tool
    async def poll(call: Call) -> Json:
        """Ask, and go on with the answer."""
        if call.answered is None:
            raise PauseHere("Which one?", {}, {"kept": 1})
        return call.answered

    model = ScriptedModel(list(turns), chunk_delay=delay)  # type: ignore[arg-type]  # turns of any kind
    agent = Agent(
        "clerk", model=model, tools=[read, write, lock, send, poll, ask_human], stop=stop
    )
    paper = Paper(columns)
    with create_pipe_input() as keys, create_app_session(input=keys, output=paper):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Sort the mail", actor="ada")
            stage = Stage(midrun, run, keys, paper, gates)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stage.play)
                yield stage
                for gate in gates.values():
                    gate.set()
                tasks.cancel_scope.cancel()
