"""Decide on asks: answers, approvals, and questions that calls raise.

An ask is settled once. The first decision is journaled as `AskAnswered`; later ones are
refused with the name of the first decider. A decision may wake a waiting run, so most
handlers pass their entries through `add_wakeup`.
"""

from midrun.core.controls import Answer, Approve, Decline
from midrun.core.decide.lifecycle import add_wakeup, make_followup_fields, make_request_fields
from midrun.core.driver_inputs import AskPerson, CloseChildAsk
from midrun.core.entries import AskAnswered, AskClosed, AskOpened, CallSettled, Entry, RunWoken
from midrun.core.evolve.asks import is_edit_under_four_eyes
from midrun.core.evolve.calls import hash_args
from midrun.core.files import find_run_file_problem
from midrun.core.ids import Micros, make_ask_id
from midrun.core.placeholders import check_hidden
from midrun.core.state import Ask, CallStage, State, read_child_caps
from midrun.core.transitions import Refused, Verdict, accept
from midrun.core.values import Actor, Decision, Json, Phase


def may_decide(actor: Actor, ask: Ask) -> bool:
    """Tell whether `actor` may settle `ask`.

    The handlers and the buttons of every surface use this one rule. The audience of an ask is
    every person, a role, or one person (`user:ann`). Four eyes exclude the people who steered
    the run to the call (`Call.steered_by`), and the person who imported the run from a
    checkpoint: the imported journal names the people who steered it, and the importer could
    have forged it. A viewer may settle nothing.
    """
    # The actor's name comes from a credential, the audience from the tool. Neither can be
    # written by the model.
    addressed = ask.audience in {"", actor.role, f"user:{actor.name}"}
    return actor.role != "viewer" and addressed and actor.name not in ask.excluded


HAPPENED_BY_ANSWER: dict[Json, bool | None] = {"yes": True, "no": False, "unknown": None}
"""Answer to "did the call take effect?" → `CallSettled.happened`."""


