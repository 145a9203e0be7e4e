"""The controller of the bar: turns key presses into controls, and knows which dialog is open.

A key means what the screen showed when it was pressed: buttons are read from the view at that
moment, and its revision is sent along, so that the run refuses a stale control. Controls are
sent one after the other by `send_queued`. A refusal is shown as a notice; a text that could not
be sent returns to the composer.
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

# Drafts: the text in the composer, and the control that it becomes.

Send: TypeAlias = Callable[[str, bool], Awaitable[Receipt | None]]
"""Sends the text. The bool is True for Alt+Enter: at once, not at the next step.

Returns the receipt; None if the function has set a notice itself.
"""

SENDING: Final = "Enter: next step · Alt+Enter: now · Tab: {other} · Esc: discard"
PLAIN: Final = "Enter: send · Esc: discard"


class Draft(Struct, frozen=True, kw_only=True):
    """The purpose of the composer's text. `may_be_empty` allows to send an empty text."""

    label: str
    send: Send
    hint: str = PLAIN
    blank: bool = False


Wish: TypeAlias = Callable[[], Awaitable[Receipt | None]]

HOLD: Final = timedelta(minutes=1)
"""Length of the temporary pause while the cancel dialog is open."""

DOUBLE: Final = 400_000
"""Microseconds within which a second press of the toggle is ignored."""

GOING: Final = frozenset({"queued", "running", "waiting"})
"""Phases in which the first Ctrl-C pauses; in the others there is nothing to pause."""


class Mode(Enum):
    """The part of the screen that gets the keys."""

    BAR = auto()
    COMPOSE = auto()
    CONFIRM = auto()
    ASKS = auto()
    HELP = auto()


class Left(Enum):
    """The reason why the bar was left."""

    ENDED = auto()  # the run has ended
    DETACHED = auto()  # the user detached; the run goes on
    QUIT = auto()  # the user quit; the run is paused


class Hand:
    """Sends one user's controls to a run. `leave` is called to close the bar."""

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
        self.changed: Callable[[], None] = _nothing  # redraws the screen
        # While the cancel dialog is open, the run is paused for a minute. `has_hold`: the pause
        # was requested by this dialog. `_hold_seen`: a view has shown it in force, so its
        # absence in a later view means that it is over, and not that it is still to come.
        self.held = False
        self._holds = False
        self.run = run
        self.actor = actor
        self._clock = clock
        self._leave = leave
        self._ask = 0
        self._warned = False
        self._promised: Receipt | None = None  # its announcement is valid until it is applied
        self._pressed = Micros(0)  # time of the last press of the toggle
        self._wishes: deque[Wish] = deque()
        self._wanted = anyio.Event()
        self.sending = ""  # the text of a request without a reply so far

    async def working(self) -> None:
        """Send the queued controls, in the order in which their keys were pressed."""
        while True:
            await self._wanted.wait()
            # A new event before the queue is emptied, so that no later request is missed.
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
        """Queue a control, and clear the notice."""
        self.notice = ""
        self._wishes.append(wish)
        self._wanted.set()

    def see(self, view: RunView) -> None:
        """Take over a new view, and update dialogs and notices that depend on it."""
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
        """Remove an announcement such as "Hold on …" when its request has been applied."""
        promised, view = self._promised, self.view
        if promised is None or view.seq < promised.seq:  # a view from before the request
            return
        if all(pending.seq != promised.seq for pending in view.pending):
            self._promised = None
            self.notice = "" if self.notice == promised.said else self.notice

    # ── the three buttons ─────────────────────────────────────────────────────────────────

    def press(self) -> None:
        """Press the first button, with its current meaning: pause, keep running, resume."""
        now, offer = self._clock(), self.view.controls["pause"]
        again, self._pressed = now - self._pressed < DOUBLE, now
        # A key that is held down repeats. It must not pause and resume alternately.
        if again:
            return
        if not offer.enabled:
            self.notice = offer.consequence
            return
        run, actor, revision = self.run, self.actor, self.view.control_rev
        wishes: dict[str, Wish] = {
            "pause": lambda: run.pause(actor=actor),
            "resume": lambda: run.resume(caps=offer.caps or None, actor=actor, seen=revision),
            "hand_back": lambda: run.hand_back(actor=actor, seen=revision),
            "retry_undo": lambda: run.retry_undo(actor=actor),
        }
        self.want(wishes[offer.command])

    def redirect(self) -> None:
        """Open the composer for a redirect."""
        offer = self.view.controls["redirect"]
        if offer.enabled:
            self.compose(self._redirection())
        else:
            self.notice = offer.consequence

    def ask_aside(self) -> None:
        """Open the composer for a side question."""
        self.compose(self._aside())

    def cancel(self) -> None:
        """Open the cancel dialog: a cancel always takes two keys."""
        offer = self.view.controls["cancel"]
        if offer.enabled:
            self.confirm()
        else:
            self.notice = offer.consequence

    def confirm(self) -> None:
        """Open the cancel dialog, and pause a run that is at work for its duration."""
        self.mode = Mode.CONFIRM
        if self.view.phase in GOING:
            self.held = True
            self.want(lambda: self.run.pause(hold=HOLD, actor=self.actor))

    def confirmed(self, undo: UndoSet) -> None:
        """Cancel the run with the chosen undo set."""
        self.mode, self.held = Mode.BAR, False
        self.want(lambda: self.run.cancel(undo=undo, actor=self.actor))

    def back(self) -> None:
        """Close the dialog; a run that was paused for it goes on."""
        held, self.held, self._holds = self.held, False, False
        self._close_sheet()
        if held:
            self.want(self._let_go)

    def _close_sheet(self) -> None:
        """Return to the composer if it was open below the dialog, else to the buttons."""
        self.mode = Mode.BAR if self.draft is None else Mode.COMPOSE

    async def _let_go(self) -> Receipt | None:
        view = await self.run.view()
        # The temporary pause is over, or another user has paused the run for good: then this
        # dialog must not resume it. `seen` guards the moment after this check.
        if view.hold_until is None:
            return None
        return await self.run.resume(actor=self.actor, seen=view.control_rev)

    def help(self) -> None:
        """Open the help."""
        self.mode = Mode.HELP

    def withdraw(self) -> None:
        """Withdraw the newest pending request."""
        if self.view.pending:
            seq = self.view.pending[-1].seq
            self.want(lambda: self.run.withdraw(seq, actor=self.actor))

    # ── leaving ───────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Handle Ctrl-C: first pause, then open the cancel dialog, then quit."""
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
        """Pause the run without a time limit, and leave the bar."""
        self.want(self._paused_for_good)

    async def _paused_for_good(self) -> None:
        try:
            await self.run.pause(actor=self.actor)
        except ControlRefused:
            pass  # the run rests already, or is being cancelled
        finally:
            self._leave(Left.QUIT)

    def detach(self) -> None:
        """Leave the bar; the run goes on."""
        self._leave(Left.DETACHED)

    def say_how_to_leave(self) -> None:
        """Explain how to leave, for Ctrl-D and Ctrl-Z.

        Ctrl-Z does not suspend the process: a suspended driver would lose its lease.
        """
        self.notice = f"d leaves the bar, and {self.hints.leaving}; Ctrl-C pauses it first."

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def compose(self, draft: Draft, text: str = "") -> None:
        """Open the composer for `draft`, filled with `text`."""
        self.draft, self.mode, self.notice = draft, Mode.COMPOSE, ""
        self.buffer.text = text
        self.buffer.cursor_position = len(text)

    def discard(self) -> None:
        """Close the composer and drop its text."""
        self.buffer.reset()
        self.draft, self.mode = None, Mode.BAR

    def send(self, *, now: bool = False) -> None:
        """Queue the composer's text, and close the composer."""
        draft, text = self.draft, self.buffer.text.strip()
        self.discard()
        if draft is not None and (text or draft.blank):
            self.want(lambda: self._sent(draft, text, now=now))

    async def _sent(self, draft: Draft, text: str, *, now: bool) -> Receipt | None:
        # If the session is cancelled here, `unconfirmed_text` stays set and the session prints
        # the text.
        self.sending = text
        try:
            receipt = await draft.send(text, now)
        except MidrunError:
            # Put the text back, unless the user has opened something else meanwhile.
            if self.mode is Mode.BAR:
                self.compose(draft, text)
                self.sending = ""
            raise
        self.sending = ""
        return receipt

    def toggle(self) -> None:
        """Switch the composer between redirect and side question, and keep the text."""
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
        """The ask that the dialog shows."""
        asks = self.view.asks
        return asks[self._ask % len(asks)] if asks else None

    @property
    def ask_number(self) -> int:
        """The number of that ask among the open ones, from 1."""
        return self._ask % max(len(self.view.asks), 1) + 1

    def look_at_asks(self) -> None:
        """Open the dialog of the open asks."""
        if self.view.asks:
            self.mode, self._ask = Mode.ASKS, 0
        else:
            self.notice = "The run has no open asks."

    def next_ask(self) -> None:
        """Show the next ask."""
        self._ask += 1


