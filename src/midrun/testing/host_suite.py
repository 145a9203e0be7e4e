"""The contract of a host as tests: an unchanged agent of a framework gets every control.

    class TestMyFramework(HostSuite):
        agent_factory = "my_tests.my_agent:make_agent"

        @pytest.fixture
        def store_url(self, tmp_path: Path) -> str: ...

        @pytest.fixture
        def open_provider(self) -> OpenProvider: ...

`agent_factory` names a function `make_agent(url, charge)` that another process can import. It
returns an agent of the framework, with the async function `charge` as its only tool and a model
that sends its requests to `url`. Or it returns a `partial` `make(charge_tool, stop)` that makes
the hosted agent, called `biller`, from `charge` as a tool of Midrun. `open_provider` opens a
fake model provider that speaks the wire protocol of that model; it must count its requests and
see a closed connection.

A test that a framework cannot pass is overridden with `@pytest.mark.skip("the reason")`.

The effects of the agent are lines of a file, which the tests read. So they are the same for a
process that is killed and for the process that takes over.
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final, Protocol, TypeAlias, Unpack

import anyio
import msgspec
import pytest
from msgspec import Struct

from midrun.agents.agent import Agent
from midrun.agents.outcome import Cancelled, Completed
from midrun.agents.tool import ToolOptions, tool, traits
from midrun.agents.tool_context import Call
from midrun.core.entries import CallAborted, CallDone, CallStarted, Entry
from midrun.core.ids import Micros
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.driver.live import Delta
from midrun.hosts import host
from midrun.ports.environment import Environment, read_wall_clock
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.runs.values import FeedEntry
from midrun.stops import MaxSteps

AGENT_NAME: Final = "biller"
LONG_LEASE: Final = timedelta(seconds=60)
HALF_TEXT: Final = "The first half,"
WORDS: Final = "Charge number 3 as well."


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """One reply of the fake provider: text in pieces, then calls of `charge`.

    A held reply stops before its last piece of text, until the client gives up.
    """

    text: tuple[str, ...] = ()
    charges: tuple[int, ...] = ()
    is_held: bool = False


HELD_REPLY: Final = ScriptedReply(text=(HALF_TEXT, " and the second."), is_held=True)
DONE: Final = ScriptedReply(text=("All ", "done."))


class SuiteProvider(Protocol):
    """A fake model provider. `url` is its address without a path."""

    url: str

    def read_requests(self) -> list[Json]:
        """Return the bodies of all requests so far."""
        ...

    async def wait_for_hold(self, n: int) -> None:
        """Wait until the n-th reply is held."""
        ...

    async def wait_for_disconnect(self, n: int) -> None:
        """Wait until the client has closed the connection of the n-th request."""
        ...


class OpenProvider(Protocol):
    """Opens a provider that gives these replies, one for each request."""

    def __call__(
        self, *replies: ScriptedReply
    ) -> AbstractAsyncContextManager[SuiteProvider]: ...


class Billing:
    """The tool of the agent, its undo, and the file with their effects."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "effects.txt"
        self._folder = folder

    def read_effects(self, kind: str = "charged") -> list[int]:
        """Return the numbers of all effects of this kind, in order."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == kind]

    def hold(self, number: int) -> None:
        """Let `charge(number)` wait before its effect, in every process."""
        (self._folder / f"hold-{number}").touch()

    async def wait_for(self, kind: str, number: int) -> None:
        """Wait until there is an effect of this kind and number."""
        while number not in self.read_effects(kind):  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.005)

    async def charge(self, n: int) -> str:
        """Charge customer number n."""
        self._write("entered", n)
        while (self._folder / f"hold-{n}").exists():  # noqa: ASYNC110 - the test is elsewhere
            await anyio.sleep(0.005)
        self._write("charged", n)
        return f"charged {n}"

    async def refund(self, call: Call, args: dict[str, int], result: Json) -> None:
        """Undo a charge."""
        del call, result
        self._write("refunded", args["n"])

    def _write(self, kind: str, n: int) -> None:
        with self._file.open("a") as file:
            file.write(f"{kind} {n}\n")


def make_hosted_agent(
    factory: str,
    url: str,
    billing: Billing,
    stop: Stop | None = None,
    **declared: Unpack[ToolOptions],
) -> Agent:
    """Return the agent under test, hosted, with these traits of its tool."""
    module, _, name = factory.partition(":")
    make_agent: Callable[[str, object], object] = getattr(import_module(module), name)

    async def charge(n: int) -> str:
        """Charge customer number n.

        Args:
            n: The number of the customer.
        """
        return await billing.charge(n)

    made = make_agent(url, charge)
    if isinstance(made, partial):
        agent: Agent = made(tool(**declared)(charge), stop)
        return agent
    tools = {"charge": traits(**declared)} if declared else {}
    return host(made, name=AGENT_NAME, tools=tools, stop=stop)


async def drive_until_killed(*arguments: str) -> None:
    """Start a run and drive it; the test kills this process."""
    factory, store, url, folder = arguments
    agent = make_hosted_agent(factory, url, Billing(Path(folder)))
    environment = Environment(lease=LONG_LEASE)
    async with Midrun(store, agents=[agent], outside=environment) as midrun:
        run = await midrun.start(agent, "Charge 1 and 2", request_id="killed")
        await run.result()


def _read_clock_ahead() -> Micros:
    return Micros(read_wall_clock() + timedelta(hours=1) // timedelta(microseconds=1))


TestMethod: TypeAlias = Callable[..., Coroutine[None, None, None]]  # type: ignore[explicit-any]


def shows_promise(promise: str) -> Callable[[TestMethod], TestMethod]:
    """Name the promise that a test of the suite shows, for a table of all hosts."""

    def set_promise(test: TestMethod) -> TestMethod:
        vars(test)["promise"] = promise
        return test

    return set_promise


class HostSuite:
    """The contract of a host. Set `agent_factory`; override the two fixtures.

    `framework` is the heading of the host in a table of all hosts, `package` is the one whose
    version is stated there.
    """

    agent_factory: ClassVar[str]
    framework: ClassVar[str] = ""
    package: ClassVar[str] = ""

    @pytest.fixture
    def store_url(self) -> str:
        """Return the address of a new store that two processes can open; override it."""
        raise NotImplementedError

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        """Return the opener of fake providers; override it."""
        raise NotImplementedError

    @pytest.fixture
    def billing(self, tmp_path: Path) -> Billing:
        """Return the effects of the agent."""
        return Billing(tmp_path)

    @asynccontextmanager
    async def open_midrun(self, store_url: str, agent: Agent) -> AsyncIterator[Midrun]:
        """Open a `Midrun` as another process would; verify all runs at the end."""
        async with Midrun(store_url, agents=[agent]) as midrun:
            yield midrun
            for view in (await midrun.runs()).items:
                verdict = await midrun.verify(view.run_id)
                assert verdict, str(verdict)

    @shows_promise("every call passes the journal, and a replay makes none")
    async def test_every_call_is_journaled_and_none_is_made_on_replay(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        async with open_provider(ScriptedReply(charges=(1, 2)), DONE) as provider:
            agent = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1 and 2")
                assert await run.result() == Completed(run_id=run.id, output="All done.")
                kinds = [
                    e.call_kind for e in await _read_entries(run) if isinstance(e, CallStarted)
                ]
                assert kinds == ["model", "tool", "tool", "model"]
            async with self.open_midrun(store_url, agent) as midrun:
                again = await (await midrun.get(run.id)).result()
                assert isinstance(again, Completed)
            assert sorted(billing.read_effects()) == [1, 2]
            requests = provider.read_requests()
            assert len(requests) == 2
            assert "charged 1" in _to_text(requests[1])

    @shows_promise(
        "a pause closes the stream of the model; another process continues with "
        "its text and new words"
    )
    async def test_a_pause_closes_the_stream_and_another_process_goes_on_with_new_words(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        """The text so far is given back; the words are in every later request."""
        replies = (
            ScriptedReply(charges=(1,)),
            HELD_REPLY,
            ScriptedReply(charges=(3,)),
            DONE,
        )
        async with open_provider(*replies) as provider:
            agent = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1")
                await wait_for_text(run, HALF_TEXT)
                await run.pause()
                await run.until("paused")
                await provider.wait_for_disconnect(1)
                aborted = [e for e in await _read_entries(run) if isinstance(e, CallAborted)]
                assert [e.text for e in aborted] == [HALF_TEXT]
            other = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, other) as midrun:
                run = await midrun.get(run.id)
                await run.resume(WORDS)
                assert await run.result() == Completed(run_id=run.id, output="All done.")
            assert billing.read_effects() == [1, 3]
            texts = [_to_text(body) for body in provider.read_requests()]
            assert [(HALF_TEXT in text, WORDS in text) for text in texts] == [
                (False, False),
                (False, False),
                (True, True),
                (True, True),
            ]

    @shows_promise("a redirect stops the model and is in every later request")
    async def test_a_redirect_now_reaches_the_next_model_call(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        async with open_provider(HELD_REPLY, ScriptedReply(charges=(3,)), DONE) as provider:
            agent = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1")
                await provider.wait_for_hold(0)
                await run.redirect(WORDS, when="now")
                await run.until("completed")
            assert billing.read_effects() == [3]
            assert [WORDS in _to_text(b) for b in provider.read_requests()] == [
                False,
                True,
                True,
            ]

    @shows_promise("a pause *now* stops a tool call, and keeps the finished one beside it")
    async def test_a_pause_now_keeps_the_finished_one_of_two_parallel_calls(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        billing.hold(2)
        async with open_provider(ScriptedReply(charges=(1, 2)), DONE) as provider:
            agent = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1 and 2")
                await billing.wait_for("charged", 1)
                await billing.wait_for("entered", 2)
                await _wait_for_result(run, "charged 1")
                await run.pause(now=True)
                await run.until("paused")
                assert len(provider.read_requests()) == 1
                await run.resume()
                await run.until("completed")
            assert billing.read_effects() == [1]
            assert sorted(billing.read_effects("entered")) == [1, 2]
            assert "charged 1" in _to_text(provider.read_requests()[1])

    @shows_promise("approvals and caps come before an unchanged tool")
    async def test_an_approval_and_a_cap_come_before_the_untouched_tool(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        async with open_provider(ScriptedReply(charges=(1, 2)), DONE) as provider:
            agent = make_hosted_agent(
                self.agent_factory, provider.url, billing, stop=MaxSteps(1), approve=True
            )
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1 and 2")
                view = await run.until("waiting")
                assert [ask.tool for ask in view.asks] == ["charge", "charge"]
                assert billing.read_effects("entered") == []
                await run.approve(ask=view.asks[0].id)
                await run.decline(ask=view.asks[1].id)
                assert (await run.until("paused")).reason == "cap"
                assert billing.read_effects() == [1]
                await run.resume(caps={"steps": 9})
                await run.until("completed")

    @shows_promise("a cancel closes the stream, and undoes the effects in reverse order")
    async def test_a_cancel_closes_the_stream_and_undoes_in_reverse_order(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        replies = (ScriptedReply(charges=(1,)), ScriptedReply(charges=(2,)), HELD_REPLY)
        async with open_provider(*replies) as provider:
            agent = make_hosted_agent(
                self.agent_factory, provider.url, billing, undo=billing.refund
            )
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1 and 2")
                await provider.wait_for_hold(2)
                await run.cancel(undo="all")
                assert isinstance(await run.result(), Cancelled)
                await provider.wait_for_disconnect(2)
            assert billing.read_effects("refunded") == [2, 1]

    @shows_promise("a checkpoint is resumed with another store")
    async def test_a_checkpoint_is_resumed_with_another_store(
        self, store_url: str, open_provider: OpenProvider, billing: Billing
    ) -> None:
        async with open_provider(ScriptedReply(charges=(1,)), HELD_REPLY, DONE) as provider:
            agent = make_hosted_agent(self.agent_factory, provider.url, billing)
            async with self.open_midrun(store_url, agent) as midrun:
                run = await midrun.start(agent, "Charge 1")
                await provider.wait_for_hold(1)
                await run.pause()
                await run.until("paused")
                checkpoint = await run.checkpoint()
            outcome = await agent.resume(checkpoint)
            assert isinstance(outcome, Completed)
            assert billing.read_effects() == [1]

    @shows_promise("after SIGKILL in mid-stream another process continues, and repeats no call")
    @pytest.mark.slow
    async def test_another_process_goes_on_after_a_kill_in_mid_stream(
        self, store_url: str, open_provider: OpenProvider, billing: Billing, tmp_path: Path
    ) -> None:
        replies = (ScriptedReply(charges=(1, 2)), HELD_REPLY, DONE)
        async with open_provider(*replies) as provider:
            with self._start_process(store_url, provider.url, tmp_path):
                await provider.wait_for_hold(1)
            async with self._take_over(store_url, provider.url, billing) as run:
                await run.until("completed")
            assert sorted(billing.read_effects("entered")) == [1, 2]
            assert len(provider.read_requests()) == 3

    @shows_promise(
        "after SIGKILL in a tool call a person decides about that call, and about no other"
    )
    @pytest.mark.slow
    async def test_a_person_decides_about_the_call_that_a_kill_interrupted(
        self, store_url: str, open_provider: OpenProvider, billing: Billing, tmp_path: Path
    ) -> None:
        """The finished call is not made again. The other has no trait that allows it."""
        billing.hold(2)
        async with open_provider(ScriptedReply(charges=(1, 2)), DONE) as provider:
            with self._start_process(store_url, provider.url, tmp_path):
                await billing.wait_for("charged", 1)
                await billing.wait_for("entered", 2)
                await self._wait_for_journaled_result(store_url)
            async with self._take_over(store_url, provider.url, billing) as run:
                view = await run.until("waiting")
                assert [ask.kind for ask in view.asks] == ["unsure"]
                await run.answer("yes")
                await run.until("completed")
            assert sorted(billing.read_effects("entered")) == [1, 2]

    def _start_process(
        self, store_url: str, url: str, folder: Path
    ) -> AbstractContextManager[None]:
        return _kill_at_end(
            [sys.executable, "-m", __name__, self.agent_factory, store_url, url, str(folder)]
        )

    async def _wait_for_journaled_result(self, store_url: str) -> None:
        async with Midrun(store_url) as midrun:
            await _wait_for_result(await _find_run(midrun), "charged 1")

    @asynccontextmanager
    async def _take_over(
        self, store_url: str, url: str, billing: Billing
    ) -> AsyncIterator[Run]:
        """Take over the run of a killed process, with a clock by which its lease has ended."""
        agent = make_hosted_agent(self.agent_factory, url, billing)
        environment = Environment(clock=_read_clock_ahead)
        async with Midrun(store_url, agents=[agent], outside=environment) as midrun:
            run = await _find_run(midrun)
            yield run
            verdict = await midrun.verify(run.id)
            assert verdict, str(verdict)


@contextmanager
def _kill_at_end(command: Sequence[str]) -> Iterator[None]:
    """Run a command in a process, and kill it with SIGKILL at the end."""
    with subprocess.Popen(command) as process:  # noqa: S603 - this module
        try:
            yield
        finally:
            process.kill()


async def _find_run(midrun: Midrun) -> Run:
    return await midrun.get((await midrun.runs()).items[0].run_id)


async def _read_entries(run: Run) -> list[Entry]:
    """Return all entries of a run at rest."""
    head = (await run.view()).seq
    entries: list[Entry] = []
    async for item in run.feed():
        if isinstance(item, FeedEntry):
            entries.append(item.entry)
            if item.seq >= head:
                break
    return entries


async def _wait_for_result(run: Run, result: str) -> None:
    """Wait until the journal has a call with this result."""
    async for item in run.feed():
        entry = item.entry if isinstance(item, FeedEntry) else None
        if isinstance(entry, CallDone) and entry.result == result:
            return


async def wait_for_text(run: Run, text: str) -> None:
    """Wait until the reply in flight has this text."""
    async for item in run.feed():
        if isinstance(item, Delta) and item.kind == "text" and text in item.text:
            return


def _to_text(body: Json) -> str:
    return msgspec.json.encode(body).decode()


if __name__ == "__main__":
    anyio.run(drive_until_killed, *sys.argv[1:])
