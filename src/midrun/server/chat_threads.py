"""Requests and replies of chat protocols, whose clients know threads but not runs.

A chat client (AG-UI, CopilotKit, the Vercel AI SDK, OpenAI) sends a message to a thread. The
meaning of the message follows from the phase of the newest run of that thread: without an open
run it starts one; paused or failed, the run resumes with it; waiting with one open question, it
is the answer; otherwise it redirects the run. The adapters translate; the rules are here.

A reply is everything that the run does from the entry with the message until it rests
(`ReplyEvents`). A client that leaves before the end of its reply stops the run after a grace.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import ClassVar, Final

import anyio
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from midrun import events as ev
from midrun.agents.file import File, parse_data_url
from midrun.core import entries as e
from midrun.core.ids import Seq
from midrun.core.state import Ask, RequestOutcome, State
from midrun.core.values import RESTING_PHASES, TERMINAL_PHASES, ClientTool, Json, Phase
from midrun.driver.journal_writer import load_run_state
from midrun.errors import ControlRefused, Misconfigured, StoreError
from midrun.ports.store import RunQuery, RunRow
from midrun.runs.event_stream import EventBuilder
from midrun.runs.run import Run
from midrun.runs.service import make_run_id
from midrun.runs.validation import ControlOptions, check_name
from midrun.runs.values import FeedEntry, Receipt
from midrun.server.feed_routes import SseResponse, StreamSource
from midrun.server.problem_details import HttpProblem
from midrun.server.request_context import RequestContext
from midrun.server.rest_text import describe_asks

FIRST_SEQ: Final = Seq(1)
"""The entry that starts a run; it has the user's first message."""

ONLY_FILES_TEXT: Final = "See the attached file."
"""The text of a message that has files only."""


