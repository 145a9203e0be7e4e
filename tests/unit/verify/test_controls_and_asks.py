"""Controls and asks: I5, I20, I21, I23 to I26, I32."""

import pytest
from msgspec.structs import replace

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallDone,
    CallProposed,
    CallStarted,
    CallUnknown,
    CancelRequested,
    CapReached,
    Entry,
    LateResult,
    LeaseTaken,
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
from midrun.core.ids import AskId, CallId, Epoch, Micros, RunId, Seq
from midrun.core.values import Approval, Decision, Phase, Traits, Use
from tests.unit.verify.books import (
    BEGUN,
    C1,
    C2,
    C3,
    DRAFT,
    MAIL,
    NOON,
    at,
    broken,
    start,
    step,
)

A1 = AskId("a1")
E2 = LeaseTaken(epoch=Epoch(2))
SEND = Use(tool="send", args={"to": "eve"}, traits=Traits(approve="block"))
HASH = hash_args(SEND.args)
ASK = AskOpened(ask=A1, ask_kind="approval", call=C2, args_hash=HASH)
YES = AskAnswered(ask=A1, decision=Decision(choice="approve"), args_hash=HASH, by="bob")
GATED = (*BEGUN, *step(SEND), ASK)
APPROVED = replace(start(C2), approval=Approval(ask=A1, args_hash=HASH))
QUESTION = AskOpened(ask=A1, ask_kind="question", call=C2)
ASKING = (*BEGUN, *step(MAIL), start(C2), QUESTION)
ANSWER = AskAnswered(ask=A1, decision=Decision(choice="answer", value=7))


# ── ends ──────────────────────────────────────────────────────────────────────────────────


def test_nothing_but_notes_follows_a_completed_run() -> None:
    """I5: what is over stays over."""
    done = (*BEGUN, *step(text="Done."), RunCompleted())
    assert broken(*done, RequestNoted(verdict="is_completed", refused=True)) == []
    assert broken(*done, LateResult(call=C1, attempt=1, epoch=Epoch(1))) == []
    assert broken(*done, PauseRequested()) == ["I5"]
    assert broken(*done, CancelRequested()) == ["I5"]


def test_nothing_but_notes_and_operators_follow_a_cancelled_run() -> None:
    """I5: an operator may deal with the residue, nobody may start anything."""
    cancelled = (*BEGUN, CancelRequested(), RunCancelled())
    assert broken(*cancelled, RequestNoted(verdict="already_cancelled")) == []
    assert broken(*cancelled, ResidueAccepted()) == []
    assert broken(*cancelled, RunResumed())[0] == "I5"


@pytest.mark.parametrize("end", [RunPaused(), RunFailed(error="no"), RunCompleted()])
def test_a_run_at_rest_has_nothing_in_flight(end: Entry) -> None:
    """I26: never show paused while something runs."""
    assert broken(*BEGUN, *step(MAIL), start(C2), CallDone(call=C2), end) == []
    assert broken(*BEGUN, *step(MAIL), start(C2), end) == ["I26"]


def test_a_run_that_waits_waits_for_somebody() -> None:
    """I26: nothing but an answer wakes it."""
    assert broken(*ASKING, RunWaiting()) == []
    assert "I26" in broken(*BEGUN, RunWaiting())


def test_a_run_does_not_wait_for_what_it_could_go_on_without() -> None:
    """I26: a queued approval keeps nobody, until the agent has said its last word."""
    queued = replace(ASK, blocking=False)
    assert broken(*BEGUN, *step(SEND), queued, RunWaiting()) == ["I26"]
    thought = (*BEGUN, *step(SEND), queued, *step(call=C3, text="Done."))
    assert broken(*thought, RunWaiting()) == []


def test_a_run_that_was_halted_while_it_waited_does_not_wait_for_nobody() -> None:
    """I26: evidence may close the last ask behind the latch."""
    ask = AskOpened(ask=A1, ask_kind="unsure", call=C2)
    lost = (*BEGUN, *step(MAIL), start(C2), E2, CallUnknown(call=C2), ask, RunWaiting())
    late = (LateResult(call=C2, attempt=1, epoch=Epoch(1)), AskClosed(ask=A1, why="evidence"))
    halted = (*lost, RunHalted(then=Phase.WAITING), *late, RunLifted())
    assert broken(*halted, RunWoken()) == []
    assert broken(*halted) == ["I26"]


# ── controls ──────────────────────────────────────────────────────────────────────────────


def test_a_request_is_applied_once() -> None:
    """I20: whoever repeats it hears what the first one was told."""
    asked = PauseRequested(request="r1", digest="d")
    assert broken(*BEGUN, asked, PauseWithdrawn(request="r2")) == []
    assert broken(*BEGUN, asked, PauseWithdrawn(request="r1")) == ["I20"]
    assert broken(*BEGUN, asked, RequestNoted(request="r1", verdict="no")) == ["I20"]


