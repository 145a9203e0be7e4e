"""Compare the effects in the world with the journal: I14, I18, I28, I31, I33, W1 to W4.

The undo set is computed here from the entries and not read from the core, because a fault in
the core must not hide itself.
"""

from collections.abc import Iterator

from midrun.core.entries import (
    AskAnswered,
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallSettled,
    CallStarted,
    CallUnknown,
    CancelRequested,
    Entry,
    LateResult,
    Record,
)
from midrun.core.ids import CallId
from midrun.core.state import CallState
from midrun.core.values import Effect, Json, Phase
from midrun.text.report import build_report
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment
from tests.support.simulate.programs import TOOLS


def check_counts(env: Environment, records: list[Record]) -> None:
    """Count effects and undos; valid at any moment.

    Raises:
        Violation: an effect happened twice, or before its start was journaled.
    """
    _check_start_before_effect(env, records)
    _check_approved_arguments(env, records)
    for key, count in env.world.effect_counts.items():
        if count > 1:
            raise Violation("W1", f"{_name_call(env, key)} took effect {count} times")
    for counts in (env.world.undo_counts, env.world.release_counts):
        for key, count in counts.items():
            if count > 1:
                raise Violation("W2", f"{_name_call(env, key)} was undone {count} times")


def check_effects(env: Environment, records: list[Record]) -> None:
    """Compare the effects in the world with the journal of a run that has ended.

    Raises:
        Violation: they differ.
    """
    for call in env.journal.state.calls:
        if call.is_open:
            raise Violation("W4", f"{call.id} ({call.use.tool}) is still open at the end")
    for call in _iter_effect_calls(env):
        _check_stage(env, call)
    _check_undo(env, records)
    _check_releases(env)
    _check_child_effects(env)
    _check_report(env)


def _check_start_before_effect(env: Environment, records: list[Record]) -> None:
    """Check that each effect has its `CallStarted` in the journal before it."""
    starts = {
        (r.entry.call, r.entry.attempt): r.seq
        for r in records
        if isinstance(r.entry, CallStarted)
    }
    for taken in env.taken_effects:
        if starts.get((taken.call, taken.attempt), taken.seq + 1) > taken.seq:
            text = f"{taken.call} attempt {taken.attempt} acted before it was journaled"
            raise Violation("I14", text)


def _check_approved_arguments(env: Environment, records: list[Record]) -> None:
    """Check that an approved call acted with exactly the approved arguments."""
    about: dict[str, CallId] = {}
    args: dict[CallId, Json] = {}
    for record in records:
        match record.entry:
            case AskOpened(ask=ask, ask_kind="approval", call=call, data=data):
                about[ask] = call
                args[call] = data
            case AskAnswered(ask=ask, decision=decision) if ask in about:
                args[about[ask]] = decision.value or args[about[ask]]
            case _:
                continue
    for taken in env.taken_effects:
        if taken.call in args and taken.args != args[taken.call]:
            raise Violation(
                "I25", f"{taken.call} acted with {taken.args}, which were not approved"
            )


def _name_call(env: Environment, key: str) -> str:
    calls = {
        env.make_key(call.id): f"{call.id} ({call.use.tool})"
        for call in env.journal.state.calls
    }
    return calls.get(key[:32], key)


def _iter_tool_calls(env: Environment) -> Iterator[CallState]:
    return (call for call in env.journal.state.calls if call.call_kind == "tool")


def _iter_effect_calls(env: Environment) -> Iterator[CallState]:
    """Yield the tool calls that have an effect."""
    return (
        call
        for call in _iter_tool_calls(env)
        if call.traits.effect is not Effect.READ and TOOLS[call.use.tool].behaviour != "asks"
    )


def _check_stage(env: Environment, call: CallState) -> None:
    """Check that a done call has happened, and that a call without attempts has not."""
    happened = env.world.has_happened(env.make_key(call.id))
    if call.stage == "done" and not happened:
        raise Violation("W4", f"{call.id} ({call.use.tool}) is done, but has no effect")
    never = not call.attempt or (
        call.stage in {"failed", "proposed"} and not call.may_have_happened
    )
    if never and happened:
        raise Violation("I18", f"{call.id} ({call.use.tool}) happened, but is {call.stage}")


def _has_effect(env: Environment, call: CallState) -> bool:
    key = env.make_key(call.id)
    return env.world.effect_counts[key] > env.world.undo_counts[key]