# ── messages ──────────────────────────────────────────────────────────────────────────────


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A user's message to a thread of an agent.

    `history` has earlier messages that the client keeps; only without a thread.
    """

    agent: str
    thread: str
    text: str
    request_id: str | None
    history: Sequence[object] | None = None
    files: Sequence[File] = ()
    client_tools: Sequence[ClientTool] = ()  # of the client, for a run that is started


CONTENT_DIGEST_CHARS: Final = 32
"""The length of the digest of a message in its request id."""


def digest_content(*texts: str, files: Sequence[File] = ()) -> str:
    """Return a digest of the content of a message, to tell a repeated one from another."""
    content = "\n".join([*texts, *(file.ref.hash for file in files)])
    return sha256(content.encode()).hexdigest()[:CONTENT_DIGEST_CHARS]


def read_file_part(message_id: str, name: str, media_type: str, url: str) -> File:
    """Return the file in a part of a chat message, which is a data URL with base64.

    An address is not fetched: the server would reach hosts that the client cannot.

    Raises:
        HttpProblem: 422, it is another URL, or the file is malformed.
    """
    try:
        return parse_data_url(name, media_type, url)
    except (ValueError, Misconfigured) as error:
        problem = (
            f"Cannot take message {message_id!r}: its file {name!r} "
            f"({media_type or 'of an unknown type'}) must be a data URL with base64. {error}."
        )
        raise HttpProblem("invalid_body", 422, problem) from None


class SentMessage(Struct, frozen=True, kw_only=True):
    """The run that received a message, and the entry at which the reply begins.

    `state` is the state in which the message found the run. `is_taken` is false if there was
    nothing to send, so that the client only follows the run.
    """

    run: Run
    state: State
    begins_at: Seq
    is_taken: bool = True


async def find_newest_run(context: RequestContext, agent: str, thread: str) -> RunRow | None:
    """Return the newest run of the caller's thread, or None.

    Each tenant has threads of its own, and each user in it.

    Raises:
        Misconfigured: `thread` is not a valid name.
    """
    thread = check_name("thread", thread)
    query = RunQuery(
        thread=thread,
        agent=agent,
        tenant=context.actor.tenant,
        owner=context.owner_filter,
        limit=1,
    )
    return next(iter((await context.server.store.list_runs(query)).items), None)


async def send_message(
    context: RequestContext,
    row: RunRow | None,
    message: ChatMessage,
    *,
    by_words: bool = False,
    must_send: bool = True,
) -> SentMessage:
    """Send a message to the run `row` of its thread, or start a run.

    The other arguments are those of `send_to_run`.

    Raises:
        HttpProblem: 404, no such agent; 409, the run takes no message now; 422, no text.
    """
    ended = None
    if row is not None:
        if (repeated := await _find_started_run(context, row, message)) is not None:
            return repeated
        run = await context.server.mid.get(row.run)
        sent = await send_to_run(context, run, message, by_words=by_words, must_send=must_send)
        if sent is not None:
            return sent
        ended = row.run
    if not message.thread:
        return await start_run(context, message)
    # Two messages may find a thread without an open run at the same time. The second waits
    # here until the first has started a run, and is then sent to that run. Otherwise the thread
    # would have two runs at work, and its clients would see only the newer one. Another server
    # on the same store does not know this lock.
    key = (context.actor.tenant, context.owner_filter, message.agent, message.thread)
    async with context.server.thread_locks.setdefault(key, anyio.Lock()):
        while True:
            row = await find_newest_run(context, message.agent, message.thread)
            if row is None or row.run == ended:
                return await start_run(context, message)
            run = await context.server.mid.get(row.run)
            sent = await send_to_run(
                context, run, message, by_words=by_words, must_send=must_send
            )
            if sent is not None:
                return sent
            ended = row.run


async def _find_started_run(
    context: RequestContext, newest: RunRow, message: ChatMessage
) -> SentMessage | None:
    """Return the run that an earlier request of the same id has started before the newest.

    Sent to the newest run of the thread, the repeated message would redirect it.
    """
    run_id = make_run_id(message.request_id or "")
    if run_id == newest.run or not await context.can_see(run_id):
        return None
    run = await context.server.mid.get(run_id)
    state = await context.server.views.read_state(run_id)
    return SentMessage(run=run, state=state, begins_at=FIRST_SEQ)


async def send_to_run(
    context: RequestContext,
    run: Run,
    message: ChatMessage,
    *,
    by_words: bool = False,
    must_send: bool = True,
) -> SentMessage | None:
    """Send a message to a run as the control that fits its phase; None if the run has ended.

    A message that was sent before, and whose reply was lost, is not sent again: the client
    follows the reply from the entry of its first request, also if the run has ended meanwhile.
    With `by_words` the text may decide asks; see `decide_by_words`. Without `must_send`, a
    message that the run cannot take now is no error.

    Raises:
        HttpProblem: 409, the run takes no message now, or the message has no text.
        ControlRefused: the run refuses the control.
    """
    while True:
        state = await context.server.views.read_state(run.id)
        earlier = find_earlier_request(state, message.request_id)
        if earlier is not None and not earlier.refused:
            return SentMessage(run=run, state=state, begins_at=earlier.seq)
        if state.phase in TERMINAL_PHASES:
            return None
        request_id = make_attempt_id(state, message.request_id)
        options = ControlOptions(actor=context.actor, request_id=request_id)
        try:
            receipt = await _send_by_phase(context, run, state, message, options, by_words)
        except ControlRefused as refused:
            # The run has changed since its state was read. Choose the control again, for the
            # newer state.
            if refused.reason != "stale_revision":
                raise
            continue
        if receipt is not None:
            return SentMessage(run=run, state=state, begins_at=receipt.seq)
        if must_send:
            advice = _NO_MESSAGE_ADVICE[state.phase] if message.text else "Send a message."
            problem = f"Cannot take the message: run {run.id} is {state.phase}. {advice}"
            raise HttpProblem("wrong_phase", 409, problem)
        begins_at = Seq(state.seq + 1)
        return SentMessage(run=run, state=state, begins_at=begins_at, is_taken=False)


_NO_MESSAGE_ADVICE: Final = {
    Phase.CANCELLING: "Wait for its end, and send it again.",
    Phase.HALTED: "Send it again when an operator has lifted the halt.",
}

SUB_REQUEST_SEPARATOR: Final = "\x1f"
"""Stands in a request id between the id of a client's request and the number of a control.

