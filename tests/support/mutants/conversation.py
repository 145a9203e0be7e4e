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
    Mutant,
    Planted,
    Ruling,
    arm,
    filtered,
    in_place_of,
    ruling,
    together,
)

# ── held thoughts ─────────────────────────────────────────────────────────────────────────


def _unsaid(state: State, call: Call, text: str) -> tuple[str, str]:
    del state, call
    return text, ""


def _said_by_whoever_is_next(state: State, call: Call, text: str) -> tuple[str, str]:
    return _PREFIXED(replace(state, reply_prefix_seq=call.seen_seq), call, text)


_PREFIXED = call_folds._apply_prefix


def _impatient(state: State, now: Micros) -> Entry | None:
    pending = tuple(replace(waiting, urgency="next") for waiting in state.pending)
    return _MESSAGE(replace(state, pending=pending), now)


_MESSAGE = step_boundary._deliver_message


# ── reviews ───────────────────────────────────────────────────────────────────────────────


def _untold(state: State, call: Call) -> State:
    return _OUT_OF_THE_WAY(state, replace(call, deferred_review=False))


_OUT_OF_THE_WAY = call_folds.close_call


def _ends_with_reviews_open() -> Planted:
    """Let a run complete although somebody still looks at what it proposed."""

    def hasty(state: State) -> DriverEffect:
        return _AT_BOUNDARY(_unreviewed(state))

    def rule(old: Ruling) -> Ruling:
        return lambda state, given, now: old(_unreviewed(state), given, now)

    return together(in_place_of(scheduler, "_plan_boundary", hasty), ruling(SettlePhase, rule))


def _unreviewed(state: State) -> State:
    blocking = (n for n in state.open_asks if state.asks[n - 1].blocking)
    return replace(state, open_asks=tuple(blocking))


_AT_BOUNDARY = scheduler._plan_boundary


def _blocks(old: Ruling) -> Ruling:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        verdict = old(state, given, now)
        entries = (
            replace(e, blocking=False) if isinstance(e, AskOpened) else e
            for e in verdict.entries
        )
        return replace(verdict, entries=tuple(entries))

    return rule


# ── children ──────────────────────────────────────────────────────────────────────────────


def _at_once(state: State, call: Call) -> Iterator[DriverEffect]:
    yield scheduler._make_start_effect(state, call)


def _tools_only(call: Call) -> bool:
    return call.call_kind != "child" and _TO_RELEASE(call)


_TO_RELEASE = undo.is_release_due


def _kept_waiting(before: State, after: State, entry: Entry) -> State:
    """Keep a child's call parked, whatever was answered."""
    assert isinstance(entry, AskAnswered)
    ask = before.find_ask(entry.ask)
    call = before.find_call(ask.call) if ask is not None else None
    if ask is None or call is None or ask.ask_kind != "child":
        return after
    return after.with_call(call)


# ── the wheel ─────────────────────────────────────────────────────────────────────────────


def _let_go_of_the_wheel(before: State, after: State, _: Entry) -> State:
    return replace(after, operator_name="", pause=None) if before.operator_name else after


def _by_anybody(old: Ruling) -> Ruling:
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


def _summed_up(old: Ruling, *, empty: bool = False, cut_short: bool = False) -> Ruling:
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


def _never_sums_up(state: State) -> DriverEffect:
    return _NEXT_CALL(replace(state, prompt_tokens=0))


_NEXT_CALL = scheduler.plan_next_call

