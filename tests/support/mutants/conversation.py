"""Faults in thinking across interrupts: held thoughts, reviews, children, wheel, summaries."""

from collections.abc import Iterator

from msgspec.structs import replace

from midrun.core import scheduler, step_boundary, transcript, undo
from midrun.core.controls import HandBack
from midrun.core.decide import calls as call_rulings
from midrun.core.decide import conversation, lifecycle
from midrun.core.driver_inputs import AskPerson, CloseCall, CloseChildAsk, SettlePhase
from midrun.core.effects import DriverEffect
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
from midrun.core.evolve import asks as ask_folds
from midrun.core.evolve import calls as call_folds
from midrun.core.ids import Micros
from midrun.core.state import Call, State
from midrun.core.transitions import Accepted, Input, Verdict, accept
from midrun.core.values import TERMINAL_PHASES
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

# ── held thoughts ─────────────────────────────────────────────────────────────────────────


def _drop_prefix(state: State, call: Call, text: str) -> tuple[str, str]:
    del state, call
    return text, ""


def _prefix_any_reply(state: State, call: Call, text: str) -> tuple[str, str]:
    return _APPLY_PREFIX(replace(state, reply_prefix_seq=call.seen_seq), call, text)


_APPLY_PREFIX = call_folds._apply_prefix


def _deliver_later_messages(state: State, now: Micros) -> Entry | None:
    pending = tuple(replace(waiting, urgency="next") for waiting in state.pending)
    return _DELIVER_MESSAGE(replace(state, pending=pending), now)


_DELIVER_MESSAGE = step_boundary._deliver_message


# ── reviews ───────────────────────────────────────────────────────────────────────────────


def _close_call_untold(state: State, call: Call) -> State:
    return _CLOSE_CALL(state, replace(call, deferred_review=False))


_CLOSE_CALL = call_folds.close_call


def _plant_end_during_review() -> Replacement:
    """Let a run complete although somebody still looks at what it proposed."""

    def hasty(state: State) -> DriverEffect:
        return _PLAN_BOUNDARY(_without_queued_asks(state))

    def rule(old: DecideFunction) -> DecideFunction:
        return lambda state, given, now: old(_without_queued_asks(state), given, now)

    return replace_all(
        replace_attribute(scheduler, "_plan_boundary", hasty), replace_decide(SettlePhase, rule)
    )


def _without_queued_asks(state: State) -> State:
    blocking = (n for n in state.open_asks if state.asks[n - 1].blocking)
    return replace(state, open_asks=tuple(blocking))


_PLAN_BOUNDARY = scheduler._plan_boundary


def _unblock_child_asks(old: DecideFunction) -> DecideFunction:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        verdict = old(state, given, now)
        entries = (
            replace(e, blocking=False) if isinstance(e, AskOpened) else e
            for e in verdict.entries
        )
        return replace(verdict, entries=tuple(entries))

    return rule


# ── children ──────────────────────────────────────────────────────────────────────────────


def _retry_model_at_once(state: State, call: Call) -> Iterator[DriverEffect]:
    yield scheduler._make_start_effect(state, call)


def _is_tool_release_due(call: Call) -> bool:
    return call.call_kind != "child" and _IS_RELEASE_DUE(call)


_IS_RELEASE_DUE = undo.is_release_due


def _keep_child_parked(before: State, after: State, entry: Entry) -> State:
    """Keep a child's call parked, whatever was answered."""
    assert isinstance(entry, AskAnswered)
    ask = before.find_ask(entry.ask)
    call = before.find_call(ask.call) if ask is not None else None
    if ask is None or call is None or ask.ask_kind != "child":
        return after
    return after.with_call(call)


# ── the wheel ─────────────────────────────────────────────────────────────────────────────


def _end_take_over(before: State, after: State, _: Entry) -> State:
    return replace(after, operator_name="", pause=None) if before.operator_name else after


def _hand_back_by_any_actor(old: DecideFunction) -> DecideFunction:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        assert isinstance(given, HandBack)
        if not state.operator_name:
            return old(state, given, now)
        by, wheel = given.by, state.operator_name
        verdict = old(state, replace(given, by=replace(by, name=wheel)), now)
        named = (replace(e, by=by.name) if hasattr(e, "by") else e for e in verdict.entries)
        return replace(verdict, entries=tuple(named))

    return rule


# ── summaries ─────────────────────────────────────────────────────────────────────────────


def _accept_bad_summary(
    old: DecideFunction, *, empty: bool = False, cut_short: bool = False
) -> DecideFunction:
    """Take for a summary what is none: nothing at all, or half of one."""

    def rule(state: State, given: Input, now: Micros) -> Verdict:
        verdict = old(state, given, now)
        assert isinstance(given, CloseCall)
        outcome = given.outcome
        call = state.find_call(outcome.call)
        if not isinstance(verdict, Accepted) or call is None or call.purpose != "condense":
            return verdict
        upto = max(
            state.condensed_count, len(state.messages) - scheduler.CONDENSE_KEEP_MESSAGES
        )
        condensed = HistoryCondensed(call=call.id, upto=upto, summary="")
        if empty and isinstance(outcome, CallDone):
            return accept(outcome, condensed)
        if (
            cut_short
            and isinstance(outcome, CallAborted)
            and state.phase not in TERMINAL_PHASES
        ):
            return accept(outcome, replace(condensed, summary=outcome.text or "so"))
        return verdict

    return rule


