"""The controller of the bar: turns key presses into controls, and knows which dialog is open.

A key means what the screen showed when it was pressed: buttons are read from the view at that
moment, and its revision is sent along, so that the run refuses a stale control. Controls are
sent one after the other by `send_queued`. A refusal is shown as a notice; a text that could not
be sent returns to the composer.
"""

import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from midrun.agents.file import File, is_media_type, is_text_type
from midrun.agents.outcome import AskView
from midrun.codec.strict_json import parse_json_or_text
from midrun.core.ids import Micros
from midrun.core.values import Actor, FileLimits, RedirectTiming, UndoSet
from midrun.errors import ControlRefused, FileRefused, MidrunError
from midrun.ports.environment import Clock
from midrun.refusal_texts import LOST_ASK_REASONS
from midrun.runs import control_specs as specs
from midrun.runs.protocols import AnyRun
from midrun.runs.validation import ActorLike
from midrun.runs.values import Receipt, RunView
from midrun.text.buttons import Button
from midrun.text.changes import TextChange, find_change
from midrun.tui.argument_form import ArgumentForm
from midrun.tui.bar import list_options, sort_arguments
from midrun.tui.styled_text import DEFAULT_HINTS, Hints

# Drafts: the text in the composer, and the control that it becomes.


class SentDraft(Struct, frozen=True, kw_only=True):
    """A text that is sent, and its files. `now` is True for Alt+Enter: not at the next turn."""

    text: str
    now: bool = False
    files: tuple[File, ...] = ()


SendDraft: TypeAlias = Callable[[SentDraft], Awaitable[Receipt | None]]
"""Sends the text. Returns the receipt; None if the function has set a notice itself."""

STEERING_HINT: Final = "Enter: next turn · Alt+Enter: now · Tab: {other} · Esc: discard"
PLAIN_HINT: Final = "Enter: send · Esc: discard"


class Draft(Struct, frozen=True, kw_only=True):
    """The purpose of the composer's text. `may_be_empty` allows to send an empty text.

    With `follow`, the text leads to another draft and its first text; None sends it. It raises
    an error for a text that does not fit; that stays in the composer. `files` are sent with the
    text, if it `takes_files`. `before` is the draft below the path prompt of a file, with its
    text.
    """

    label: str
    send: SendDraft
    hint: str = PLAIN_HINT
    may_be_empty: bool = False
    follow: "Callable[[str], tuple[Draft, str] | None] | None" = None
    takes_files: bool = False
    files: tuple[File, ...] = ()
    before: "tuple[Draft, str] | None" = None


ControlRequest: TypeAlias = Callable[[], Awaitable[Receipt | None]]

CANCEL_DIALOG_HOLD: Final = timedelta(minutes=1)
"""Length of the temporary pause while the cancel dialog is open."""

TOGGLE_REPEAT_MICROS: Final = 400_000
"""Microseconds within which a second press of the toggle is ignored."""

PAUSABLE_PHASES: Final = frozenset({"queued", "running", "waiting"})
"""Phases in which the first Ctrl-C pauses; in the others there is nothing to pause."""


class Mode(Enum):
    """The part of the screen that gets the keys."""

    BAR = auto()
    COMPOSE = auto()
    CONFIRM = auto()
    ASKS = auto()
    HELP = auto()


class ExitReason(Enum):
    """The reason why the bar was left."""

    ENDED = auto()  # the run has ended
    DETACHED = auto()  # the user detached; the run continues
    QUIT = auto()  # the user quit; the run is paused