@pytest.mark.parametrize("pause", [PauseRequested(), CapReached(stop="at most 1 steps")])
def test_an_accepted_pause_is_not_overtaken_by_the_end(pause: Entry) -> None:
    """I21: the finished answer waits until somebody resumes the run."""
    answered = (*BEGUN, *step(text="Done."))
    rested = (*answered, pause, RunPaused(), RunResumed(), E2)
    assert broken(*rested, RunCompleted()) == []
    assert broken(*answered, pause, RunCompleted()) == ["I21"]


def test_an_accepted_pause_is_not_overtaken_by_a_question() -> None:
    """I21: a run that is asked to pause pauses, with its asks open."""
    assert broken(*ASKING, PauseRequested(), RunPaused()) == []
    assert broken(*ASKING, PauseRequested(), RunWaiting()) == ["I21"]


def test_a_redirect_after_the_pause_ends_it() -> None:
    """I21: the run pauses, then goes on with the text; no other wake-up ends a pause."""
    redirected = (*BEGUN, PauseRequested(), RedirectRequested(text="Go"), RunPaused())
    gone_on = (RunWoken(), E2, RedirectApplied(redirect=Seq(4)), *step(text="Done."))
    assert broken(*redirected, *gone_on, RunCompleted()) == []
    woken = (*BEGUN, PauseRequested(), RunPaused(), RunWoken(), E2)
    assert broken(*woken, *step(text="Done.")) == ["I11"]


def test_a_pause_is_resumed_once() -> None:
    """I23: of two people who press resume, one is told that it goes on already."""
    rested = (*BEGUN, PauseRequested(), RunPaused(), RunResumed())
    assert broken(*rested, E2, PauseRequested(), RunPaused(), RunResumed()) == []
    assert broken(*rested, RunResumed()) == ["I23"]


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
def test_no_control_interrupts_the_undoing(control: Entry) -> None:
    """I32: only an operator's latch does."""
    undoing = (
        *(*BEGUN, *step(DRAFT), start(C2), CancelRequested()),
        *(CallDone(call=C2), UndoStarted(call=C2)),
    )
    assert broken(*undoing, RunHalted(then=Phase.CANCELLING)) == []
    assert broken(*undoing, control) == ["I32"]


# ── asks ──────────────────────────────────────────────────────────────────────────────────


def test_an_ask_is_decided_once() -> None:
    """I24: two people, two browsers, one answer."""
    assert broken(*ASKING, ANSWER) == []
    assert broken(*ASKING, ANSWER, ANSWER) == ["I24"]
    assert broken(*ASKING, AskClosed(ask=A1, why="superseded"), ANSWER) == ["I24"]
    assert broken(*ASKING, ANSWER, AskClosed(ask=A1, why="superseded")) == ["I24"]
    assert broken(*BEGUN, ANSWER) == ["I24"]


def test_nobody_is_asked_about_a_run_that_is_over() -> None:
    """I24: an ask that stays open would be answered into the void."""
    closed = AskClosed(ask=A1, why="cancelled")
    assert broken(*ASKING, CancelRequested(), closed, RunCancelled()) == []
    assert broken(*ASKING, CancelRequested(), RunCancelled()) == ["I24"]


def test_a_call_that_needs_a_yes_cites_it() -> None:
    """I25: no call without an approval, or with somebody else's."""
    assert broken(*GATED, YES, APPROVED) == []
    assert broken(*GATED, YES, start(C2)) == ["I25"]
    other = replace(APPROVED, approval=Approval(ask=AskId("a9"), args_hash=HASH))
    assert broken(*GATED, YES, other) == ["I25"]


def test_an_approval_is_for_one_call_only() -> None:
    """I25: the same arguments of another call need another yes."""
    both = (*BEGUN, *step(SEND, SEND), ASK, YES)
    assert broken(*both, replace(APPROVED, call=C3)) == ["I25"]


def test_an_approval_is_for_what_was_shown() -> None:
    """I25: other arguments need another yes; edited ones count as shown."""
    edited = {"to": "bob"}
    hashed = hash_args(edited)
    changed = Decision(choice="approve", value=edited)
    approval = Approval(ask=A1, args_hash=hashed)
    yes = replace(YES, decision=changed, args_hash=hashed)
    assert broken(*GATED, yes, replace(APPROVED, approval=approval)) == []
    assert broken(*GATED, YES, replace(APPROVED, approval=approval)) == ["I25"]
    forged = replace(YES, args_hash=hashed)
    assert broken(*GATED, forged, replace(APPROVED, approval=approval)) == ["I25"]


def test_an_approval_does_not_outlive_a_redirect() -> None:
    """I25: it was given for the old course; one that was withdrawn changed nothing."""
    redirect = RedirectRequested(text="Use the 2026 figures")
    applied = RedirectApplied(redirect=Seq(7))
    withdrawn = RedirectClosed(redirect=Seq(7), why="withdrawn")
    assert broken(*GATED, YES, redirect, withdrawn, APPROVED) == []
    assert broken(*GATED, YES, redirect, applied, APPROVED) == ["I25"]
    assert broken(*GATED, YES, redirect, APPROVED) == ["I25"]


