"""Open the demo: its files, its agent, and the newest unfinished run or a new one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from midrun.core.values import TERMINAL_PHASES
from midrun.demo import DEFAULT_DEMO_STORE
from midrun.demo.agents import AGENT_NAME, NATURAL_PACE, SCRIPTED_MODEL, build_researcher
from midrun.demo.model import Pace
from midrun.demo.texts import TEXTS
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.runs.values import RunView

OnOpened: TypeAlias = Callable[[str, str, RunView], None]
"""Called with the link ("" in a terminal), the phase of a run that was found ("" for a new
one), and the run's view."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Settings of the demo.

    Drafts and outbox are beside the store's file; only the token of the page is elsewhere.
    Files of an earlier demo are used again.
    """

    store: str = DEFAULT_DEMO_STORE
    model: str = SCRIPTED_MODEL
    pace: Pace = NATURAL_PACE
    actor: str = "user"
    new: bool = False  # start a new run, even if one is unfinished

    @property
    def folder(self) -> Path:
        """The folder of the demo's files."""
        store = self.store if self.store.startswith("sqlite:") else DEFAULT_DEMO_STORE
        return Path(unquote(urlsplit(store).path[1:])).parent

    def build_midrun(self) -> Midrun:
        """Return a `Midrun` with the demo's agent, to be opened."""
        self.folder.mkdir(parents=True, exist_ok=True)
        agent = build_researcher(self.folder.absolute(), model=self.model, pace=self.pace)
        return Midrun(self.store, agents=[agent])

    async def find_or_start_run(self, mid: Midrun) -> tuple[Run, str]:
        """Return the newest run that has not ended, and its phase; or a new one, and ""."""
        for view in () if self.new else (await mid.runs(agent=AGENT_NAME)).items:
            if view.phase not in TERMINAL_PHASES:
                return await mid.get(view.run_id), view.phase
        return await mid.start(AGENT_NAME, TEXTS.task, labels=["demo"], actor=self.actor), ""