class BarController:
    """Sends one user's controls to a run. `leave` is called to close the bar."""

    def __init__(
        self,
        run: AnyRun,
        view: RunView,
        *,
        actor: ActorLike,
        clock: Clock,
        leave: Callable[[ExitReason], None],
        hints: Hints = DEFAULT_HINTS,
    ) -> None:
        self.view = view
        self.hints = hints
        self.mode = Mode.BAR
        self.notice = ""
        self.draft: Draft | None = None
        self.buffer = Buffer(multiline=False)
        self.on_change: Callable[[], None] = _do_nothing  # redraws the screen
        self.expand: Callable[[], None] = _do_nothing  # prints a result, or a call
        # While the cancel dialog is open, the run is paused for a minute. `has_hold`: the pause
        # was requested by this dialog. `_hold_seen`: a view has shown it in force, so its
        # absence in a later view means that it is over, and not that it is still to come.
        self.has_hold = False
        self._hold_seen = False
        self.run = run
        self.actor = actor
        self.viewer = actor.name if isinstance(actor, Actor) else actor or ""
        self._clock = clock
        self._leave = leave
        self._ask_index = 0
        self._has_warned = False
        self._announced: Receipt | None = None  # its announcement is valid until it is applied
        self._pressed_at = Micros(0)  # time of the last press of the toggle
        self._queue: deque[ControlRequest] = deque()
        self._queue_grew = anyio.Event()
        self.unconfirmed_text = ""  # the text of a request without a reply so far
        self._texts: dict[str, str] = {}  # hash → text of an artifact that a call would change

    async def send_queued(self) -> None:
        """Send the queued controls, in the order in which their keys were pressed."""
        while True:
            await self._queue_grew.wait()
            # A new event before the queue is emptied, so that no later request is missed.
            self._queue_grew = anyio.Event()
            while self._queue:
                await self._send_control(self._queue.popleft())
                self.on_change()

    async def _send_control(self, request: ControlRequest) -> None:
        try:
            receipt = await request()
        except ControlRefused as refusal:
            self.notice = _format_refusal(refusal)
        except MidrunError as error:
            self.notice = str(error)
        else:
            self.notice = _format_receipt(receipt) if receipt is not None else self.notice
            self._announced = (
                receipt if receipt is not None and receipt.acknowledgement else None
            )

    def enqueue(self, request: ControlRequest) -> None:
        """Queue a control, and clear the notice."""
        self.notice = ""
        self._queue.append(request)
        self._queue_grew.set()

    def update_view(self, view: RunView) -> None:
        """Take over a new view, and update dialogs and notices that depend on it."""
        self.view = view
        self._clear_announcement()
        if self.has_hold and view.hold_until is not None:
            self._hold_seen = True
        elif self._hold_seen and view.phase in PAUSABLE_PHASES:
            self.has_hold = self._hold_seen = False
            if self.mode is Mode.CONFIRM:
                self._restore_mode()
                self.notice = "The minute is over: the run continues."
        if self.mode is Mode.ASKS and not view.asks:
            self.mode = Mode.BAR

    def _clear_announcement(self) -> None:
        """Remove an announcement such as "Hold on …" when its request has been applied."""
        promised, view = self._announced, self.view
        if promised is None or view.seq < promised.seq:  # a view from before the request
            return
        if all(pending.seq != promised.seq for pending in view.pending):
            self._announced = None
            self.notice = "" if self.notice == promised.acknowledgement else self.notice

    # ── the buttons ───────────────────────────────────────────────────────────────────────

    def press_toggle(self) -> None:
        """Press the first button, with its current meaning: pause, keep running, resume."""
        now, offer = self._clock(), self.view.controls["pause"]
        again, self._pressed_at = now - self._pressed_at < TOGGLE_REPEAT_MICROS, now
        # A key that is held down repeats. It must not pause and resume alternately.
        if again or not self._is_enabled("pause"):
            return
        run, actor, revision = self.run, self.actor, self.view.control_rev
        wishes: dict[str, ControlRequest] = {
            "pause": lambda: run.pause(actor=actor),
            "resume": lambda: run.resume(caps=offer.caps or None, actor=actor, seen=revision),
            "hand_back": lambda: run.hand_back(actor=actor, seen=revision),
            "retry_undo": lambda: run.retry_undo(actor=actor),
        }
        self.enqueue(wishes[offer.command])

    def compose_redirect(self) -> None:
        """Open the composer for a redirect."""
        if self._is_enabled("redirect"):
            self.compose(self._redirect_draft())

    def compose_side_question(self) -> None:
        """Open the composer for a side question."""
        if self._is_enabled("ask"):
            self.compose(self._make_side_question_draft())

    def open_cancel_dialog(self) -> None:
        """Open the cancel dialog: a cancel always takes two keys."""
        if self._is_enabled("cancel"):
            self.confirm_cancel()

    def _is_enabled(self, button: str) -> bool:
        """Tell whether a button is enabled; if not, show the reason as a notice."""
        offer = self.view.controls[button]
        if not offer.enabled:
            self.notice = offer.consequence
        return offer.enabled

    def confirm_cancel(self) -> None:
        """Open the cancel dialog, and pause a run that is at work for its duration."""
        self.mode = Mode.CONFIRM
        if self.view.phase in PAUSABLE_PHASES:
            self.has_hold = True
            self.enqueue(lambda: self.run.pause(hold=CANCEL_DIALOG_HOLD, actor=self.actor))

    def cancel_run(self, undo: UndoSet) -> None:
        """Cancel the run with the chosen undo set."""
        self.mode, self.has_hold = Mode.BAR, False
        self.enqueue(lambda: self.run.cancel(undo=undo, actor=self.actor))

    def close_dialog(self) -> None:
        """Close the dialog; a run that was paused for it continues."""
        held, self.has_hold, self._hold_seen = self.has_hold, False, False
        self._restore_mode()
        if held:
            self.enqueue(self._release_hold)

    def _restore_mode(self) -> None:
        """Return to the composer if it was open below the dialog, else to the buttons."""
        self.mode = Mode.BAR if self.draft is None else Mode.COMPOSE

    async def _release_hold(self) -> Receipt | None:
        view = await self.run.view()
        # The temporary pause is over, or another user has paused the run for good: then this
        # dialog must not resume it. `seen` guards the moment after this check.
        if view.hold_until is None:
            return None
        return await self.run.resume(actor=self.actor, seen=view.control_rev)

    def open_help(self) -> None:
        """Open the help."""
        self.mode = Mode.HELP

    def withdraw_newest(self) -> None:
        """Withdraw the newest pending request."""
        if self.view.pending:
            seq = self.view.pending[-1].seq
            self.enqueue(lambda: self.run.withdraw(seq, actor=self.actor))

    # ── leaving ───────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Handle Ctrl-C: first pause, then open the cancel dialog, then quit."""
        if self.mode is Mode.CONFIRM or (self._has_warned and self.view.phase == "cancelling"):
            self.quit()
        elif self.view.phase == "cancelling":
            self._has_warned = True
            self.notice = (
                "The cancel continues in the process that drives the run. Ctrl-C again leaves."
            )
        elif self.view.phase in PAUSABLE_PHASES:
            self.enqueue(lambda: self.run.pause(actor=self.actor))
        else:
            self.confirm_cancel()

    def quit(self) -> None:
        """Pause the run without a time limit, and leave the bar."""
        self.enqueue(self._pause_and_leave)

    async def _pause_and_leave(self) -> None:
        try:
            await self.run.pause(actor=self.actor)
        except ControlRefused:
            pass  # the run rests already, or is being cancelled
        finally:
            self._leave(ExitReason.QUIT)

    def detach(self) -> None:
        """Leave the bar; the run continues."""
        self._leave(ExitReason.DETACHED)

    def explain_leaving(self) -> None:
        """Explain how to leave, for Ctrl-D and Ctrl-Z.

        Ctrl-Z does not suspend the process: a suspended driver would lose its lease.
        """
        self.notice = (
            f"d leaves the bar, and {self.hints.after_leaving}; Ctrl-C pauses it first."
        )

    # ── writing ───────────────────────────────────────────────────────────────────────────

    def compose(self, draft: Draft, text: str = "") -> None:
        """Open the composer for `draft`, filled with `text`."""
        self.draft, self.mode, self.notice = draft, Mode.COMPOSE, ""
        self.buffer.text = text
        self.buffer.cursor_position = len(text)

    def discard_draft(self) -> None:
        """Close the composer and drop its text; close only the path prompt of a file."""
        if self.draft is not None and self.draft.before is not None:
            self.compose(*self.draft.before)
            return
        self._close_composer()

    def _close_composer(self) -> None:
        self.buffer.reset()
        self.draft, self.mode = None, Mode.BAR

    def send_draft(self, *, now: bool = False) -> None:
        """Queue the composer's text, and close the composer."""
        draft, text = self.draft, self.buffer.text.strip()
        if draft is not None and draft.follow is not None:
            try:
                following = draft.follow(text)
            except (ValueError, MidrunError) as error:
                self.notice = str(error)
                return
            is_path = draft.before is not None  # the path of a file is never sent
            if following is not None and (is_path or not now):
                self.compose(*following)  # at once: the next key must not be a command
                return
        if draft is not None and draft.files and not text:
            self.notice = "Cannot send files without a text. Write one."
            return
        self._close_composer()
        if draft is not None and (text or draft.may_be_empty):
            self.enqueue(lambda: self._send_text(draft, text, now=now))

    async def _send_text(self, draft: Draft, text: str, *, now: bool) -> Receipt | None:
        # If the session is cancelled here, `unconfirmed_text` stays set and the session prints
        # the text.
        self.unconfirmed_text = text
        try:
            sent = SentDraft(text=text, now=now, files=draft.files)
            receipt = await draft.send(sent)
        except MidrunError:
            # Put the text back, unless the user has opened something else meanwhile.
            if self.mode is Mode.BAR:
                self.compose(draft, text)
                self.unconfirmed_text = ""
            raise
        self.unconfirmed_text = ""
        return receipt

    def press_tab(self) -> None:
        """Switch between redirect and side question; in a path prompt, complete the path."""
        draft = self.draft
        if draft is None:
            return
        if draft.before is not None:
            complete_path(self)
        elif draft.label == "redirect" and self._is_enabled("ask"):
            other = self._make_side_question_draft()
            self.compose(replace(other, files=draft.files), self.buffer.text)
        elif draft.label == "side question" and self._is_enabled("redirect"):
            other = self._redirect_draft()
            self.compose(replace(other, files=draft.files), self.buffer.text)

    def _redirect_draft(self) -> Draft:
        async def send(sent: SentDraft) -> Receipt:
            offer, seen = self.view.controls["redirect"], self.view.control_rev
            text, files, actor = sent.text, sent.files, self.actor
            if offer.command == "resume":
                caps = offer.caps or None
                return await self.run.resume(
                    text, caps=caps, files=files, actor=actor, seen=seen
                )
            when: RedirectTiming = "now" if sent.now else "next_step"
            return await self.run.redirect(text, when=when, files=files, actor=actor, seen=seen)

        hint = STEERING_HINT.format(other="side question")
        return Draft(label="redirect", send=send, hint=hint, takes_files=True)

    def _make_side_question_draft(self) -> Draft:
        async def send(sent: SentDraft) -> Receipt:
            is_paused = self.view.phase == "paused"
            urgency: Literal["now", "next"] = "now" if sent.now else "next"
            receipt = await self.run.say(
                sent.text, urgency=urgency, files=sent.files, actor=self.actor
            )
            if is_paused:  # as on the page: the run resumes to answer
                await self.run.resume(actor=self.actor)
            return receipt

        return Draft(
            label="side question",
            send=send,
            hint=STEERING_HINT.format(other="redirect"),
            takes_files=True,
        )

    # ── asks ──────────────────────────────────────────────────────────────────────────────

    @property
    def current_ask(self) -> AskView | None:
        """The ask that the dialog shows."""
        asks = self.view.asks
        return asks[self._ask_index % len(asks)] if asks else None

    @property
    def current_ask_number(self) -> int:
        """The number of that ask among the open ones, from 1."""
        return self._ask_index % max(len(self.view.asks), 1) + 1

    def open_asks_dialog(self) -> None:
        """Open the dialog of the open asks."""
        if not self.view.asks:
            self.notice = "The run has no open asks."
            return
        self.mode, self._ask_index = Mode.ASKS, 0
        changes = map(self._find_change, self.view.asks)
        missing = [made.file.hash for made in changes if made is not None and made.file]
        if missing:
            self.enqueue(partial(self._load_texts, missing))

    @property
    def current_change(self) -> TextChange | None:
        """The change that the shown call would make to a text, once that text is loaded."""
        change = self._find_change(self.current_ask) if self.current_ask is not None else None
        if change is None or change.file is None:
            return change
        before = self._texts.get(change.file.hash)
        return None if before is None else replace(change, before=before)

    def _find_change(self, ask: AskView) -> TextChange | None:
        return find_change(ask.args, {shown.name: shown.file for shown in self.view.artifacts})

    async def _load_texts(self, hashes: list[str]) -> None:
        """Load the artifacts that calls would change, to show the lines that differ."""
        for file_hash in hashes:
            file = await self.run.file(file_hash)
            self._texts[file_hash] = file.data.decode(errors="replace")

    def show_next_ask(self) -> None:
        """Show the next ask."""
        self._ask_index += 1


