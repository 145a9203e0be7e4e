"""How asks are told: what a person is needed for, and what they decided."""

from typing import Final

from midrun.core.entries import AskAnswered, AskClosed, AskOpened
from midrun.core.folds.asks import BECAUSE, is_edit_under_four_eyes
from midrun.core.folds.calls import call_of
from midrun.core.sentences.phrases import (
    RUN,
    Sentences,
    Told,
    arguments,
    because,
    call_named,
    caller,
    child_named,
    person,
    quoted,
    spoken,
    until,
)
from midrun.core.state import Ask, State

_ARTICLES: Final = {"operator": "an"}
_CLOSED: Final = {
    **BECAUSE,
    "evidence": "what came of it is known",
    "elsewhere": "it was decided on the child",
}


def _ask_opened(entry: AskOpened, _: State, after: State) -> Told:
    call = call_of(after, entry.call)
    named = call_named(after, entry.call)
    asker = caller(call, after) if entry.ask_kind == "question" else RUN
    if entry.ask_kind == "child":
        asker = child_named(after, call)
    terms = _terms(entry, after)
    if entry.ask_kind == "approval":
        wanted = f"{named}{arguments(call.use.args)}"
        return Told(who=asker, what=f"asks {entry.ask}: may {wanted} be called?{terms}")
    if entry.ask_kind == "unsure":
        return Told(who=asker, what=f"asks {entry.ask}: did {named} take effect?{terms}")
    question = quoted(entry.question) if entry.question.strip() else "how does it go on?"
    return Told(who=asker, what=f"asks {entry.ask}: {question}{terms}")


def _terms(entry: AskOpened, state: State) -> str:
    """Return who may decide where not everybody may, and how long there is for it."""
    name = entry.audience.removeprefix("user:")
    who = name if name != entry.audience or not name else f"{_ARTICLES.get(name, 'a')} {name}"
    terms = [f"{who} decides"] if who else []
    if entry.four_eyes:
        excluded = " or ".join(_asked(state, entry.ask).excluded)
        starter = "the one who started the run"
        terms = [f"{who or 'any person'} may decide, but not {excluded or starter}"]
    if not entry.blocking:
        terms.append("the agent goes on meanwhile")
    if entry.expires is not None:
        unanswered = "a no" if entry.ask_kind == "approval" else "dropped"
        terms.append(f"after {until(state, entry.expires)} it is {unanswered}")
    return f" ({'; '.join(terms)})" if terms else ""


def _ask_answered(entry: AskAnswered, before: State, _: State) -> Told:
    ask = _asked(before, entry.ask)
    decision = entry.decision
    about = _about(before, ask)
    who = person(entry.by)
    if is_edit_under_four_eyes(ask, decision):
        what = f"changed the arguments of {about}{arguments(decision.value)}"
        then = "; another person has to approve them"
        return Told(who=who, what=f"{what} in {entry.ask}{then}{because(entry.reason)}")
    if decision.choice == "approve":
        other = f", with other arguments{arguments(decision.value)}" if decision.value else ""
        return Told(
            who=who, what=f"approved {entry.ask}, {about}{other}{because(entry.reason)}"
        )
    if decision.choice == "decline":
        return Told(who=who, what=f"declined {entry.ask}, {about}{because(decision.reason)}")
    said = spoken(decision.value)
    return Told(who=who, what=f"answered {entry.ask}, {about}: {said}{because(entry.reason)}")


def describe_closure(ask: Ask) -> str:
    """Return how an ask was closed, as the predicate of its decider: "answered “no”"."""
    decision = ask.decision
    if decision is None:
        return f"it was closed: {_CLOSED.get(ask.closed, 'its time was up')}"
    if decision.choice == "approve":
        other = f" with other arguments{arguments(decision.value)}" if decision.value else ""
        return f"approved it{other}"
    if decision.choice == "decline":
        return f"declined it{because(decision.reason)}"
    return f"answered {spoken(decision.value)}"


def _about(state: State, ask: Ask) -> str:
    """Return what an ask is about, for whoever does not have its first line at hand."""
    if ask.ask_kind == "child":
        return f"of {child_named(state, call_of(state, ask.call))}"
    if ask.ask_kind == "question":
        return quoted(ask.question) if ask.question.strip() else call_named(state, ask.call)
    named = call_named(state, ask.call)
    return f"whether {named} took effect" if ask.ask_kind == "unsure" else named


def _ask_closed(entry: AskClosed, before: State, _: State) -> Told:
    about = _about(before, _asked(before, entry.ask))
    what = f"closed {entry.ask}, {about}, without a decision: {_CLOSED[entry.why]}"
    return Told(who=RUN, what=what)


def _asked(state: State, ask_: str) -> Ask:
    ask = state.ask(ask_)
    assert ask is not None, "the fold has found it"
    return ask


ASK_TEXTS: Sentences = {
    AskOpened: _ask_opened,
    AskAnswered: _ask_answered,
    AskClosed: _ask_closed,
}