No client has it in its ids, so no id of one request is the beginning of another's."""


def find_earlier_request(state: State, request_id: str | None) -> RequestOutcome | None:
    """Return the outcome of a request: of its first control that was taken, or a refusal.

    One request of a client may have sent several controls, whose ids begin with its own.
    """
    if not request_id:
        return None
    prefix = f"{request_id}{SUB_REQUEST_SEPARATOR}"
    found = [
        outcome
        for known_id, outcome in state.requests.items()
        if known_id == request_id or known_id.startswith(prefix)
    ]
    return next((each for each in found if not each.refused), found[-1] if found else None)


def make_attempt_id(state: State, request_id: str | None) -> str | None:
    """Return the id for an attempt of a request, another one if it was refused before.

    The core would repeat the refusal for ever. The reason may be gone by now: a cap was raised,
    a halt was lifted, an ask was closed.
    """
    earlier = find_earlier_request(state, request_id)
    if earlier is None or not earlier.refused:
        return request_id
    return f"{request_id}{SUB_REQUEST_SEPARATOR}{earlier.seq}"


async def _send_by_phase(
    context: RequestContext,
    run: Run,
    state: State,
    message: ChatMessage,
    options: ControlOptions,
    by_words: bool,  # noqa: FBT001 - one caller
) -> Receipt | None:
    if by_words and state.phase is Phase.WAITING:
        receipt = await decide_by_words(context, run, state, message, options)
        if receipt is not None:
            return receipt
    return await _send_text(context, run, state, message, options)


async def start_run(context: RequestContext, message: ChatMessage) -> SentMessage:
    """Start a run in a thread that has no open one.

    Raises:
        HttpProblem: 404, no such agent; 422, there is no text; 429, a quota is used up.
    """
    mid = context.server.mid
    check_agent(context, message.agent)
    if not message.text:
        problem = "Cannot start a run: there is no new user message. Send one."
        raise HttpProblem("invalid_body", 422, problem)
    run = await context.start_within_quotas(
        message.request_id,
        lambda quotas: mid.start(
            message.agent,
            message.text,
            thread=message.thread,
            history=message.history,
            request_id=message.request_id,
            actor=context.actor,
            own_thread=bool(context.owner_filter),
            files=message.files,
            client_tools=message.client_tools,
            quotas=quotas,
        ),
    )
    return SentMessage(run=run, state=State(run=run.id), begins_at=FIRST_SEQ)


def check_agent(context: RequestContext, agent: str) -> None:
    """Refuse the name of an agent that the server does not have.

    Raises:
        HttpProblem: 404, with the names of the agents that it has.
    """
    agents = context.server.mid.agents
    if agent not in agents:
        problem = f"Cannot find agent {agent}. Known agents: {', '.join(agents) or 'none'}."
        raise HttpProblem("agent_not_found", 404, problem)


async def _send_text(
    context: RequestContext,
    run: Run,
    state: State,
    message: ChatMessage,
    options: ControlOptions,
) -> Receipt | None:
    """Send a user's text to an open run as the control that fits its phase.

    If the answer to an open question cannot have files, a text with files redirects the run.
    None if nothing was sent: there is no text, or the run is cancelling or halted.

    Raises:
        ControlRefused: `stale_revision`: `state` is not the newest; or another reason.
    """
    text, files = message.text, message.files
    # The control fits this state only. In another one, a resume would be refused, and a
    # redirect would come too late.
    seen = ControlOptions(**options, seen=state.control_rev)
    match state.phase:
        # Also without a text: a client that asks for the reply again wants the run to continue.
        case Phase.PAUSED | Phase.FAILED:
            return await run.resume(text or None, files=files, **seen)
        case Phase.WAITING if text and _has_one_open_question(state, bool(files)):
            # Without `seen`: the answer names its ask. If another person has answered that ask,
            # this request is refused, and its text is not used for something else.
            ask = state.asks[state.open_asks[0] - 1]
            return await run.answer(text, ask=ask.id, files=files, **options)
        case Phase.WAITING | Phase.RUNNING | Phase.QUEUED | Phase.PAUSING if text:
            return await context.redirect(run, text, seen, files)
        case _:
            return None


