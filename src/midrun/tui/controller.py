"""The hand at the bar: what a person presses, and which sheet is open for it.

A key means what the screen showed when it was pressed. Wishes are carried out one after the
other; a refusal is shown, and a text that could not be sent comes back to be sent again.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import Enum, auto
from typing import Final, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from prompt_toolkit.buffer import Buffer

from midrun.agents.outcome import AskView
from midrun.codec.strict_json import parse
from midrun.core.ids import Micros
from midrun.core.values import Json, UndoSet, Urgency
from midrun.errors import LOST_ASK, ControlRefused, MidrunError
from midrun.ports.environment import Clock
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import Who
from midrun.runs.values import Receipt, RunView
from midrun.text.buttons import Offer
from midrun.tui.dialogs import options
from midrun.tui.escape import json_line
from midrun.tui.phrases import MIDRUN, Hints, value_of

# Drafts: what a person is writing, what it is for, and where it goes when it is sent.

Send: TypeAlias = Callable[[str, bool], Awaitable[Receipt | None]]
"""Takes the text, and whether it was sent with Alt: now, not at the next step.

Returns what became of it; nothing if it has said so itself.
"""

SENDING: Final = "Enter: next step · Alt+Enter: now · Tab: {other} · Esc: discard"
PLAIN: Final = "Enter: send · Esc: discard"


class Draft(Struct, frozen=True, kw_only=True):
    """One line of text under way. `blank` says that nothing is something, too."""

    label: str
    send: Send
    hint: str = PLAIN
    blank: bool = False


Wish: TypeAlias = Callable[[], Awaitable[Receipt | None]]

HOLD: Final = timedelta(minutes=1)
"""How long a run is held while somebody thinks about a cancel."""

DOUBLE: Final = 400_000
"""Microseconds in which a second press of the same toggle is the same press."""

GOING: Final = frozenset({"queued", "running", "waiting"})
"""A first Ctrl-C pauses in these; in any other phase there is nothing to pause."""


class Mode(Enum):
    """What the keys are for."""

    BAR = auto()
    COMPOSE = auto()
    CONFIRM = auto()
    ASKS = auto()
    HELP = auto()


class Left(Enum):
    """How somebody left the bar."""

    ENDED = auto()  # the run is over
    DETACHED = auto()  # it goes on
    QUIT = auto()  # it is left paused


class Hand:
    """Presses buttons for one person. `leave` is called once, when the bar should go away."""

    def __init__(
        self,
        run: AnyRun,
        view: RunView,
        *,
        actor: Who,
        clock: Clock,
        leave: Callable[[Left], None],
        hints: Hints = MIDRUN,
    ) -> None:
        self.view = view
        self.hints = hints
        self.mode = Mode.BAR
        self.notice = ""
        self.draft: Draft | None = None
        self.buffer = Buffer(multiline=False)
        self.changed: Callable[[], None] = _nothing  # called when there is news to draw
        self.held = False  # our pause lets go by itself, unless the cancel is confirmed
        self._holds = False  # and it has been seen to hold
        self.run = run
        self.actor = actor
        self._clock = clock
        self._leave = leave
        self._ask = 0
        self._warned = False
        self._promised: Receipt | None = None  # its words are true until it is applied
        self._pressed = Micros(0)
        self._wishes: deque[Wish] = deque()
        self._wanted = anyio.Event()
        self.sending = ""  # a text that was sent, and of which the fate is not known yet

    async def working(self) -> None:
        """Carry out wishes, in the order in which they were pressed."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            while self._wishes:
                await self._granted(self._wishes.popleft())
                self.changed()

    async def _granted(self, wish: Wish) -> None:
        try:
            receipt = await wish()
        except ControlRefused as refusal:
            self.notice = _refused(refusal)
        except MidrunError as error:
            self.notice = str(error)
        else:
            self.notice = _told(receipt) if receipt is not None else self.notice
            self._promised = receipt if receipt is not None and receipt.said else None

    def want(self, wish: Wish) -> None:
        """Have `wish` carried out after those before it."""
        self.notice = ""
        self._wishes.append(wish)
        self._wanted.set()

    def see(self, view: RunView) -> None:
        """Look at the run as it is now."""
        self.view = view
        self._keep_promise()
        if self.held and view.hold_until is not None:
            self._holds = True
        elif self._holds and view.phase in GOING:
            self.held = self._holds = False
            if self.mode is Mode.CONFIRM:
                self._close_sheet()
                self.notice = "The minute is over: the run goes on."
        if self.mode is Mode.ASKS and not view.asks:
            self.mode = Mode.BAR

    def _keep_promise(self) -> None:
        """Take back "Hold on …" when what was asked has had its turn."""
        promised, view = self._promised, self.view
        if promised is None or view.seq < promised.seq:
            return
        if all(pending.seq != promised.seq for pending in view.pending):
            self._promised = None
            self.notice = "" if self.notice == promised.said else self.notice

    # ── the three buttons ─────────────────────────────────────────────────────────────────

    def press(self) -> None:
        """Press the first button, whatever it means now: pause, keep running, resume."""
        now, offer = self._clock(), self.view.controls["pause"]
        again, self._pressed = now - self._pressed < DOUBLE, now
        if again:  # a key that is held down must not pause and resume by turns
            return
        if not offer.enabled:
            self.notice = offer.consequence
            return
        run, actor, seen = self.run, self.actor, self.view.control_rev
        wishes: dict[str, Wish] = {
            "pause": lambda: run.pause(actor=actor),
            "resume": lambda: run.resume(caps=offer.caps or None, actor=actor, seen=seen),
            "hand_back": lambda: run.hand_back(actor=actor, seen=seen),
            "retry_undo": lambda: run.retry_undo(actor=actor),
        }
        self.want(wishes[offer.command])

    def redirect(self) -> None:
        """Open the composer for a new course."""
        offer = self.view.controls["redirect"]
        if offer.enabled:
            self.compose(self._redirection())
        else:
            self.notice = offer.consequence

    def ask_aside(self) -> None:
        """Open the composer for a side question."""
        self.compose(self._aside())

    def cancel(self) -> None:
        """Ask whether to cancel, and let nothing start meanwhile: no single key cancels."""
        offer = self.view.controls["cancel"]
        if offer.enabled:
            self.confirm()
        else:
            self.notice = offer.consequence

    def confirm(self) -> None:
        """Ask whether to cancel; a run at work is held meanwhile."""
        self.mode = Mode.CONFIRM
        if self.view.phase in GOING:
            self.held = True
            self.want(lambda: self.run.pause(hold=HOLD, actor=self.actor))

    def confirmed(self, undo: UndoSet) -> None:
        """Cancel, and undo as was said."""
        self.mode, self.held = Mode.BAR, False
        self.want(lambda: self.run.cancel(undo=undo, actor=self.actor))

    def back(self) -> None:
        """Close the sheet; a run that was held for it goes on."""
        held, self.held, self._holds = self.held, False, False
        self._close_sheet()
        if held:
            self.want(self._let_go)

    def _close_sheet(self) -> None:
        """Go back to what was under it: a line that somebody was writing, or the buttons."""
        self.mode = Mode.BAR if self.draft is None else Mode.COMPOSE

    async def _let_go(self) -> Receipt | None:
        view = await self.run.view()
        if view.hold_until is None:  # it is over, or somebody has paused the run for good
            return None
        return await self.run.resume(actor=self.actor, seen=view.control_rev)

    def help(self) -> None:
        """Show what every key does."""
        self.mode = Mode.HELP

    def withdraw(self) -> None:
        """Take back what was asked for last and has not been applied."""
        if self.view.pending:
            seq = self.view.pending[-1].seq
            self.want(lambda: self.run.withdraw(seq, actor=self.actor))

    # ── leaving ───────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Ctrl-C: pause; again: cancel?; again: quit, and leave the run paused."""
        if self.mode is Mode.CONFIRM or (self._warned and self.view.phase == "cancelling"):
            self.quit()
        elif self.view.phase == "cancelling":
            self._warned = True
            self.notice = "Cancelling goes on wherever the run is driven. Ctrl-C again leaves."
        elif self.view.phase in GOING:
            self.want(lambda: self.run.pause(actor=self.actor))
        else:
            self.confirm()

    def quit(self) -> None:
        """Leave the run paused, for good, and the bar."""
        self.want(self._paused_for_good)

    async def _paused_for_good(self) -> None:
        try:
            await self.run.pause(actor=self.actor)
        except ControlRefused:
            pass  # it rests already, or is being cancelled: there is nothing to pause
        finally:
            self._leave(Left.QUIT)

    def detach(self) -> None:
        """Leave the bar; the run goes on."""
        self._leave(Left.DETACHED)

    def say_how_to_leave(self) -> None:
        """Answer a key that leaves elsewhere: suspended, a driver would lose its run."""
        self.notice = f"d leaves the bar, and {self.hints.leaving}; Ctrl-C pauses it first."

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def compose(self, draft: Draft, text: str = "") -> None:
        """Open the composer for `draft`, with `text` in it."""
        self.draft, self.mode, self.notice = draft, Mode.COMPOSE, ""
        self.buffer.text = text
        self.buffer.cursor_position = len(text)

    def discard(self) -> None:
        """Close the composer; what was written is gone."""
        self.buffer.reset()
        self.draft, self.mode = None, Mode.BAR

    def send(self, *, now: bool = False) -> None:
        """Send what was written."""
        draft, text = self.draft, self.buffer.text.strip()
        self.discard()
        if draft is not None and (text or draft.blank):
            self.want(lambda: self._sent(draft, text, now=now))

    async def _sent(self, draft: Draft, text: str, *, now: bool) -> Receipt | None:
        # A cancellation leaves `sending` set: the bar goes away, and prints the text.
        self.sending = text
        try:
            receipt = await draft.send(text, now)
        except MidrunError:
            if self.mode is Mode.BAR:
                self.compose(draft, text)
                self.sending = ""
            raise
        self.sending = ""
        return receipt

    def toggle(self) -> None:
        """Make a side question of a redirect, or the other way round; the text stays."""
        if self.draft is not None and self.draft.label in {"redirect", "side question"}:
            other = self._aside() if self.draft.label == "redirect" else self._redirection()
            self.compose(other, self.buffer.text)

    def _redirection(self) -> Draft:
        async def send(text: str, now: bool) -> Receipt:  # noqa: FBT001 - as Send has it
            offer, seen = self.view.controls["redirect"], self.view.control_rev
            if offer.command == "resume":
                return await self.run.resume(
                    text, caps=offer.caps or None, actor=self.actor, seen=seen
                )
            return await self.run.redirect(
                text, when="now" if now else "next_step", actor=self.actor, seen=seen
            )

        hint = SENDING.format(other="side question")
        return Draft(label="redirect", send=send, hint=hint)

    def _aside(self) -> Draft:
        async def send(text: str, now: bool) -> Receipt:  # noqa: FBT001 - as Send has it
            urgency: Urgency = "now" if now else "next"
            return await self.run.say(text, urgency=urgency, actor=self.actor)

        hint = SENDING.format(other="redirect")
        return Draft(label="side question", send=send, hint=hint)

    # ── asks ──────────────────────────────────────────────────────────────────────────────

    @property
    def ask(self) -> AskView | None:
        """The ask on the sheet."""
        asks = self.view.asks
        return asks[self._ask % len(asks)] if asks else None

    @property
    def ask_number(self) -> int:
        """Which of the open asks it is, from 1."""
        return self._ask % max(len(self.view.asks), 1) + 1

    def look_at_asks(self) -> None:
        """Open the sheet of what the run asks."""
        if self.view.asks:
            self.mode, self._ask = Mode.ASKS, 0
        else:
            self.notice = "The run asks nothing."

    def next_ask(self) -> None:
        """Turn to the next ask."""
        self._ask += 1