def _nothing() -> None:
    """Stand in for `on_change` until the screen sets it."""


DECISIONS: Final = {"answer": "answer", "approve": "approval"}
"""Control → noun in "Your … was not used"; for all others it is "decision"."""


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


# Take over, hand back and fork.

FORKING: Final = (
    "Enter: a new run goes on from here; the instruction is optional · Esc: discard"
)
HANDING: Final = "Enter: the agent goes on, and learns what you did · Esc: discard"
WRITING: Final = "Enter: say it in the agent's place · Esc: discard"


def is_taken(offers: dict[str, Offer]) -> bool:
    """Tell whether the run is taken over: then its first button is "Hand back"."""
    return offers["pause"].command == "hand_back"


def take_over(hand: Hand) -> None:
    """Take the run over; if it is taken over already, open the composer to write."""
    if is_taken(hand.view.controls):
        hand.compose(_writing(hand))
    else:
        hand.want(lambda: hand.run.take_over(actor=hand.actor))


def redirect(hand: Hand) -> None:
    """Open the composer for a redirect; for a run that is taken over, for a hand-back."""
    if is_taken(hand.view.controls):
        hand.compose(_handing(hand))
    else:
        hand.redirect()


def fork(hand: Hand) -> None:
    """Open the composer for the instruction of a fork."""
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


# Keys of the dialog for asks.

UNSURE = {"y": "yes", "n": "no", "u": "unknown"}


def decide(hand: Hand, key: str) -> None:
    """Handle a key for the ask in the dialog; a key without meaning is ignored."""
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

    hint = "Enter: decline; the reason is optional · Esc: discard"
    return Draft(label="decline, because", send=send, hint=hint, blank=True)


def _edit(hand: Hand, ask: AskView) -> Draft:
    async def send(text: str, _: bool) -> Receipt:  # noqa: FBT001 - as Send has it
        return await hand.run.approve(ask=ask.id, args=parse(text), actor=hand.actor)

    hint = "Enter: approve with these arguments (JSON) · Esc: discard"
    return Draft(label="arguments", send=send, hint=hint)