def _check_undo(env: Environment, records: list[Record]) -> None:
    """Check that each effect in the undo set is undone or listed as residue."""
    state = env.journal.state
    if state.phase is not Phase.CANCELLED:
        return
    kept = _list_kept_calls(records)
    listed = {left.call for left in state.residue if left.action == "undo"}
    for call in _iter_tool_calls(env):
        if call.traits.undo and _has_effect(env, call) and call.id not in kept | listed:
            text = f"cancelled, but {call.id} ({call.use.tool}) was neither undone nor reported"
            raise Violation("W3" if not state.residue else "I28", text)


def _list_kept_calls(records: list[Record]) -> set[CallId]:
    """Return the calls that were done before the cancel, if the cancel keeps those."""
    done: set[CallId] = set()
    asked: dict[str, CallId] = {}
    unknown: dict[CallId, int] = {}
    attempts: dict[CallId, int] = {}
    for record in records:
        entry = record.entry
        match entry:
            case CancelRequested(undo=undo):
                return done if undo == "in_flight" else set()
            case CallStarted(call=call, attempt=attempt):
                attempts[call] = attempt
                done.discard(call)
                unknown.pop(call, None)
            case CallUnknown(call=call):
                unknown[call] = attempts[call]
            case LateResult(call=call, attempt=attempt) if unknown.get(call) == attempt:
                done.add(call)
                unknown.pop(call, None)
            case CallDone(call=call) | CallSettled(call=call, happened=True):
                done.add(call)
                unknown.pop(call, None)
            case _:
                _apply_answer(entry, asked, done)
    return done


def _apply_answer(entry: Entry, asked: dict[str, CallId], done: set[CallId]) -> None:
    """Count an answered question as done, unless the call continues with the answer."""
    call = getattr(entry, "call", None)
    if isinstance(entry, AskAnswered):
        if (number := asked.get(entry.ask)) is not None:
            done.add(number)
    elif getattr(entry, "ask_kind", "") == "question" and call is not None:
        if getattr(entry, "continuation", None) is None:
            asked[getattr(entry, "ask", "")] = call
    elif isinstance(entry, CallAborted | CallFailed):
        done.discard(entry.call)


def _check_releases(env: Environment) -> None:
    """Check that every held resource is released or listed as residue."""
    listed = {env.make_key(r.call) for r in env.journal.state.residue if r.action == "release"}
    alive = {key for key, child in env.world.children.items() if not child.outcome}
    if left := (env.world.held_keys | alive) - listed:
        name = _name_call(env, min(left))
        raise Violation("W3", f"{env.journal.state.phase}, but {name} still holds something")


def _check_child_effects(env: Environment) -> None:
    """Check that a cancel with undo="all" undid the effects of children, or lists them."""
    state = env.journal.state
    if (
        state.phase is not Phase.CANCELLED
        or state.cancel_request is None
        or state.cancel_request.undo != "all"
    ):
        return
    listed = {env.make_key(left.call) for left in state.residue}
    for key, child in env.world.children.items():
        if child.effect_count and key not in listed:
            text = f"cancelled, but the effects of the child of {_name_call(env, key)} remain"
            raise Violation("W3", text)


def _check_report(env: Environment) -> None:
    """Check that the report agrees with the world."""
    report = build_report(env.journal.state)
    sets = {
        name: {reported.call for reported in getattr(report, name)}
        for name in (
            "done",
            "undone",
            "not_undone",
            "released",
            "stopped",
            "unsure",
            "failed",
        )
    }
    sets["never_started"] = {reported.call for reported in report.never_started}
    may_have_effect = sets["done"] | sets["not_undone"] | sets["stopped"] | sets["unsure"]
    may_have_effect |= sets["released"]
    held = {env.make_key(reported.call) for reported in report.still_held}
    for call in _iter_tool_calls(env):
        if _has_effect(env, call) and call.id not in may_have_effect:
            raise Violation("I33", f"the effect of {call.id} remains, but is not reported")
        if call.id in sets["undone"] and _has_effect(env, call):
            raise Violation("I33", f"{call.id} is reported as undone, but its effect remains")
        if sum(call.id in calls for calls in sets.values()) > 1:
            raise Violation("I33", f"{call.id} is in two lists of the report")
    for call in _iter_effect_calls(env):
        if call.id in sets["done"] and not _has_effect(env, call):
            raise Violation("I33", f"{call.id} is reported as done, but has no effect")
    if env.world.held_keys - held:
        raise Violation("I33", "a resource is still held, but is not reported")