def _do_nothing() -> None:
    """Stand in for `on_change` until the screen sets it."""


DECISION_NOUNS: Final = {"answer": "answer", "approve": "approval"}
"""Control → noun in "Your … was not used"; for all others it is "decision"."""


def _format_refusal(refusal: ControlRefused) -> str:
    if refusal.reason in LOST_ASK_REASONS and refusal.detail:
        mine = DECISION_NOUNS.get(refusal.control, "decision")
        won = f"{refusal.by} {refusal.detail} first" if refusal.by else refusal.detail
        return f"Your {mine} was not used: {won}."
    first = f" ({refusal.by} was first)" if refusal.by else ""
    detail = f": {refusal.detail}" if refusal.detail else ""
    reason = refusal.reason.replace("_", " ")
    return f"{refusal.control} refused: {reason}{detail}{first}; the run is {refusal.phase}"


def _format_receipt(receipt: Receipt) -> str:
    if receipt.acknowledgement or not receipt.already:
        return receipt.acknowledgement
    by = f" (by {receipt.by})" if receipt.by else ""
    return f"{receipt.already.replace('_', ' ')}{by}"


# Take over, hand back and fork.

FORK_HINT: Final = (
    "Enter: a new run continues from here; the instruction is optional · Esc: discard"
)
HAND_BACK_HINT: Final = "Enter: the agent continues, and learns what you did · Esc: discard"
WRITE_HINT: Final = "Enter: say it in the agent's place · Esc: discard"