def _never_condense(state: State) -> DriverEffect:
    return _PLAN_NEXT_CALL(replace(state, prompt_tokens=0))


_PLAN_NEXT_CALL = scheduler.plan_next_call

CONVERSATION_MUTANTS = (
    Mutant(
        name="way_back_not_said",
        description="a thought goes on, and the reply does not say so",
        plant=lambda: replace_attribute(call_folds, "_apply_prefix", _drop_prefix),
    ),
    Mutant(
        name="way_back_said_by_the_wrong_reply",
        seed=1602,
        description="a reply that was begun before a thought went on says that it goes on",
        plant=lambda: replace_attribute(call_folds, "_apply_prefix", _prefix_any_reply),
    ),
    Mutant(
        name="later_is_now",
        seed=247,
        description="a message that could wait suspends a thought",
        plant=lambda: replace_attribute(
            step_boundary, "_deliver_message", _deliver_later_messages
        ),
    ),
    Mutant(
        name="side_question_does_not_wake",
        description="a run that waits is asked something, and goes on waiting",
        plant=lambda: replace_attribute(
            conversation, "add_wakeup", lambda _, entries, __: entries
        ),
    ),
    Mutant(
        name="review_never_told",
        description="the agent never hears what became of a call that somebody looked at",
        plant=lambda: replace_all(
            replace_attribute(call_folds, "close_call", _close_call_untold),
            replace_attribute(ask_folds, "close_call", _close_call_untold),
        ),
    ),
    Mutant(
        name="ends_with_reviews_open",
        description="a run completes while somebody still looks at a call of it",
        plant=_plant_end_during_review,
    ),
    Mutant(
        name="child_ask_does_not_block",
        description="the agent thinks on while its child waits for an answer",
        plant=lambda: replace_decide(AskPerson, _unblock_child_asks),
    ),
    Mutant(
        name="child_left_behind",
        description="a child works on for a call that its parent has given up",
        plant=lambda: replace_attribute(scheduler, "orphaned_child_cleanup", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_left_behind_by_a_retry",
        seed=1890,
        description="the model is asked once more while a child works on that was given up meanwhile",
        plant=lambda: replace_attribute(scheduler, "_plan_model_retry", _retry_model_at_once),
        limit=20000,
    ),
    Mutant(
        name="child_left_behind_by_a_run_that_waits",
        seed=3556,
        description="a child whose thought was dropped works on while its parent waits for somebody",
        plant=lambda: replace_attribute(lifecycle, "orphaned_child_cleanup", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_outlives_its_parent",
        description="a parent ends before its children do",
        plant=lambda: replace_all(
            replace_attribute(undo, "is_release_due", _is_tool_release_due),
            replace_attribute(scheduler, "is_release_due", _is_tool_release_due),
        ),
    ),
    Mutant(
        name="completed_child_not_taken_back",
        seed=427,
        description="a cancel of everything keeps what a child did that had ended",
        plant=lambda: replace_attribute(undo, "_has_ended_before_cancel", lambda _: False),
    ),
    Mutant(
        name="settled_on_the_child_only",
        description="a child has its answer, and its parent waits for it for ever",
        plant=lambda: drop_entries(CloseChildAsk, AskClosed),
    ),
    Mutant(
        name="child_never_hears_the_answer",
        description="what was answered on a parent does not reach its child",
        plant=lambda: replace_evolve(AskAnswered, _keep_child_parked),
    ),
    Mutant(
        name="wheel_lost_with_the_first_tool",
        description="the agent goes on by itself once a person at the wheel has used a tool",
        plant=lambda: replace_evolve(RunWoken, _end_take_over),
    ),
    Mutant(
        name="handed_back_by_anybody",
        seed=166,
        description="somebody takes the wheel out of another person's hands",
        plant=lambda: replace_decide(HandBack, _hand_back_by_any_actor),
        limit=12000,
    ),
    Mutant(
        name="history_never_condensed",
        description="the model is given more than its window holds",
        plant=lambda: replace_attribute(scheduler, "plan_next_call", _never_condense),
    ),
    Mutant(
        name="newest_words_condensed",
        description="a summary swallows what was said last",
        plant=lambda: replace_attribute(call_rulings, "CONDENSE_KEEP_MESSAGES", 0),
    ),
    Mutant(
        name="summary_loses_the_task",
        description="what people asked for depends on how well a model sums up",
        plant=lambda: replace_attribute(
            transcript, "format_summary", lambda state: state.summary
        ),
    ),
    Mutant(
        name="summary_of_nothing",
        description="a model that says nothing erases the history",
        plant=lambda: replace_decide(
            CloseCall, lambda old: _accept_bad_summary(old, empty=True)
        ),
    ),
    Mutant(
        name="half_a_summary",
        seed=126,
        description="a summary that was interrupted stands for the history",
        plant=lambda: replace_decide(
            CloseCall, lambda old: _accept_bad_summary(old, cut_short=True)
        ),
    ),
)
