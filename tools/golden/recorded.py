"""Record journals of real runs: the examples, and the demo with interruptions."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from math import inf
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import Final

import anyio

from midrun import Midrun, Run
from midrun.codec.journal import decode_lines
from midrun.core.entries import Record
from midrun.core.ids import RunId
from midrun.demo.launch import Demo
from midrun.demo.model import Pace

Journals = dict[str, Sequence[Record]]
"""A name → a journal."""

DEMO_ENTRIES_BEFORE_PAUSE: Final = 12
"""After so many entries the first tools of the demo are active."""


async def literature() -> Journals:
    """Record a side question during a task."""
    return {"the_literature_synthesis": (await _record_example("literature"))["scholar"]}


async def family() -> Journals:
    """Record a cancelled parent with three children, and one of the children."""
    made = await _record_example("family")
    return {
        "a_parent_with_three_children": made["boss"],
        "a_child_of_three": made["Boreas"],
    }


async def demo() -> Journals:
    """Record the demo: paused, redirected, resumed with an instruction, cancelled."""
    with TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/runs.db"
        shown = Demo(store=store, model="scripted", pace=Pace(inf), actor="ada")
        async with shown.build_midrun() as mid:
            run, _ = await shown.find_or_start_run(mid)
            await _wait_for_seq(run, DEMO_ENTRIES_BEFORE_PAUSE)
            await run.pause(actor="ada", reason="it reads on and on")
            await run.until("paused")
            await run.redirect("Start writing", actor="ada")
            await run.until("waiting")
            await run.pause(actor="bob")
            await run.resume("Add a paragraph on salt", actor="ada")
            await run.until("waiting")
            await run.cancel(undo="all", reason="the meeting is off", actor="ada")
            await run.until("cancelled")
            return {"the_demo_interrupted": await _read_journal(run)}


CONVERSATIONS: Final[dict[str, Callable[[], Awaitable[Journals]]]] = {
    "the_literature_synthesis": literature,
    "a_parent_with_three_children": family,
    "a_child_of_three": family,
    "the_demo_interrupted": demo,
}
"""Name of a stored journal → function that records it."""


def record_journals(missing: Iterable[str]) -> Journals:
    """Record these journals now; the result may contain others of the same runs."""
    made: Journals = {}
    for record in dict.fromkeys(CONVERSATIONS[name] for name in missing):
        made |= anyio.run(record)
    return made


async def _record_example(name: str) -> Journals:
    module = import_module(f"examples.{name}")
    with _JournalRecorder(module) as kept:
        await module.main()
    return kept


class _JournalRecorder:
    """Collects the journals of an example by agent, before its store in memory is closed."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __enter__(self) -> Journals:
        kept: Journals = {}

        class Kept(Midrun):
            async def __aexit__(
                self,
                kind: type[BaseException] | None,
                error: BaseException | None,
                trace: TracebackType | None,
            ) -> bool | None:
                for view in (await self.runs()).items:
                    kept[view.agent] = await _read_journal(await self.get(view.run_id))
                return await super().__aexit__(kind, error, trace)

        self._module.__dict__["Midrun"] = Kept
        return kept

    def __exit__(self, *_: object) -> None:
        self._module.__dict__["Midrun"] = Midrun


async def _read_journal(run: Run) -> Sequence[Record]:
    return decode_lines(RunId(run.id), await run.export())


async def _wait_for_seq(run: Run, seq: int) -> None:
    async for item in run.feed():
        if item.seq is not None and item.seq >= seq:
            return