def test_an_approval_that_expired_is_worth_nothing() -> None:
    """I25: yesterday's yes is not today's."""
    gated = (*BEGUN, *step(SEND), replace(ASK, expires=Micros(NOON + 60_000_000)))
    assert broken(*gated, YES, at(59, APPROVED)) == []
    assert broken(*gated, YES, at(61, APPROVED)) == ["I25"]


def test_only_who_may_decide_decides() -> None:
    """I25: the audience, and not who started the run where four eyes are wanted."""
    for_operators = (*BEGUN, *step(SEND), replace(ASK, audience="operator"))
    assert broken(*for_operators, replace(YES, role="operator")) == []
    assert broken(*for_operators, replace(YES, role="user")) == ["I25"]
    four_eyes = (*BEGUN, *step(SEND), replace(ASK, four_eyes=True))
    assert broken(*four_eyes, YES) == []
    assert broken(*four_eyes, replace(YES, by="ann")) == ["I25"]


def test_an_approval_from_before_an_import_covers_no_start_after_it() -> None:
    """I25: the lines before an import were written where this store could not see it."""
    imported = RunImported(checkpoint=RunId("run_1"), head="", by="ann")
    waiting = (*BEGUN, *step(SEND), replace(ASK, four_eyes=True), RunWaiting())
    again = (E2, APPROVED)
    assert broken(*waiting, YES, RunWoken(), *again) == []
    paused = (*waiting, PauseRequested(), RunPaused(), YES)
    assert broken(*paused, RunResumed(), *again) == []
    assert broken(*paused, imported, RunResumed(), *again) == ["I25"]
    assert broken(*waiting, replace(imported, by=YES.by), YES, RunWoken()) == ["I25"]


@pytest.mark.parametrize(
    "words",
    [
        (RedirectRequested(text="Send it", by="bob"), RedirectApplied(redirect=Seq(3))),
        (MessageReceived(text="Send it", by="bob"), MessageTaken(message=Seq(3))),
    ],
)
def test_who_steered_the_run_to_a_call_does_not_approve_it(words: tuple[Entry, ...]) -> None:
    """I25: four eyes exclude people whose words the agent had before it proposed the call."""
    asked = (*BEGUN, *words, *step(SEND), replace(ASK, four_eyes=True))
    assert broken(*asked, YES) == ["I25"]
    assert broken(*asked, replace(YES, by="cy")) == []


def test_the_reason_of_a_decline_steers_the_run_to_the_next_call() -> None:
    """I25: who tells the agent what to do instead does not approve it."""
    again = AskId("a2")
    asked = replace(ASK, ask=again, call=CallId("c4"), four_eyes=True)
    rest = (*step(SEND, call=C3), asked, replace(YES, ask=again))
    for reason, found in (("", []), ("To DE89!", ["I25"])):
        no = replace(YES, decision=Decision(choice="decline", reason=reason))
        assert broken(*GATED, no, *rest) == found


def test_what_was_edited_under_four_eyes_needs_another_approval() -> None:
    """I25: an edit proposes; the start cites the approval of another person."""
    asked = (*BEGUN, *step(SEND), replace(ASK, four_eyes=True))
    edited = {"to": "mallory"}
    decision = Decision(choice="approve", value=edited)
    edit = replace(YES, decision=decision, args_hash=hash_args(edited))
    citing = replace(APPROVED, approval=Approval(ask=ASK.ask, args_hash=hash_args(edited)))
    assert broken(*asked, edit) == []
    assert broken(*asked, edit, citing) == ["I25"]
    again = replace(ASK, ask=AskId("a2"), four_eyes=True, args_hash=hash_args(edited))
    yes = replace(YES, ask=again.ask, args_hash=again.args_hash)
    assert broken(*asked, edit, again, yes) == ["I25"]  # by the same person
    cites = replace(APPROVED, approval=Approval(ask=again.ask, args_hash=again.args_hash))
    assert broken(*asked, edit, again, replace(yes, by="cy"), cites) == []


def test_a_call_that_was_declined_is_never_made() -> None:
    """I15, and I25: a no is not a yes."""
    no = replace(YES, decision=Decision(choice="decline"))
    assert broken(*GATED, no) == []
    assert set(broken(*GATED, no, APPROVED)) == {"I15", "I25"}


def test_a_call_that_waits_for_a_decision_is_not_made() -> None:
    """I17, and I25: asking is not being told."""
    assert set(broken(*GATED, APPROVED)) == {"I17", "I25"}
    proposed = (*BEGUN, CallProposed(use=MAIL))
    assert (
        broken(*proposed, CallStarted(call=C1, call_kind="tool", attempt=1, seen=Seq(-1))) == []
    )