def _has_one_open_question(state: State, has_files: bool) -> bool:  # noqa: FBT001 - one caller
    """Return whether exactly one ask is open and it is a question that a text can answer.

    Only then is a plain message the answer: an approval must not be given by chance.
    """
    if len(state.open_asks) != 1:
        return False
    ask = state.asks[state.open_asks[0] - 1]
    return ask.effective_kind == "question" and (ask.takes_files or not has_files)


def find_ask(run: Run, state: State, public_id: str) -> Ask:
    """Return the ask with the id that clients see: the run and the ask.

    Raises:
        HttpProblem: 404, the run has no such ask.
    """
    own = public_id.removeprefix(f"{run.id}-")
    ask = next((each for each in state.asks if each.id == own), None)
    if ask is None:
        problem = f"Cannot find ask {own}: run {run.id} has none. Load the thread again."
        raise HttpProblem("ask_not_found", 404, problem)
    return ask


async def decide_approval(
    run: Run, ask: Ask, options: ControlOptions, *, approved: bool, details: Mapping[str, Json]
) -> Receipt:
    """Approve or decline; `details` may have the reason and the edited arguments."""
    if approved:
        return await run.approve(ask=ask.id, args=details.get("editedArgs"), **options)
    reason = str(details.get("reason") or "")
    actor, request = options.get("actor"), options.get("request_id")
    return await run.decline(reason, ask=ask.id, actor=actor, request_id=request)


APPROVE_WORDS: Final = frozenset({"yes", "approve", "approved", "ok", "y"})
DECLINE_WORDS: Final = frozenset({"no", "decline", "declined", "n"})

