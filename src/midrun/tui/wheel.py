"""The wheel at the bar: a person takes the agent's place, or sends a new run another way."""

from typing import Final

from midrun.core.offers import Offer
from midrun.handles.receipt import Receipt
from midrun.tui.drafts import Draft
from midrun.tui.hand import Hand

FORKING: Final = (
    "Enter: a new run goes on from here, with other words if you like · Esc: discard"
)
HANDING: Final = "Enter: the agent goes on, and is told what you did · Esc: discard"
WRITING: Final = "Enter: say it in the agent's place · Esc: discard"


def is_taken(offers: dict[str, Offer]) -> bool:
    """Tell whether a person is in the agent's place: then it can be handed back."""
    return offers["pause"].command == "hand_back"


def take_over(hand: Hand) -> None:
    """Take the agent's place; whoever has it writes there."""
    if is_taken(hand.view.controls):
        hand.compose(_writing(hand))
    else:
        hand.want(lambda: hand.run.take_over(actor=hand.actor))


def redirect(hand: Hand) -> None:
    """Open the composer for a new course; a run that was taken over is handed back with it."""
    if is_taken(hand.view.controls):
        hand.compose(_handing(hand))
    else:
        hand.redirect()


def fork(hand: Hand) -> None:
    """Open the composer for a new run that goes on from here; this one stays as it is."""
    hand.compose(_forking(hand))


def _writing(hand: Hand) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.write(text, actor=hand.actor)

    return Draft(label="in the agent's place", send=send, hint=WRITING)


def _handing(hand: Hand) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.hand_back(text, actor=hand.actor)

    return Draft(label="hand back, and", send=send, hint=HANDING)


def _forking(hand: Hand) -> Draft:
    async def send(text: str, _: bool) -> None:  # noqa: FBT001 - as Send has it
        made = await hand.run.fork(instruction=text or None, actor=hand.actor)
        hand.notice = f"A new run goes on from here: {hand.hints.typed('attach', made.id)}"

    return Draft(label="fork, and", send=send, hint=FORKING, blank=True)
