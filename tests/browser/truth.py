"""Truth: everything that a bar has said, held against the journal that it was said of."""

from typing import Final

import msgspec
from playwright.async_api import Page

from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.ports.store import Store
from midrun.text.buttons import offers
from midrun.text.status import UNHEARD, sign

_LISTEN: Final = """() => {
  const bar = document.querySelector("midrun-run").shadowRoot.querySelector("midrun-controls");
  const said = (globalThis.said = []);
  const listen = () => {
    const [root, run] = [bar.shadowRoot, bar.store.run];
    const texts = (where) =>
      [...root.querySelectorAll(where)].map((one) => one.textContent.trim());
    const now = {
      badge: texts(".badge")[0],
      buttons: texts("button.control b > span"),
      seq: run.seq,
      lost: run.lost,
    };
    if (bar.store.connection === "lost") return; // it says that it knows nothing
    if (JSON.stringify(now) !== JSON.stringify(said.at(-1))) said.push(now);
  };
  const every = {subtree: true, childList: true, characterData: true, attributes: true};
  new MutationObserver(listen).observe(bar.shadowRoot, every);
  listen();
}"""

_YOURS: Final = {"Waiting for a person": "Waiting for you"}
"""What the same phase is called to the one who may decide."""


class Said(msgspec.Struct, frozen=True):
    """What stood on the bar at one moment, drawn from the view of entry `seq`."""

    badge: str
    buttons: list[str]
    seq: int
    lost: bool


async def listen(page: Page) -> None:
    """Note from now on whatever the bar of the page says, however briefly."""
    await page.evaluate(_LISTEN)


async def check(page: Page, store: Store, run: RunId, you: str = "olga") -> list[str]:
    """See that each word was so by the journal; return the badges, in their order.

    Raises:
        AssertionError: something else stood on the bar than the journal has up to that entry.
    """
    said = msgspec.convert(await page.evaluate("said"), list[Said])
    records = await store.read(run)
    for one in said:
        state = fold(run, records[: one.seq])
        meant = sign(state)
        word = _YOURS.get(meant.word, meant.word)
        by = f" by {'you' if meant.by == you else meant.by}" if meant.by else ""
        if one.lost:
            assert one.badge.startswith(UNHEARD), one
            assert state.leased, one
        else:
            what, *more = word.split(" — ")
            assert one.badge == " — ".join([what + by, *more]), one
        labels = [offer.label for offer in offers(state).values()]
        assert one.buttons in ([], labels), one  # none: it is over
    return [one.badge for one in said]