_DECISION_PATTERN: Final = re.compile(
    r"(?P<verb>approve|decline|answer)\b(?:\s+(?P<ask>a[0-9]+)\b)?[\s:,]*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)


async def decide_by_words(
    context: RequestContext,
    run: Run,
    state: State,
    message: ChatMessage,
    options: ControlOptions,
) -> Receipt | None:
    """Decide an ask by a text, for clients that have nothing but text; None if it does not.

    `approve`, `decline REASON` and `answer TEXT` may name an ask: `approve a2`. Without a name
    they mean the only open ask. Then a single word of `APPROVE_WORDS` or `DECLINE_WORDS`
    decides, too, and each text answers a question. An approval needs an explicit word: any
    other text is left to the caller, which redirects the run. So are files, unless the answer
    may have them.

    Raises:
        ControlRefused: the ask was decided before.
        HttpProblem: 409, the word does not name the ask, and its writer may not have seen it.
    """
    text, files = message.text, message.files
    found = _DECISION_PATTERN.fullmatch(text.strip())
    ask = _find_meant_ask(state, found["ask"] if found is not None else None)
    if ask is None or not text.strip() or (files and not ask.takes_files):
        return None
    word = text.strip().lower().rstrip(".!")
    verb, rest = (found["verb"].lower(), found["rest"]) if found is not None else ("", "")
    if ask.effective_kind == "approval":
        approved = (verb == "approve" and not rest.strip(" .!")) or word in APPROVE_WORDS
        if not approved and verb != "decline" and word not in DECLINE_WORDS:
            return None
        if found is None or not found["ask"]:
            check_was_shown(context, state, ask)
        details: dict[str, Json] = {} if approved else {"reason": rest}
        return await decide_approval(run, ask, options, approved=approved, details=details)
    # Without the name of an ask, the words "answer …" may be the beginning of the answer
    # itself.
    answer = rest if verb == "answer" and found is not None and found["ask"] else text
    return await run.answer(answer, ask=ask.id, files=files, **options)


def _find_meant_ask(state: State, name: str | None) -> Ask | None:
    """Return the ask with this name; without a name, the only one that is open.

    One that is closed is returned, too: the core refuses the decision, with the name of the
    person who was first. As a redirect, it would close the other asks.
    """
    if name is not None:
        return state.find_ask(name.lower())
    return state.asks[state.open_asks[0] - 1] if len(state.open_asks) == 1 else None


def check_was_shown(context: RequestContext, state: State, ask: Ask) -> None:
    """Refuse a decision that names no ask, if the caller may mean an earlier one.

    The reply to the caller's newest message ended where the run rested. If the run has been
    continued since then, by another person or a time limit, that reply does not have the asks
    that came afterwards.

    Raises:
        HttpProblem: 409, with the ask, and the words that decide it by its name.
    """
    own = context.make_request_id("")
    sent = [
        outcome.seq
        for name, outcome in state.requests.items()
        if name.startswith(own) and not outcome.refused
    ]
    newest = max(sent, default=FIRST_SEQ)
    controls = (state.last_control_seq, *(each.closed_seq for each in state.asks))
    if any(newest < seq < ask.opened_seq for seq in controls):
        problem = (
            "Cannot decide about a call that came after the reply to your last message. Write "
            f"`approve {ask.id}` or `decline {ask.id}`."
        )
        raise HttpProblem("ask_not_shown", 409, f"{problem}\n\n{describe_asks(state)}")


# ── replies ───────────────────────────────────────────────────────────────────────────────


class TokenUsage:
    """Sums the tokens of model calls, as far as the provider has reported them."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, int]] = []  # all tokens of a call, and of its prompt

    def count_entry(self, entry: e.Entry) -> None:
        """Count the tokens of an entry that ends a model call."""
        if not isinstance(entry, e.CallDone):
            return
        if entry.spent is not None and entry.reply is not None:
            self._calls.append((entry.spent.tokens, entry.reply.prompt_tokens))

    @property
    def total(self) -> int:
        """All tokens."""
        return sum(tokens for tokens, _ in self._calls)

    @property
    def prompt(self) -> int | None:
        """The tokens of the prompts; None if not every call has reported them.

        A sum over a part of the calls would be read as the whole.
        """
        if self.total and all(0 < prompt <= tokens for tokens, prompt in self._calls):
            return sum(prompt for _, prompt in self._calls)
        return None


class ReplyEnd(Struct, frozen=True):
    """Tells where a reply ends: at the first rest that is not before the state `newest`.

    A run may stay at rest after the request, for example after the answer to one of two
    questions. Then no later entry ends the reply. So the reply includes all entries up to
    `newest`, and ends with the first state from there on whose phase is one of `ends`.
    """

    newest: State
    ends: frozenset[Phase]

    @classmethod
    async def read(
        cls, context: RequestContext, run: Run, ends: frozenset[Phase] = RESTING_PHASES
    ) -> "ReplyEnd":
        """Read the newest state of a run."""
        return cls(await context.server.views.read_state(run.id), ends)

    def is_reached(self, state: State) -> bool:
        """Return whether the reply is over in this state of its run."""
        return state.seq >= self.newest.seq and state.phase in self.ends


class ReplyEvents:
    """The events of one reply: those after the entry `after`, until the run rests.

    With `ends_before`, the entry of a later message ends the reply, if the run rested before
    it. Without `wait` the reply ends with the newest entry, also of a run that is at work.

    Attributes:
        state: The state after the newest event.
        usage: The tokens of the model calls so far.
    """

    def __init__(
        self,
        context: RequestContext,
        run: Run,
        after: int,
        *,
        ends_before: Seq | None = None,
        wait: bool = True,
    ) -> None:
        self.state = State(run=run.id)
        self.usage = TokenUsage()
        self._context = context
        self._run = run
        self._after = after
        self._ends_before = ends_before
        self._wait = wait

    async def follow(self) -> AsyncGenerator[ev.RunEvent, None]:
        """Yield the events."""
        run, ends = self._run, RESTING_PHASES if self._wait else frozenset(Phase)
        end = await ReplyEnd.read(self._context, run, ends)
        if self._after > 0:
            store = self._context.server.store
            self.state = await load_run_state(store, run.id, until=Seq(self._after))
        if end.is_reached(self.state):
            return
        builder = EventBuilder(run.id, self.state)
        async with aclosing(run.feed(self._after)) as feed:
            async for item in feed:
                if self._is_over(item.seq or 0):  # a delta has none
                    return
                if isinstance(item, FeedEntry):
                    self.usage.count_entry(item.entry)
                event = builder.build_next(item)
                self.state = builder.state
                yield event
                if end.is_reached(self.state):
                    return

    def _is_over(self, seq: int) -> bool:
        """Return whether the entry `seq` belongs to the reply to a later message."""
        end = self._ends_before
        return end is not None and seq >= end and self.state.phase in RESTING_PHASES


def find_unsent_part(sent: str, text: str) -> str:
    """Return the part of `text` after `sent`.

    If `sent` is not its beginning, an attempt was repeated, and nothing can be completed: "".
    """
    return text[len(sent) :] if text.startswith(sent) else ""


class ChatStream(SseResponse):
    """The stream of a chat client; if the client drops it early, the run is stopped.

    Set `is_finished` when the end of the stream has been written. A handler checks the number
    of streams before it sends a message (`RequestContext.check_stream`): a refusal afterwards
    would leave the run without its client, which would send the message again.
    """

    checks_count: ClassVar[bool] = False

    def __init__(self, context: RequestContext, run: Run, source: StreamSource) -> None:
        super().__init__(context, source)
        self.is_finished = False
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the stream; if the client left early, stop the run after the grace."""
        with self._context.server.chat_streams.count_stream(self._run.id):
            await super().__call__(scope, receive, send)
        if not self.is_finished:
            await stop_after_grace(self._context, self._run)


async def stop_after_grace(context: RequestContext, run: Run) -> None:
    """Stop a run whose client left, unless a client watches it after the grace."""
    server, grace_s = context.server, context.server.bridges.grace_s
    if context.is_server_stopping or server.bridges.on_disconnect == "continue":
        return
    if context.actor.role == "viewer":  # a caller who may not control the run
        return
    rest_s = grace_s
    while True:
        # The client may come back (a reload), or another one may watch. If the server stops
        # during the grace, the clients did not leave by choice, and the run is left alone.
        with anyio.move_on_after(rest_s):
            await context.wait_until_stopping()
            return
        if server.chat_streams.has_stream(run.id) or server.channels.is_watched(run.id):
            return
        # A client that came back may have left again a moment ago. Its connection is bad, and
        # it has the whole grace from then on.
        rest_s = server.chat_streams.get_end(run.id) + grace_s - anyio.current_time()
        if rest_s <= 0:
            break
    # A refusal means that the run rests already or has ended, which is the aim. A store error
    # is dropped: after a disconnect no client is left to report it to.
    with suppress(ControlRefused, StoreError):
        state = await server.views.read_state(run.id)
        # A run that rests spends nothing. One that waits for a person must keep waiting: the
        # person may decide elsewhere.
        if state.phase not in RESTING_PHASES:
            await _stop_run(context, run, server.bridges.on_disconnect, "its window was closed")


async def _stop_run(context: RequestContext, run: Run, control: str, reason: str) -> None:
    if control == "cancel":
        await run.cancel(actor=context.actor, reason=reason)
    else:
        await run.pause(now=True, actor=context.actor, reason=reason)


async def stop_thread(context: RequestContext, agent: str, thread: str) -> bool:
    """Pause or cancel the open run of a thread, as `Bridges.stop` sets; return whether any.

    Raises:
        StoreError: the run works on.
    """
    row = await find_newest_run(context, agent, thread)
    if row is None or row.head.phase in TERMINAL_PHASES:
        return False
    run = await context.server.mid.get(row.run)
    with suppress(ControlRefused):  # it rests already, or has ended
        await _stop_run(context, run, context.server.bridges.stop, "stopped by the user")
    return True


CANCEL_WAIT_S: Final = 10.0
"""Seconds to wait for the undos of a cancel before the run is shown as it is."""


async def cancel_and_wait(context: RequestContext, run: Run) -> None:
    """Cancel a run, and wait for a while until it is cancelled.

    Protocols without a word for *cancelling* answer a cancel with the run as it is then.

    Raises:
        ControlRefused: the run has completed.
    """
    await run.cancel(actor=context.actor)
    with anyio.move_on_after(CANCEL_WAIT_S):
        await run.until("terminal")
