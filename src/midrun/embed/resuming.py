"""Resuming from a checkpoint: which controls an answer and an instruction mean."""

from midrun.codec.strict import checked
from midrun.core import controls as c
from midrun.core.possible import possible
from midrun.core.state import Ask, State
from midrun.core.values import Actor, Json, Phase
from midrun.errors import ControlRefused
from midrun.handles.given import counted, text


def answers(
    state: State,
    answer: Json,
    instruction: str | None,
    *,
    caps: dict[str, float],
    by: Actor,
) -> tuple[c.Control, ...]:
    """Return what to ask of a parked run, in order.

    An answer needs exactly one open ask. To a question it is the result; to an approval True or
    False, or `{"approved": …, "args": …, "reason": …}`; to an unsure call yes, no or unknown.

    Raises:
        ControlRefused: nothing, or more than one thing, was asked.
    """
    wishes: list[c.Control] = []
    if answer is not None:
        wishes.append(_decision(_only(state), checked(answer), by))
    words = text("instruction", instruction or "")
    if state.phase is not Phase.WAITING:
        wishes.append(c.Resume(instruction=words, caps=counted(caps), by=by))
    elif words:
        wishes.append(c.Redirect(text=words, by=by))
    if not wishes:
        raise ControlRefused(state.run, "resume", "answer_needed", state.phase, ("answer",))
    return tuple(wishes)


def _only(state: State) -> Ask:
    if len(state.open_asks) == 1:
        return state.asks[state.open_asks[0] - 1]
    reason = "several_asks_open" if state.open_asks else "no_such_ask"
    raise ControlRefused(state.run, "answer", reason, state.phase, possible(state))


def _decision(ask: Ask, answer: Json, by: Actor) -> c.Control:
    if ask.kind == "unsure" and isinstance(answer, bool):
        return c.Answer(ask=ask.id, value="yes" if answer else "no", by=by)
    if ask.kind != "approval":
        return c.Answer(ask=ask.id, value=answer, by=by)
    said = answer if isinstance(answer, dict) else {"approved": answer}
    if said.get("approved") is True:
        return c.Approve(ask=ask.id, args=said.get("args"), by=by)
    return c.Decline(ask=ask.id, reason=str(said.get("reason", "")), by=by)