def _nothing() -> None:
    """Nobody draws yet."""


DECISIONS: Final = {"answer": "answer", "approve": "approval"}
"""Control → what its sender calls it, where an ask was decided; else it is a decision."""


def _refused(refusal: ControlRefused) -> str:
    if refusal.reason in LOST_ASK and refusal.detail:
        mine = DECISIONS.get(refusal.control, "decision")
        won = f"{refusal.by} {refusal.detail} first" if refusal.by else refusal.detail
        return f"Your {mine} was not used: {won}."
    first = f" ({refusal.by} was first)" if refusal.by else ""
    detail = f": {refusal.detail}" if refusal.detail else ""
    reason = refusal.reason.replace("_", " ")
    return f"{refusal.control} refused: {reason}{detail}{first}; the run is {refusal.phase}"


def _told(receipt: Receipt) -> str:
    if receipt.said:
        return receipt.said
    if receipt.already:
        by = f" (by {receipt.by})" if receipt.by else ""
        return f"{receipt.already.replace('_', ' ')}{by}"
    return ""


# The wheel at the bar: a person takes the agent's place, or sends a new run another way.

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


# Deciding: what the keys of an open ask mean, and what becomes of what is typed.

UNSURE = {"y": "yes", "n": "no", "u": "unknown"}