def is_taken_over(buttons: dict[str, Button]) -> bool:
    """Tell whether the run is taken over: then its first button is "Hand back"."""
    return buttons["pause"].command == "hand_back"


def take_over(controller: BarController) -> None:
    """Take the run over; if it is taken over already, open the composer to write."""
    run, actor = controller.run, controller.actor
    if not is_taken_over(controller.view.controls):
        controller.enqueue(lambda: run.take_over(actor=actor))
        return
    controller.compose(
        Draft(
            label="in the agent's place",
            send=lambda sent: run.write(sent.text, actor=actor),
            hint=WRITE_HINT,
        )
    )


def redirect_or_hand_back(controller: BarController) -> None:
    """Open the composer for a redirect; for a run that is taken over, for a hand-back."""
    run, actor = controller.run, controller.actor
    if not is_taken_over(controller.view.controls):
        controller.compose_redirect()
        return
    controller.compose(
        Draft(
            label="hand back, and",
            send=lambda sent: run.hand_back(sent.text, actor=actor),
            hint=HAND_BACK_HINT,
        )
    )


def compose_fork(controller: BarController) -> None:
    """Open the composer for the instruction of a fork."""

    async def send(sent: SentDraft) -> None:
        instruction = sent.text or None
        made = await controller.run.fork(instruction=instruction, actor=controller.actor)
        command = controller.hints.format_command("attach", made.id)
        controller.notice = f"A new run continues from here: {command}"

    draft = Draft(label="fork, and", send=send, hint=FORK_HINT, may_be_empty=True)
    controller.compose(draft)


