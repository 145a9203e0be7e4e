"""Checks of ends, controls and asks: I5, I20, I21, I23 to I26 and I32."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallDone,
    CallProposed,
    CallUnknown,
    CancelRequested,
    CapReached,
    Entry,
    LateResult,
    MessageReceived,
    MessageTaken,
    PauseRequested,
    PauseWithdrawn,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunHalted,
    RunImported,
    RunLifted,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    TakenOver,
    UndoStarted,
)
from midrun.core.evolve.calls import hash_args
from midrun.core.ids import AskId, Epoch, Micros, RunId, Seq
from midrun.core.values import Approval, Decision, Phase, RequestedCall, Traits
from tests.unit.verify.journal_builder import (
    C1,
    C2,
    C3,
    C4,
    DRAFT,
    LEASE_2,
    LEASED_RUN,
    MAIL,
    START_TIME,
    find_violations,
    make_call_in_flight,
    make_start,
    make_step,
    with_time,
)

A1, A2 = AskId("a1"), AskId("a2")
SEND = RequestedCall(tool="send", args={"to": "eve"}, traits=Traits(approve="block"))
HASH = hash_args(SEND.args)
ASK = AskOpened(ask=A1, ask_kind="approval", call=C2, args_hash=HASH)
APPROVE = AskAnswered(ask=A1, decision=Decision(choice="approve"), args_hash=HASH, by="bob")
GATED = (*LEASED_RUN, *make_step(SEND), ASK)
APPROVED = replace(make_start(C2), approval=Approval(ask=A1, args_hash=HASH))
QUESTION = AskOpened(ask=A1, ask_kind="question", call=C2)
ASKING = (*make_call_in_flight(MAIL), QUESTION)
ANSWER = AskAnswered(ask=A1, decision=Decision(choice="answer", value=7))


# ── ends ───────────────────────────────────────────────────────────────────────────────


def test_only_noted_requests_and_late_results_follow_a_completed_run() -> None:
    """I5."""
    done = (*LEASED_RUN, *make_step(text="Done."), RunCompleted())
    assert find_violations(*done, RequestNoted(verdict="is_completed", refused=True)) == []
    assert find_violations(*done, LateResult(call=C1, attempt=1, epoch=Epoch(1))) == []
    assert find_violations(*done, PauseRequested()) == ["I5"]
    assert find_violations(*done, CancelRequested()) == ["I5"]


def test_only_noted_requests_and_residue_entries_follow_a_cancelled_run() -> None:
    """I5: an operator may accept the residue, but no call starts."""
    cancelled = (*LEASED_RUN, CancelRequested(), RunCancelled())
    assert find_violations(*cancelled, RequestNoted(verdict="already_cancelled")) == []
    assert find_violations(*cancelled, ResidueAccepted()) == []
    assert find_violations(*cancelled, RunResumed())[0] == "I5"


@pytest.mark.parametrize("end", [RunPaused(), RunFailed(error="no"), RunCompleted()])
def test_a_run_at_rest_has_no_call_in_flight(end: Entry) -> None:
    """I26: a run is never shown as paused while a call runs."""
    assert find_violations(*make_call_in_flight(MAIL), CallDone(call=C2), end) == []
    assert find_violations(*make_call_in_flight(MAIL), end) == ["I26"]


def test_a_waiting_run_has_an_open_ask() -> None:
    """I26."""
    assert find_violations(*ASKING, RunWaiting()) == []
    assert "I26" in find_violations(*LEASED_RUN, RunWaiting())


def test_a_run_does_not_wait_for_a_queued_approval_before_its_answer() -> None:
    """I26: a queued approval blocks only the completion."""
    queued = replace(ASK, blocking=False)
    assert find_violations(*LEASED_RUN, *make_step(SEND), queued, RunWaiting()) == ["I26"]
    answered = (*LEASED_RUN, *make_step(SEND), queued, *make_step(call=C3, text="Done."))
    assert find_violations(*answered, RunWaiting()) == []


def test_a_halted_run_without_an_open_ask_is_woken_after_the_lift() -> None:
    """I26: a late result may close the last ask during the halt."""
    ask = AskOpened(ask=A1, ask_kind="unsure", call=C2)
    waiting = (
        *make_call_in_flight(MAIL),
        LEASE_2,
        CallUnknown(call=C2),
        ask,
        RunWaiting(),
    )
    late = (LateResult(call=C2, attempt=1, epoch=Epoch(1)), AskClosed(ask=A1, why="evidence"))
    halted = (*waiting, RunHalted(phase_after_lift=Phase.WAITING), *late, RunLifted())
    assert find_violations(*halted, RunWoken()) == []
    assert find_violations(*halted) == ["I26"]


# ── controls ───────────────────────────────────────────────────────────────────────────


def test_a_request_id_is_applied_once() -> None:
    """I20: a repeat gets the answer to the first request."""
    pause = PauseRequested(request_id="r1", digest="d")
    assert find_violations(*LEASED_RUN, pause, PauseWithdrawn(request_id="r2")) == []
    assert find_violations(*LEASED_RUN, pause, PauseWithdrawn(request_id="r1")) == ["I20"]
    assert find_violations(*LEASED_RUN, pause, RequestNoted(request_id="r1", verdict="no")) == [
        "I20"
    ]


@pytest.mark.parametrize("pause", [PauseRequested(), CapReached(stop="at most 1 steps")])
def test_a_requested_pause_comes_before_the_completion(pause: Entry) -> None:
    """I21: the final answer waits for the resume."""
    answered = (*LEASED_RUN, *make_step(text="Done."))
    resumed = (*answered, pause, RunPaused(), RunResumed(), LEASE_2)
    assert find_violations(*resumed, RunCompleted()) == []
    assert find_violations(*answered, pause, RunCompleted()) == ["I21"]


def test_a_requested_pause_comes_before_waiting() -> None:
    """I21: the run pauses with its asks open."""
    assert find_violations(*ASKING, PauseRequested(), RunPaused()) == []
    assert find_violations(*ASKING, PauseRequested(), RunWaiting()) == ["I21"]


def test_a_redirect_after_the_pause_ends_it() -> None:
    """I21: the run pauses, then continues with the text. No other wake ends a pause."""
    redirected = (*LEASED_RUN, PauseRequested(), RedirectRequested(text="Go"), RunPaused())
    continued = (
        RunWoken(),
        LEASE_2,
        RedirectApplied(redirect=Seq(4)),
        *make_step(text="Done."),
    )
    assert find_violations(*redirected, *continued, RunCompleted()) == []
    woken = (*LEASED_RUN, PauseRequested(), RunPaused(), RunWoken(), LEASE_2)
    assert find_violations(*woken, *make_step(text="Done.")) == ["I11"]


def test_a_pause_is_resumed_once() -> None:
    """I23."""
    resumed = (*LEASED_RUN, PauseRequested(), RunPaused(), RunResumed())
    assert find_violations(*resumed, LEASE_2, PauseRequested(), RunPaused(), RunResumed()) == []
    assert find_violations(*resumed, RunResumed()) == ["I23"]


@pytest.mark.parametrize(
    "control",
    [
        PauseRequested(),
        PauseWithdrawn(),
        CancelRequested(),
        TakenOver(by="bob"),
        MessageReceived(text="Stop!"),
        RedirectRequested(text="Stop!"),
    ],
)
def test_only_a_halt_interrupts_an_undo(control: Entry) -> None:
    """I32."""
    undoing = (
        *make_call_in_flight(DRAFT),
        CancelRequested(),
        CallDone(call=C2),
        UndoStarted(call=C2),
    )
    assert find_violations(*undoing, RunHalted(phase_after_lift=Phase.CANCELLING)) == []
    assert find_violations(*undoing, control) == ["I32"]


# ── asks ───────────────────────────────────────────────────────────────────────────────


def test_an_ask_is_decided_once() -> None:
    """I24."""
    assert find_violations(*ASKING, ANSWER) == []
    assert find_violations(*ASKING, ANSWER, ANSWER) == ["I24"]
    assert find_violations(*ASKING, AskClosed(ask=A1, why="superseded"), ANSWER) == ["I24"]
    assert find_violations(*ASKING, ANSWER, AskClosed(ask=A1, why="superseded")) == ["I24"]
    assert find_violations(*LEASED_RUN, ANSWER) == ["I24"]


def test_a_run_that_ends_has_no_open_ask() -> None:
    """I24."""
    closed = AskClosed(ask=A1, why="cancelled")
    assert find_violations(*ASKING, CancelRequested(), closed, RunCancelled()) == []
    assert find_violations(*ASKING, CancelRequested(), RunCancelled()) == ["I24"]


def test_a_gated_call_cites_its_own_approval() -> None:
    """I25."""
    assert find_violations(*GATED, APPROVE, APPROVED) == []
    assert find_violations(*GATED, APPROVE, make_start(C2)) == ["I25"]
    other = replace(APPROVED, approval=Approval(ask=AskId("a9"), args_hash=HASH))
    assert find_violations(*GATED, APPROVE, other) == ["I25"]


def test_an_approval_covers_one_call_only() -> None:
    """I25: the same arguments in another call need another approval."""
    both = (*LEASED_RUN, *make_step(SEND, SEND), ASK, APPROVE)
    assert find_violations(*both, replace(APPROVED, call=C3)) == ["I25"]


def test_an_approval_covers_the_arguments_that_were_shown() -> None:
    """I25: arguments that the approver edited count as shown."""
    edited = {"to": "bob"}
    hashed = hash_args(edited)
    changed = Decision(choice="approve", value=edited)
    approval = Approval(ask=A1, args_hash=hashed)
    approve = replace(APPROVE, decision=changed, args_hash=hashed)
    assert find_violations(*GATED, approve, replace(APPROVED, approval=approval)) == []
    assert find_violations(*GATED, APPROVE, replace(APPROVED, approval=approval)) == ["I25"]
    forged = replace(APPROVE, args_hash=hashed)
    assert find_violations(*GATED, forged, replace(APPROVED, approval=approval)) == ["I25"]


def test_an_approval_is_void_after_a_redirect() -> None:
    """I25: a redirect that was withdrawn changes nothing."""
    redirect = RedirectRequested(text="Use the 2026 figures")
    applied = RedirectApplied(redirect=Seq(7))
    withdrawn = RedirectClosed(redirect=Seq(7), why="withdrawn")
    assert find_violations(*GATED, APPROVE, redirect, withdrawn, APPROVED) == []
    assert find_violations(*GATED, APPROVE, redirect, applied, APPROVED) == ["I25"]
    assert find_violations(*GATED, APPROVE, redirect, APPROVED) == ["I25"]


def test_an_expired_approval_does_not_count() -> None:
    """I25."""
    gated = (
        *LEASED_RUN,
        *make_step(SEND),
        replace(ASK, expires=Micros(START_TIME + 60_000_000)),
    )
    assert find_violations(*gated, APPROVE, with_time(59, APPROVED)) == []
    assert find_violations(*gated, APPROVE, with_time(61, APPROVED)) == ["I25"]


def test_only_the_audience_decides_and_four_eyes_exclude_the_starter() -> None:
    """I25."""
    for_operators = (*LEASED_RUN, *make_step(SEND), replace(ASK, audience="operator"))
    assert find_violations(*for_operators, replace(APPROVE, role="operator")) == []
    assert find_violations(*for_operators, replace(APPROVE, role="user")) == ["I25"]
    four_eyes = (*LEASED_RUN, *make_step(SEND), replace(ASK, four_eyes=True))
    assert find_violations(*four_eyes, APPROVE) == []
    assert find_violations(*four_eyes, replace(APPROVE, by="ann")) == ["I25"]


def test_an_approval_from_before_an_import_covers_no_start_after_it() -> None:
    """I25: this store could not check the entries from before the import."""
    imported = RunImported(checkpoint=RunId("run_1"), head="", by="ann")
    waiting = (*LEASED_RUN, *make_step(SEND), replace(ASK, four_eyes=True), RunWaiting())
    restart = (LEASE_2, APPROVED)
    assert find_violations(*waiting, APPROVE, RunWoken(), *restart) == []
    paused = (*waiting, PauseRequested(), RunPaused(), APPROVE)
    assert find_violations(*paused, RunResumed(), *restart) == []
    assert find_violations(*paused, imported, RunResumed(), *restart) == ["I25"]
    assert find_violations(*waiting, replace(imported, by=APPROVE.by), APPROVE, RunWoken()) == [
        "I25"
    ]


@pytest.mark.parametrize(
    "steering",
    [
        (RedirectRequested(text="Send it", by="bob"), RedirectApplied(redirect=Seq(3))),
        (MessageReceived(text="Send it", by="bob"), MessageTaken(message=Seq(3))),
    ],
)
def test_a_person_who_steered_the_run_to_a_call_cannot_approve_it(
    steering: tuple[Entry, ...],
) -> None:
    """I25: under four eyes, the agent had their text before it proposed the call."""
    asking = (*LEASED_RUN, *steering, *make_step(SEND), replace(ASK, four_eyes=True))
    assert find_violations(*asking, APPROVE) == ["I25"]
    assert find_violations(*asking, replace(APPROVE, by="cy")) == []


def test_the_reason_of_a_decline_steers_the_run_to_the_next_call() -> None:
    """I25: under four eyes, the person who gave the reason cannot approve that call."""
    asking = replace(ASK, ask=A2, call=C4, four_eyes=True)
    rest = (*make_step(SEND, call=C3), asking, replace(APPROVE, ask=A2))
    for reason, violations in (("", []), ("To DE89!", ["I25"])):
        declined = replace(APPROVE, decision=Decision(choice="decline", reason=reason))
        assert find_violations(*GATED, declined, *rest) == violations


def test_arguments_edited_under_four_eyes_need_another_approval() -> None:
    """I25: an edit is a proposal. The start cites the approval of another person."""
    asking = (*LEASED_RUN, *make_step(SEND), replace(ASK, four_eyes=True))
    edited = {"to": "mallory"}
    decision = Decision(choice="approve", value=edited)
    edit = replace(APPROVE, decision=decision, args_hash=hash_args(edited))
    citing = replace(APPROVED, approval=Approval(ask=ASK.ask, args_hash=hash_args(edited)))
    assert find_violations(*asking, edit) == []
    assert find_violations(*asking, edit, citing) == ["I25"]
    again = replace(ASK, ask=A2, four_eyes=True, args_hash=hash_args(edited))
    approve = replace(APPROVE, ask=again.ask, args_hash=again.args_hash)
    assert find_violations(*asking, edit, again, approve) == ["I25"]  # by the same person
    cites = replace(APPROVED, approval=Approval(ask=again.ask, args_hash=again.args_hash))
    assert find_violations(*asking, edit, again, replace(approve, by="cy"), cites) == []


def test_a_declined_call_is_never_made() -> None:
    """I15 and I25."""
    declined = replace(APPROVE, decision=Decision(choice="decline"))
    assert find_violations(*GATED, declined) == []
    assert set(find_violations(*GATED, declined, APPROVED)) == {"I15", "I25"}


def test_a_call_with_an_open_ask_is_not_made() -> None:
    """I17 and I25."""
    assert set(find_violations(*GATED, APPROVED)) == {"I17", "I25"}
    proposed = (*LEASED_RUN, CallProposed(use=MAIL))
    assert find_violations(*proposed, make_start(C1)) == []