def answer(state: State, control: Answer, now: Micros) -> Verdict:
    """Record an answer: it is the call's result, or the input of its next attempt."""
    ask = state.find_ask(control.ask)
    if (problem := _find_refusal(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    if ask.effective_kind == "approval":
        return Refused(reason="not_a_question")
    # This answer raises caps of the child run. Only an operator may raise a cap.
    if read_child_caps(ask, control.value) and control.by.role != "operator":
        return Refused(reason="not_allowed", by="operator")
    outcome = control.value if isinstance(control.value, str) else ""
    # A third answer, such as "maybe", would leave the call neither settled nor asked again.
    if ask.effective_kind == "unsure" and outcome not in HAPPENED_BY_ANSWER:
        return Refused(reason="not_an_outcome")
    if control.files and not ask.takes_files:
        return Refused(reason="no_files_here")
    if find_run_file_problem(state, control.files):
        return Refused(reason="files_refused")
    decision = Decision(choice="answer", value=control.value)
    answered = AskAnswered(
        ask=ask.id, decision=decision, files=control.files, **make_request_fields(control)
    )
    if ask.ask_kind != "unsure":
        return accept(*add_wakeup(state, (answered,), "answered"))
    # An answer to "did the call take effect?" needs a second entry: `CallSettled` is also what
    # a check of the tool appends, so the state has one way to settle a call.
    settled = CallSettled(
        call=ask.call, happened=HAPPENED_BY_ANSWER[outcome], **make_followup_fields(control)
    )
    return accept(*add_wakeup(state, (answered, settled), "answered"))


def approve(state: State, control: Approve, now: Micros) -> Verdict:
    """Approve one call with exactly these arguments, once.

    Under four eyes an edit of the arguments is only a proposal. `evolve` then grants no
    approval; the scheduler opens a second ask about the new arguments, and the editor is
    excluded from it.
    """
    ask = state.find_ask(control.ask)
    if (problem := _find_refusal(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    call = state.find_call(ask.call)
    if ask.effective_kind not in {"approval", "child"} or call is None:
        return Refused(reason="not_an_approval")
    args = call.use.args if control.args is None else control.args
    # After the first attempt the arguments are fixed: the tool's backend may have stored the
    # call's idempotency key together with them. An ask of a child run is exempt, because it
    # is about a call in the child's journal, and the child checks it there.
    if ask.ask_kind != "child" and call.attempt and hash_args(args) != hash_args(call.use.args):
        return Refused(reason="already_attempted")
    # A person sees a placeholder instead of a secret, and cannot judge the value behind it.
    # A placeholder is acceptable only in an argument that the tool declares as secret.
    if not check_hidden(ask, call.use, control.args)[1]:
        return Refused(reason="hidden_argument")
    decision = Decision(choice="approve", value=control.args)
    entries: tuple[Entry, ...] = (
        AskAnswered(
            ask=ask.id,
            decision=decision,
            args_hash=hash_args(args),
            title="" if control.args is None else control.title,
            **make_request_fields(control),
        ),
    )
    why = "edited" if is_edit_under_four_eyes(ask, decision) else "approved"
    # A person has taken over and requested this call. A paused run has no worker, so wake it
    # for the one call; it pauses again afterwards.
    if state.phase is Phase.PAUSED and state.taken_over_by:
        return accept(*entries, RunWoken(why=why))
    return accept(*add_wakeup(state, entries, why))


def decline(state: State, control: Decline, now: Micros) -> Verdict:
    """Decline a call, or decline a question; the tool receives the refusal."""
    ask = state.find_ask(control.ask)
    if (problem := _find_refusal(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    if not ask.can_be_declined:
        return Refused(reason="not_an_approval")
    decision = Decision(choice="decline", reason=control.reason)
    answered = AskAnswered(ask=ask.id, decision=decision, **make_request_fields(control))
    return accept(*add_wakeup(state, (answered,), "declined"))


def _find_refusal(
    ask: Ask | None, control: Answer | Approve | Decline, now: Micros
) -> Refused | None:
    """Return the refusal if this actor cannot settle this ask now, else None."""
    if ask is None:
        return Refused(reason="no_such_ask")
    if ask.close_reason:
        reason = "already_answered" if ask.close_reason == "answered" else "ask_closed"
        return Refused(reason=reason, seq=ask.closed_seq, by=ask.decided_by)
    # The ask has expired, but its timer has not fired yet. Without this check a decision
    # could win the race against the timer.
    if ask.expires is not None and ask.expires <= now:
        return Refused(reason="ask_closed", seq=ask.opened_seq)
    if not may_decide(control.by, ask):
        excluded = control.by.name in ask.excluded
        return Refused(reason="not_allowed", by="another person" if excluded else ask.audience)
    return None


def ask_person(state: State, driver_input: AskPerson, _: Micros) -> Verdict:
    """Open a question for a call; the call leaves flight until the answer."""
    call = state.find_call(driver_input.call)
    if call is None or call.stage is not CallStage.STARTED:
        return Refused(reason="not_in_flight")
    question, files = driver_input.question, driver_input.files
    # The call may have taken effect, so the question is asked without files that are too large.
    if problem := find_run_file_problem(state, files):
        question, files = f"{question}\n\n{problem}".lstrip(), ()
    return accept(
        AskOpened(
            ask=make_ask_id(len(state.asks) + 1),
            ask_kind="child" if driver_input.child else "question",
            call=call.id,
            question=question,
            data=driver_input.data,
            child_ask_kind=driver_input.child_ask_kind,
            audience=driver_input.audience or call.traits.audience,
            four_eyes=driver_input.four_eyes or call.traits.four_eyes,
            excluded=driver_input.excluded,
            expires=driver_input.expires,
            continuation=driver_input.continuation,
            files=files,
        )
    )


def close_child_ask(state: State, driver_input: CloseChildAsk, _: Micros) -> Verdict:
    """Close the ask for a child whose own ask was settled in the child run.

    The call is proposed again, so the parent's worker attaches to the child again.
    """
    ask = state.find_ask(driver_input.ask)
    if ask is None:
        return Refused(reason="no_such_ask")
    if ask.close_reason:
        reason = "already_answered" if ask.close_reason == "answered" else "ask_closed"
        return Refused(reason=reason, seq=ask.closed_seq, by=ask.decided_by)
    return accept(*add_wakeup(state, (AskClosed(ask=ask.id, why="elsewhere"),), "child"))