# Files that are sent with a text.

ATTACH_HINT: Final = "Enter: attach it · Tab: complete the path · Esc: back to the text"
COMPLETIONS_SHOWN_MAX: Final = 8


def attach_file(controller: BarController) -> None:
    """Open the path prompt of a file that is sent with the text in the composer."""
    draft, text = controller.draft, controller.buffer.text
    if draft is None or draft.before is not None:
        return
    if not draft.takes_files:
        controller.notice = f"Cannot attach a file here: “{draft.label}” takes a text only."
        return

    def follow(path: str) -> tuple[Draft, str]:
        files = (*draft.files, _read_file(path)) if path else draft.files
        return replace(draft, files=files), text

    prompt = Draft(
        label="attach the file",
        send=draft.send,
        hint=ATTACH_HINT,
        follow=follow,
        before=(draft, text),
    )
    controller.compose(prompt)


def _read_file(text: str) -> File:
    """Read a file for a run.

    Raises:
        FileRefused: It is too large for a run, cannot be read, or no model reads its type.
    """
    path = Path(text).expanduser()
    # Before it is read: a device never ends, a pipe blocks, and a large file fills the memory.
    if path.exists() and not path.is_file():
        raise FileRefused(f"Cannot attach {text}: it is no regular file. Choose another.")
    size, limit = (path.stat().st_size if path.exists() else 0), FileLimits().file_bytes
    if size > limit:
        problem = f"it has {size:,} bytes, and a run takes {limit:,}. Choose a smaller one."
        raise FileRefused(f"Cannot attach {text}: {problem}")
    file = File.from_path(path)
    if not (is_text_type(file.media_type) or is_media_type(file.media_type)):
        problem = f"no model reads {file.media_type}. Choose a text, an image or a PDF."
        raise FileRefused(f"Cannot attach {text}: {problem}")
    return file


