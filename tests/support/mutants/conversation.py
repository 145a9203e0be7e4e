"""Faults in held topics, reviews, child runs, take-overs and summaries."""

from msgspec.structs import replace

from midrun.core import scheduler, step_boundary, transcript, undo
from midrun.core.controls import HandBack
from midrun.core.decide import calls as decide_calls
from midrun.core.decide import conversation, lifecycle
from midrun.core.driver_inputs import AskPerson, CloseCall, CloseChildAsk
from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallAborted,
    CallDone,
    Entry,
    HistoryCondensed,
    RunWoken,
)
from midrun.core.evolve import asks as evolve_asks
from midrun.core.evolve import calls as evolve_calls
from midrun.core.ids import Micros
from midrun.core.state import CallState, State
from midrun.core.transitions import Accepted, Input, Verdict, accept
from midrun.core.values import TERMINAL_PHASES, Spend
from tests.support.mutants.replacements import (
    DecideFunction,
    Mutant,
    Replacement,
    drop_entries,
    replace_all,
    replace_attribute,
    replace_decide,
    replace_evolve,
)

# ── held topics ───────────────────────────────────────────────────────────────────────────


def _drop_prefix(state: State, call: CallState, text: str) -> tuple[str, str]:
    del state, call
    return text, ""


def _prefix_any_reply(state: State, call: CallState, text: str) -> tuple[str, str]:
    return _APPLY_PREFIX(replace(state, reply_prefix_seq=call.seen_seq), call, text)


_APPLY_PREFIX = evolve_calls._apply_prefix


def _deliver_later_messages(state: State, now: Micros) -> Entry | None:
    pending = tuple(replace(waiting, urgency="next") for waiting in state.pending)
    return _DELIVER_MESSAGE(replace(state, pending=pending), now)


_DELIVER_MESSAGE = step_boundary._deliver_message


# ── reviews ───────────────────────────────────────────────────────────────────────────────


def _close_call_untold(state: State, call: CallState) -> State:
    return _CLOSE_CALL(state, replace(call, deferred_review=False))


_CLOSE_CALL = evolve_calls.close_call


def _plant_end_during_review() -> Replacement:
    """Complete a run although a queued approval is open."""
    original = scheduler._advance_boundary

    def advance_wrongly(state: State, *rest: object) -> tuple[Entry, ...]:
        return original(_without_queued_asks(state), *rest)  # type: ignore[arg-type]  # passed on

    return replace_attribute(scheduler, "_advance_boundary", advance_wrongly)


def _without_queued_asks(state: State) -> State:
    blocking = (n for n in state.open_asks if state.asks[n - 1].blocking)
    return replace(state, open_asks=tuple(blocking))


def _unblock_child_asks(old: DecideFunction) -> DecideFunction:
    def decide_wrongly(state: State, run_input: Input, now: Micros) -> Verdict:
        verdict = old(state, run_input, now)
        entries = (
            replace(e, blocking=False) if isinstance(e, AskOpened) else e
            for e in verdict.entries
        )
        return replace(verdict, entries=tuple(entries))

    return decide_wrongly


# ── child runs ────────────────────────────────────────────────────────────────────────────


def _retry_model_at_once(state: State, call: CallState, *rest: object) -> tuple[Entry, ...]:
    if call.call_kind == "model" and scheduler.is_startable(call):
        return scheduler._start_call(state, call, call.purpose, Spend())
    return _START_OPEN_CALL(state, call, *rest)  # type: ignore[arg-type]  # passed on


_START_OPEN_CALL = scheduler._start_open_call


def _is_tool_release_due(call: CallState) -> bool:
    return call.call_kind != "child" and _IS_RELEASE_DUE(call)


_IS_RELEASE_DUE = undo.is_release_due


def _keep_child_parked(before: State, after: State, entry: Entry) -> State:
    """Keep the call of a child parked after its ask was answered."""
    assert isinstance(entry, AskAnswered)
    ask = before.find_ask(entry.ask)
    call = before.find_call(ask.call) if ask is not None else None
    if ask is None or call is None or ask.ask_kind != "child":
        return after
    return after.with_call(call)


# ── take-overs ────────────────────────────────────────────────────────────────────────────


def _end_take_over(before: State, after: State, _: Entry) -> State:
    return replace(after, taken_over_by="", pause=None) if before.taken_over_by else after


def _hand_back_by_any_actor(old: DecideFunction) -> DecideFunction:
    def decide_wrongly(state: State, run_input: Input, now: Micros) -> Verdict:
        assert isinstance(run_input, HandBack)
        if not state.taken_over_by:
            return old(state, run_input, now)
        by, holder = run_input.by, state.taken_over_by
        verdict = old(state, replace(run_input, by=replace(by, name=holder)), now)
        named = (replace(e, by=by.name) if hasattr(e, "by") else e for e in verdict.entries)
        return replace(verdict, entries=tuple(named))

    return decide_wrongly


# ── summaries ─────────────────────────────────────────────────────────────────────────────