THOUGHT = (
    Mutant(
        name="way_back_not_said",
        wrong="a thought goes on, and the reply does not say so",
        plant=lambda: in_place_of(call_folds, "_apply_prefix", _unsaid),
    ),
    Mutant(
        name="way_back_said_by_the_wrong_reply",
        seed=1602,
        wrong="a reply that was begun before a thought went on says that it goes on",
        plant=lambda: in_place_of(call_folds, "_apply_prefix", _said_by_whoever_is_next),
    ),
    Mutant(
        name="later_is_now",
        seed=247,
        wrong="a message that could wait suspends a thought",
        plant=lambda: in_place_of(step_boundary, "_deliver_message", _impatient),
    ),
    Mutant(
        name="side_question_does_not_wake",
        wrong="a run that waits is asked something, and goes on waiting",
        plant=lambda: in_place_of(conversation, "add_wakeup", lambda _, entries, __: entries),
    ),
    Mutant(
        name="review_never_told",
        wrong="the agent never hears what became of a call that somebody looked at",
        plant=lambda: together(
            in_place_of(call_folds, "close_call", _untold),
            in_place_of(ask_folds, "close_call", _untold),
        ),
    ),
    Mutant(
        name="ends_with_reviews_open",
        wrong="a run completes while somebody still looks at a call of it",
        plant=_ends_with_reviews_open,
    ),
    Mutant(
        name="child_ask_does_not_block",
        wrong="the agent thinks on while its child waits for an answer",
        plant=lambda: ruling(AskPerson, _blocks),
    ),
    Mutant(
        name="child_left_behind",
        wrong="a child works on for a call that its parent has given up",
        plant=lambda: in_place_of(scheduler, "orphaned_child_cleanup", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_left_behind_by_a_retry",
        seed=1890,
        wrong="the model is asked once more while a child works on that was given up meanwhile",
        plant=lambda: in_place_of(scheduler, "_plan_model_retry", _at_once),
        limit=20000,
    ),
    Mutant(
        name="child_left_behind_by_a_run_that_waits",
        seed=3556,
        wrong="a child whose thought was dropped works on while its parent waits for somebody",
        plant=lambda: in_place_of(lifecycle, "orphaned_child_cleanup", lambda _: None),
        limit=20000,
    ),
    Mutant(
        name="child_outlives_its_parent",
        wrong="a parent ends before its children do",
        plant=lambda: together(
            in_place_of(undo, "is_release_due", _tools_only),
            in_place_of(scheduler, "is_release_due", _tools_only),
        ),
    ),
    Mutant(
        name="completed_child_not_taken_back",
        seed=427,
        wrong="a cancel of everything keeps what a child did that had ended",
        plant=lambda: in_place_of(undo, "_has_ended_before_cancel", lambda _: False),
    ),
    Mutant(
        name="settled_on_the_child_only",
        wrong="a child has its answer, and its parent waits for it for ever",
        plant=lambda: filtered(CloseChildAsk, AskClosed),
    ),
    Mutant(
        name="child_never_hears_the_answer",
        wrong="what was answered on a parent does not reach its child",
        plant=lambda: arm(AskAnswered, _kept_waiting),
    ),
    Mutant(
        name="wheel_lost_with_the_first_tool",
        wrong="the agent goes on by itself once a person at the wheel has used a tool",
        plant=lambda: arm(RunWoken, _let_go_of_the_wheel),
    ),
    Mutant(
        name="handed_back_by_anybody",
        seed=166,
        wrong="somebody takes the wheel out of another person's hands",
        plant=lambda: ruling(HandBack, _by_anybody),
        limit=12000,
    ),
    Mutant(
        name="history_never_condensed",
        wrong="the model is given more than its window holds",
        plant=lambda: in_place_of(scheduler, "plan_next_call", _never_sums_up),
    ),
    Mutant(
        name="newest_words_condensed",
        wrong="a summary swallows what was said last",
        plant=lambda: in_place_of(call_rulings, "CONDENSE_KEEP_MESSAGES", 0),
    ),
    Mutant(
        name="summary_loses_the_task",
        wrong="what people asked for depends on how well a model sums up",
        plant=lambda: in_place_of(transcript, "format_summary", lambda state: state.summary),
    ),
    Mutant(
        name="summary_of_nothing",
        wrong="a model that says nothing erases the history",
        plant=lambda: ruling(CloseCall, lambda old: _summed_up(old, empty=True)),
    ),
    Mutant(
        name="half_a_summary",
        seed=126,
        wrong="a summary that was interrupted stands for the history",
        plant=lambda: ruling(CloseCall, lambda old: _summed_up(old, cut_short=True)),
    ),
)
