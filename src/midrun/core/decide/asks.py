"""Asks: who may decide what, once."""

from midrun.core.child_runs import read_child_caps
from midrun.core.controls import Answer, Approve, Decline
from midrun.core.decide.shared import asked, by, waking
from midrun.core.decision import Refused, Rulings, Verdict, accept
from midrun.core.driver_inputs import AskMoot, AskPerson
from midrun.core.entries import AskAnswered, AskClosed, AskOpened, CallSettled, Entry, RunWoken
from midrun.core.evolve.asks import is_edit_under_four_eyes
from midrun.core.evolve.calls import args_hash
from midrun.core.ids import Micros, ask_id
from midrun.core.placeholders import check_hidden
from midrun.core.state import Ask, Stage, State
from midrun.core.values import Actor, Decision, Json, Phase

# Audiences: who may settle an ask. The ruling goes by it, and every button that offers one.


def may_decide(actor: Actor, ask: Ask) -> bool:
    """Tell whether `actor` may settle `ask`.

    An ask is for every person, for a role, or for one person (`user:ann`). With four eyes it
    is not for those who steered the run to the call (`Call.steered_by`). The person who brought
    the run in with a checkpoint is among them: its journal says who steered it, and the bearer
    could have written that. A viewer decides nothing.
    """
    addressed = ask.audience in {"", actor.role, f"user:{actor.name}"}
    return actor.role != "viewer" and addressed and actor.name not in ask.excluded


OUTCOMES: dict[Json, bool | None] = {"yes": True, "no": False, "unknown": None}
"""What a person may say about an unsure call: it did, it didn't, don't know."""


def answer(state: State, control: Answer, now: Micros) -> Verdict:
    """The answer is the result of the call, or the call is made again with it."""
    ask = state.ask(control.ask)
    if (problem := _problem(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    if ask.kind == "approval":
        return Refused(reason="not_a_question")
    if read_child_caps(ask, control.value) and control.by.role != "operator":
        return Refused(reason="not_allowed", by="operator")
    outcome = control.value if isinstance(control.value, str) else ""
    if ask.kind == "unsure" and outcome not in OUTCOMES:
        return Refused(reason="not_an_outcome")
    decision = Decision(choice="answer", value=control.value)
    answered = AskAnswered(ask=ask.id, decision=decision, **asked(control))
    if ask.ask_kind != "unsure":
        return accept(*waking(state, (answered,), "answered"))
    settled = CallSettled(call=ask.call, happened=OUTCOMES[outcome], **by(control))
    return accept(*waking(state, (answered, settled), "answered"))


def approve(state: State, control: Approve, now: Micros) -> Verdict:
    """Let the call be made: this call, with these arguments, once.

    Under four eyes an edit is a proposal: the fold gives no approval for it, so that the plan
    asks again, about the new arguments, and the editor is excluded from that ask.
    """
    ask = state.ask(control.ask)
    if (problem := _problem(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    call = state.call(ask.call)
    if ask.kind not in {"approval", "child"} or call is None:
        return Refused(reason="not_an_approval")
    args = call.use.args if control.args is None else control.args
    # What a child asks about is a call of its own, which its own journal rules on.
    if ask.ask_kind != "child" and call.attempt and args_hash(args) != args_hash(call.use.args):
        # Its key is known outside with the arguments it was first made with.
        return Refused(reason="already_attempted")
    if not check_hidden(ask, call.use, control.args)[1]:
        return Refused(reason="hidden_argument")
    decision = Decision(choice="approve", value=control.args)
    entries: tuple[Entry, ...] = (
        AskAnswered(ask=ask.id, decision=decision, args_hash=args_hash(args), **asked(control)),
    )
    why = "edited" if is_edit_under_four_eyes(ask, decision) else "approved"
    if state.phase is Phase.PAUSED and state.wheel:  # the person at the wheel wants it made
        return accept(*entries, RunWoken(why=why))
    return accept(*waking(state, entries, why))


def decline(state: State, control: Decline, now: Micros) -> Verdict:
    """Do not let the call be made; or say no to a question, which its tool is told."""
    ask = state.ask(control.ask)
    if (problem := _problem(ask, control, now)) is not None or ask is None:
        return problem or Refused(reason="no_such_ask")
    if not ask.declinable:
        return Refused(reason="not_an_approval")
    decision = Decision(choice="decline", reason=control.reason)
    answered = AskAnswered(ask=ask.id, decision=decision, **asked(control))
    return accept(*waking(state, (answered,), "declined"))


def _problem(
    ask: Ask | None, control: Answer | Approve | Decline, now: Micros
) -> Refused | None:
    """Return why this person cannot decide this ask now, if so."""
    if ask is None:
        return Refused(reason="no_such_ask")
    if ask.closed:
        reason = "already_answered" if ask.closed == "answered" else "ask_closed"
        return Refused(reason=reason, seq=ask.closed_seq, by=ask.by)
    if ask.expires is not None and ask.expires <= now:  # its time is up; nobody looked yet
        return Refused(reason="ask_closed", seq=ask.opened)
    if not may_decide(control.by, ask):
        excluded = control.by.name in ask.excluded
        return Refused(reason="not_allowed", by="another person" if excluded else ask.audience)
    return None


def ask_person(state: State, evidence: AskPerson, _: Micros) -> Verdict:
    """Park the call on a question: it is not in flight any more."""
    call = state.call(evidence.call)
    if call is None or call.stage is not Stage.STARTED:
        return Refused(reason="not_in_flight")
    return accept(
        AskOpened(
            ask=ask_id(len(state.asks) + 1),
            ask_kind="child" if evidence.child else "question",
            call=call.id,
            question=evidence.question,
            data=evidence.data,
            of=evidence.of,
            audience=evidence.audience or call.traits.audience,
            four_eyes=evidence.four_eyes or call.traits.four_eyes,
            excluded=evidence.excluded,
            expires=evidence.expires,
            continuation=evidence.continuation,
        )
    )


def ask_moot(state: State, evidence: AskMoot, _: Micros) -> Verdict:
    """A child's ask was answered on the child: the parent attaches to it again."""
    ask = state.ask(evidence.ask)
    if ask is None:
        return Refused(reason="no_such_ask")
    if ask.closed:
        reason = "already_answered" if ask.closed == "answered" else "ask_closed"
        return Refused(reason=reason, seq=ask.closed_seq, by=ask.by)
    return accept(*waking(state, (AskClosed(ask=ask.id, why="elsewhere"),), "child"))


RULINGS: Rulings = {
    Answer: answer,
    Approve: approve,
    Decline: decline,
    AskPerson: ask_person,
    AskMoot: ask_moot,
}
