"""Record everything that the control bar shows, and compare it with the journal."""

from typing import Final

import msgspec
from msgspec.structs import replace
from playwright.async_api import Page

from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.ports.store import Store
from midrun.text.buttons import build_buttons
from midrun.text.status import WORKER_LOST_WORD, build_status_line, format_status_word

_RECORD: Final = """() => {
  const bar = document.querySelector("midrun-run").shadowRoot.querySelector("midrun-controls");
  const said = (globalThis.said = []);
  const record = () => {
    const [root, run] = [bar.shadowRoot, bar.store.run];
    const texts = (where) =>
      [...root.querySelectorAll(where)].map((one) => one.textContent.trim());
    const now = {
      badge: texts(".badge")[0],
      buttons: texts("button.control b > span"),
      seq: run.seq,
      lost: run.worker_lost,
    };
    if (bar.store.connection === "lost") return; // then it shows the lost connection only
    if (JSON.stringify(now) !== JSON.stringify(said.at(-1))) said.push(now);
  };
  // After a render, and not after any mutation: the store is ahead of the bar until the next
  // frame, and `run` must be the view that the bar was rendered from.
  const updated = bar.updated;
  bar.updated = function (changed) {
    updated.call(this, changed);
    record();
  };
  bar.requestUpdate();
}"""

_YOURS: Final = {"Waiting for a person": "Waiting for you"}
"""By status of the journal: the status shown to a viewer who may decide."""


class BarText(msgspec.Struct, frozen=True):
    """The texts of the bar at one moment, rendered from the view at entry `seq`."""

    badge: str
    buttons: list[str]
    seq: int
    lost: bool


async def record_bar(page: Page) -> None:
    """Record every text of the page's bar from now on, however briefly it is shown."""
    await page.evaluate(_RECORD)


async def check_recorded(page: Page, store: Store, run: RunId, you: str = "olga") -> list[str]:
    """Check that each recorded text was true by the journal; return the badges in order.

    Raises:
        AssertionError: the bar showed a text that does not follow from the journal so far.
    """
    said = msgspec.convert(await page.evaluate("said"), list[BarText])
    records = await store.read(run)
    for one in said:
        state = fold(run, records[: one.seq])
        meant = build_status_line(state)
        word = _YOURS.get(meant.word, meant.word)
        by = "you" if meant.by and meant.by == you else meant.by
        if one.lost:
            assert one.badge.startswith(WORKER_LOST_WORD), one
            assert state.is_leased, one
        else:
            # The terminal shows the same words, see `format_status_word`.
            assert one.badge == format_status_word(replace(meant, word=word, by=by)), one
        labels = [offer.label for offer in build_buttons(state).values()]
        assert one.buttons in ([], labels), one  # none: the run is finished
    return [one.badge for one in said]