def complete_path(controller: BarController) -> None:
    """Complete the path in the composer; show the names if there are several."""
    text = controller.buffer.text
    head, _, start = text.rpartition("/")
    folder = Path(f"{head}/" if "/" in text else ".").expanduser()
    try:
        found = sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in os.scandir(folder)
            if entry.name.startswith(start) and (start or not entry.name.startswith("."))
        )
    except OSError as error:
        controller.notice = f"Cannot read {folder}: {error.strerror}."
        return
    if not found:
        controller.notice = f"No file begins with “{text}”."
        return
    names = ", ".join(found[:COMPLETIONS_SHOWN_MAX])
    more = f" and {len(found) - COMPLETIONS_SHOWN_MAX} more"
    rest = more if len(found) > COMPLETIONS_SHOWN_MAX else ""
    controller.notice = f"{names}{rest}" if len(found) > 1 else ""
    common = os.path.commonprefix(found)  # noqa: RUF071 - of names in one folder
    controller.buffer.insert_text(common[len(start) :])


# Keys of the dialog for asks.

NOTHING_TO_EDIT: Final = "The call has no arguments to edit; use `midrun approve --args`."

OUTCOME_KEYS = {"y": "yes", "n": "no", "u": "unknown"}


def handle_ask_key(controller: BarController, key: str) -> None:
    """Handle a key for the ask in the dialog; a key without meaning is ignored."""
    ask = controller.current_ask
    if ask is None:
        return
    kind = ask.effective_kind
    if kind == "unsure":
        if key in OUTCOME_KEYS:
            _answer_ask(controller, ask, OUTCOME_KEYS[key])
    elif kind == "approval" or (kind == "child" and key in "yn"):
        _handle_approval_key(controller, ask, key)
    elif key == "t":
        controller.compose(_answer_draft(controller, ask))
    elif key == "n" and ask.declinable:
        controller.compose(_decline_draft(controller, ask))
    elif key.isdecimal() and 0 < int(key) <= len(list_options(ask)):
        _answer_ask(controller, ask, list_options(ask)[int(key) - 1])


def _handle_approval_key(controller: BarController, ask: AskView, key: str) -> None:
    if key == "y":
        controller.enqueue(lambda: controller.run.approve(ask=ask.id, actor=controller.actor))
    elif key == "n":
        controller.compose(_decline_draft(controller, ask))
    elif key == "e":
        args = sort_arguments(ask.args) if isinstance(ask.args, dict) else ask.args
        form = ArgumentForm.open(args)
        if form.fields:
            controller.compose(*_edit_field(controller, ask, form))
        else:
            controller.notice = NOTHING_TO_EDIT


def _answer_ask(controller: BarController, ask: AskView, value: str) -> None:
    controller.enqueue(lambda: controller.run.answer(value, ask=ask.id, actor=controller.actor))


def _answer_draft(controller: BarController, ask: AskView) -> Draft:
    return Draft(
        label="answer",
        send=lambda sent: controller.run.answer(
            parse_json_or_text(sent.text),
            ask=ask.id,
            files=sent.files,
            actor=controller.actor,
        ),
        takes_files=True,
    )


