"""A bar session for tests: a run with tools that wait at gates, and keys from a pipe."""

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
from midrun.tui.styled_text import Hints, StyledLine, plain_text


class RecordingOutput(DummyOutput):
    """An output that records all text, printed lines and redraws of the bar alike."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.written = ""

    def get_size(self) -> Size:
        return Size(rows=40, columns=self.columns)

    def write(self, data: str) -> None:
        self.written += data

    def write_raw(self, data: str) -> None:
        self.written += data


class BarSession:
    """A run with its bar, the keys that are pressed, and the text that is shown."""

    def __init__(
        self,
        midrun: Midrun,
        run: Run,
        keys: PipeInput,
        output: RecordingOutput,
        gates: dict[str, anyio.Event],
    ) -> None:
        self.run = run
        self.midrun = midrun
        self.output = output
        self.gates = gates
        self.exit_reason: ExitReason | None = None
        self.printed_lines: list[str] = []
        """The lines above the bar. The output also has each redraw of the bar itself."""
        self.skipped_micros = 0
        self._stopped_at: Micros | None = None
        self._keys = keys
        self._session: TerminalSession

    async def run_bar(self) -> None:
        """Show the bar until it is left."""
        view = await self.run.view()
        hints = Hints(target_options="--store sqlite:///runs.db")
        self._session = TerminalSession(
            self.run, view, actor="ada", hints=hints, clock=self.read_clock
        )
        screen = self._session._screen
        print_above = screen.print_above

        def record_lines(lines: list[StyledLine]) -> None:
            self.printed_lines += [plain_text(line) for line in lines]
            print_above(lines)

        screen.print_above = record_lines  # type: ignore[method-assign]
        self.exit_reason = await self._session.run(driven_here=True)

    def read_clock(self) -> Micros:
        """Return the time, plus the time that the test has skipped."""
        return self._stopped_at or Micros(read_wall_clock() + self.skipped_micros)

    def stop_clock(self) -> None:
        """Let no time pass between keys, however slow the machine is."""
        self._stopped_at = self.read_clock()

    def press(self, keys: str) -> None:
        """Press keys, a second after the last ones: two quick presses count as one."""
        self.skipped_micros += 1_000_000
        self._keys.send_text(keys)

    @property
    def text(self) -> str:
        """The lines that the bar shows now."""
        controller = self._session._controller
        lines = [plain_text(line) for line in self._session._screen.list_visible_lines()]
        return "\n".join([*lines, controller.buffer.text])

    async def wait_for(self, *texts: str) -> str:
        """Wait until the bar shows all of `texts`, and return its text."""
        await self._wait_until(lambda: all(text in self.text for text in texts))
        return self.text

    async def wait_until_hidden(self, text: str) -> None:
        """Wait until the bar does not show `text` any more."""
        await self._wait_until(lambda: text not in self.text)

    async def wait_for_view(self) -> None:
        """Wait until the bar shows the current view of the run, which keys refer to."""
        seq = (await self.run.view()).seq
        await self._wait_until(lambda: self._session._controller.view.seq >= seq)

    async def wait_for_print(self, text: str) -> str:
        """Wait until `text` was printed above the bar."""
        await self._wait_until(lambda: text in self.output.written)
        return self.output.written

    async def wait_for_exit(self) -> ExitReason:
        """Wait until the bar was left, and return the reason."""
        await self._wait_until(lambda: self.exit_reason is not None)
        assert self.exit_reason is not None
        return self.exit_reason

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not (hasattr(self, "_session") and condition()):  # noqa: ASYNC110 - a screen has no event
                await anyio.sleep(0.005)


async def discard(call: Call, args: dict[str, str], result: object) -> None:
    """Undo a draft."""


async def release_lock(call: Call, args: dict[str, str], result: object) -> None:
    """Release a lock."""


@tool(approve=True)
async def send(to: str, copies: int = 1) -> str:
    """Send."""
    return f"sent to {to}" + (f", {copies} times" if copies > 1 else "")


@tool(read_only=True)
async def show_notice(call: Call) -> str:
    """Show an artifact."""
    await call.show("notice.md", "text/markdown", "# Trees\n\nEmpty places: 12\nPlaces: 34")
    return "shown"


@tool(approve=True)
async def publish(name: str, content: str) -> str:
    """Publish."""
    return f"published {name}: {content}"


@asynccontextmanager
async def open_bar(
    *turns: object, columns: int = 100, stop: Stop | None = None, delay: float = 0.0
) -> AsyncIterator[BarSession]:
    """Run `turns` with tools that wait at gates, under a bar with `columns` columns."""
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

    @tool(release=release_lock)
    async def lock(name: str) -> str:
        """Lock."""
        return f"locked {name}"

    @tool
    async def poll(call: Call) -> Json:
        """Ask, and go on with the answer."""
        if call.answered is None:
            raise PauseHere("Which one?", {}, {"kept": 1})
        return call.answered

    model = ScriptedModel(list(turns), chunk_delay=delay)  # type: ignore[arg-type]  # turns of any kind
    agent = Agent(
        "clerk",
        model=model,
        tools=[read, write, lock, send, show_notice, publish, poll, ask_human],
        stop=stop,
    )
    output = RecordingOutput(columns)
    with create_pipe_input() as keys, create_app_session(input=keys, output=output):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "Sort the mail", actor="ada")
            session = BarSession(midrun, run, keys, output, gates)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.run_bar)
                yield session
                for gate in gates.values():
                    gate.set()
                tasks.cancel_scope.cancel()