def decide(hand: Hand, key: str) -> None:
    """Do what `key` means for the ask that is on the sheet; most keys mean nothing."""
    ask = hand.ask
    if ask is None:
        return
    if ask.kind == "unsure":
        if key in UNSURE:
            hand.want(_answered(hand, ask, UNSURE[key]))
    elif ask.kind == "approval" or (ask.kind == "child" and key in "yn"):
        _approve(hand, ask, key)
    elif key == "t":
        hand.compose(_answer(hand, ask))
    elif key == "n" and ask.declinable:
        hand.compose(_decline(hand, ask))
    elif key.isdecimal() and 0 < int(key) <= len(options(ask)):
        hand.want(_answered(hand, ask, options(ask)[int(key) - 1]))


def _approve(hand: Hand, ask: AskView, key: str) -> None:
    if key == "y":
        hand.want(lambda: hand.run.approve(ask=ask.id, actor=hand.actor))
    elif key == "n":
        hand.compose(_decline(hand, ask))
    elif key == "e":
        hand.compose(_edit(hand, ask), json_line(msgspec.json.encode(ask.args).decode()))


def _answered(hand: Hand, ask: AskView, value: Json) -> Wish:
    return lambda: hand.run.answer(value, ask=ask.id, actor=hand.actor)


def _answer(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.answer(value_of(text), ask=ask.id, actor=hand.actor)

    return Draft(label="answer", send=send)


def _decline(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.decline(text, ask=ask.id, actor=hand.actor)

    hint = "Enter: decline, with a reason if you like · Esc: discard"
    return Draft(label="decline, because", send=send, hint=hint, blank=True)


def _edit(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.approve(ask=ask.id, args=parse(text), actor=hand.actor)

    hint = "Enter: approve with these arguments (JSON) · Esc: discard"
    return Draft(label="arguments", send=send, hint=hint)