def _accept_bad_summary(
    old: DecideFunction, *, empty: bool = False, cut_short: bool = False
) -> DecideFunction:
    """Accept an empty or an interrupted summary."""

    def decide_wrongly(state: State, run_input: Input, now: Micros) -> Verdict:
        verdict = old(state, run_input, now)
        assert isinstance(run_input, CloseCall)
        outcome = run_input.outcome
        call = state.find_call(outcome.call)
        if not isinstance(verdict, Accepted) or call is None or call.purpose != "condense":
            return verdict
        upto = max(
            state.condensed_count, len(state.messages) - transcript.CONDENSE_KEEP_MESSAGES
        )
        condensed = HistoryCondensed(call=call.id, message_count=upto, summary="")
        if empty and isinstance(outcome, CallDone):
            return accept(outcome, condensed)
        if (
            cut_short
            and isinstance(outcome, CallAborted)
            and state.phase not in TERMINAL_PHASES
        ):
            return accept(outcome, replace(condensed, summary=outcome.text or "so"))
        return verdict

    return decide_wrongly


CONVERSATION_MUTANTS = (
    Mutant(
        name="resumed_topic_without_prefix",
        description="a topic is resumed, and the reply lacks the prefix",
        plant=lambda: replace_attribute(evolve_calls, "_apply_prefix", _drop_prefix),
    ),
    Mutant(
        name="resume_prefix_on_the_wrong_reply",
        seed=4080,
        description="a reply that was started before a topic was resumed gets the prefix",
        plant=lambda: replace_attribute(evolve_calls, "_apply_prefix", _prefix_any_reply),
    ),
    Mutant(
        name="later_message_delivered_now",
        seed=247,
        description='a message with urgency "later" suspends a topic',
        plant=lambda: replace_attribute(
            step_boundary, "_deliver_message", _deliver_later_messages
        ),
    ),
    Mutant(
        name="side_question_does_not_wake",
        seed=80,
        description="a side question does not wake a run that waits",
        plant=lambda: replace_attribute(
            conversation, "add_wakeup", lambda _, entries, __: entries
        ),
    ),
    Mutant(
        name="review_outcome_not_delivered",
        description="the agent does not get the outcome of a queued call",
        plant=lambda: replace_all(
            replace_attribute(evolve_calls, "close_call", _close_call_untold),
            replace_attribute(evolve_asks, "close_call", _close_call_untold),
        ),
    ),
    Mutant(
        name="ends_with_reviews_open",
        description="a run completes while a queued approval is open",
        plant=_plant_end_during_review,
    ),
    Mutant(
        name="child_ask_does_not_block",
        description="a model call starts while a child waits for an answer",
        plant=lambda: replace_decide(AskPerson, _unblock_child_asks),
    ),
    Mutant(
        name="child_orphaned",
        description="a child works for a call that its parent has closed",
        plant=lambda: replace_attribute(scheduler, "find_orphaned_child", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_orphaned_by_a_model_retry",
        seed=1495,
        description="a model call is retried while an orphaned child works",
        plant=lambda: replace_attribute(scheduler, "_start_open_call", _retry_model_at_once),
        limit=20000,
    ),
    Mutant(
        name="child_orphaned_by_a_run_that_waits",
        seed=1732,
        description="a child whose topic was dropped works while its parent waits",
        plant=lambda: replace_attribute(lifecycle, "find_orphaned_child", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_outlives_its_parent",
        description="a parent ends before its children",
        plant=lambda: replace_attribute(undo, "is_release_due", _is_tool_release_due),
    ),
    Mutant(
        name="completed_child_not_undone",
        seed=59,
        description='a cancel with undo="all" keeps the effects of a child that had ended',
        plant=lambda: replace_attribute(undo, "_has_ended_before_cancel", lambda _: False),
    ),
    Mutant(
        name="ask_settled_on_the_child_only",
        seed=1850,
        description="an ask is settled on the child, but stays open on its parent",
        plant=lambda: drop_entries(CloseChildAsk, AskClosed),
    ),
    Mutant(
        name="answer_does_not_reach_the_child",
        seed=68,
        description="an answer on the parent does not reach its child",
        plant=lambda: replace_evolve(AskAnswered, _keep_child_parked),
    ),
    Mutant(
        name="take_over_ends_with_the_first_tool",
        description="the agent continues by itself after a person has used a tool",
        plant=lambda: replace_evolve(RunWoken, _end_take_over),
    ),
    Mutant(
        name="handed_back_by_another_actor",
        seed=107,
        description="an actor hands back the take-over of another actor",
        plant=lambda: replace_decide(HandBack, _hand_back_by_any_actor),
        limit=12000,
    ),
    Mutant(
        name="history_never_condensed",
        description="a prompt is larger than the window of the model",
        plant=lambda: replace_attribute(scheduler, "_choose_purpose", lambda _: "step"),
    ),
    Mutant(
        name="newest_messages_condensed",
        description="a summary replaces the newest messages",
        plant=lambda: replace_attribute(decide_calls, "CONDENSE_KEEP_MESSAGES", 0),
    ),
    Mutant(
        name="summary_loses_the_task",
        description="a prompt with a summary lacks task and instruction",
        plant=lambda: replace_attribute(
            transcript, "format_summary", lambda state: state.summary
        ),
    ),
    Mutant(
        name="empty_summary",
        description="an empty summary replaces the history",
        plant=lambda: replace_decide(
            CloseCall, lambda old: _accept_bad_summary(old, empty=True)
        ),
    ),
    Mutant(
        name="interrupted_summary",
        seed=232,
        description="an interrupted summary replaces the history",
        plant=lambda: replace_decide(
            CloseCall, lambda old: _accept_bad_summary(old, cut_short=True)
        ),
    ),
)