def _decline_draft(controller: BarController, ask: AskView) -> Draft:
    return Draft(
        label="decline, because",
        send=lambda sent: controller.run.decline(sent.text, ask=ask.id, actor=controller.actor),
        hint="Enter: decline; the reason is optional · Esc: discard",
        may_be_empty=True,
    )


def _edit_field(
    controller: BarController, ask: AskView, form: ArgumentForm
) -> tuple[Draft, str]:
    """Return the draft for the current field of an approval, and its text."""
    field, number = form.current, len(form.texts) + 1
    is_last = number == len(form.fields)
    then = "approve with these arguments" if is_last else "go to the next argument"
    if field.is_new:
        then = f"add it; empty: {then}"
    elif field.is_item:
        then += "; empty: remove it"

    def follow(text: str) -> tuple[Draft, str] | None:
        following = form.enter(text)
        return None if following.is_complete else _edit_field(controller, ask, following)

    async def send(sent: SentDraft) -> Receipt:
        args = form.enter(sent.text).build_arguments()
        return await controller.run.approve(ask=ask.id, args=args, actor=controller.actor)

    early = "" if is_last else " · Alt+Enter: approve now"
    draft = Draft(
        label=field.label if field.is_plain else f"{field.label} (\\n: line break)",
        send=send,
        hint=f"Enter: {then} ({number} of {len(form.fields)}){early} · Esc: discard",
        may_be_empty=True,
        follow=follow,
    )
    return draft, field.text


# Key bindings of the bar, for each mode.

ActionsByKey: TypeAlias = Mapping[str, Callable[[], None]]
"""Key, or sequence of keys separated by blanks → action."""

ASK_DIALOG_KEYS: Final = "yenut123456789"


def build_key_bindings(controller: BarController, focus: Callable[[], None]) -> KeyBindings:
    """Return the key bindings of the bar, its dialogs and the composer.

    `focus` is called after each action, before the next key is handled. Otherwise text typed
    or pasted right after the key that opens the composer would be taken for commands.
    """
    keys = KeyBindings()

    def make_handler(action: Callable[[], None]) -> Callable[[KeyPressEvent], None]:
        def handle(_: KeyPressEvent) -> None:
            action()
            focus()

        return handle

    for mode, actions in _list_actions_by_mode(controller).items():
        live = Condition(partial(_is_in_mode, controller, mode))
        for key, action in actions.items():
            keys.add(*key.split(), filter=live)(make_handler(action))
    keys.add("c-c")(make_handler(controller.interrupt))
    return keys


def _is_in_mode(controller: BarController, mode: Mode) -> bool:
    return controller.mode is mode


def _list_actions_by_mode(controller: BarController) -> dict[Mode, ActionsByKey]:
    return {
        Mode.BAR: {
            specs.PAUSE.key: controller.press_toggle,
            specs.REDIRECT.key: partial(redirect_or_hand_back, controller),
            specs.SAY.key: controller.compose_side_question,
            specs.CANCEL.key: controller.open_cancel_dialog,
            specs.ANSWER.key: controller.open_asks_dialog,
            specs.WITHDRAW.key: controller.withdraw_newest,
            specs.TAKE_OVER.key: partial(take_over, controller),
            "o": controller.expand,
            "f": partial(compose_fork, controller),
            "d": controller.detach,
            "c-d": controller.explain_leaving,
            "c-z": controller.explain_leaving,
            "?": controller.open_help,
        },
        Mode.COMPOSE: {
            "enter": controller.send_draft,
            "escape enter": partial(controller.send_draft, now=True),
            "escape": controller.discard_draft,
            "tab": controller.press_tab,
            "c-o": partial(attach_file, controller),
        },
        Mode.CONFIRM: {
            "y": partial(controller.cancel_run, "all"),
            "k": partial(controller.cancel_run, "in_flight"),
            "n": controller.close_dialog,
            "escape": controller.close_dialog,
        },
        Mode.ASKS: {
            **{key: partial(handle_ask_key, controller, key) for key in ASK_DIALOG_KEYS},
            "o": controller.expand,
            "tab": controller.show_next_ask,
            "escape": controller.close_dialog,
        },
        Mode.HELP: {"?": controller.close_dialog, "escape": controller.close_dialog},
    }
