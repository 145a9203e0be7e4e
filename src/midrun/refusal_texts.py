"""The texts of refused controls: the reason of a refusal as a part of a sentence.

`errors.ControlRefused` puts them together: "Cannot pause run_1: it is halted (is_halted)."
The names of the reasons are those of the transition table (`core.transitions`).
"""

from typing import Final

_REFUSAL_TEXTS: Final = {
    "already_answered": "the ask is already decided",
    "already_attempted": "the call was already made, so its arguments cannot be edited",
    "already_cancelled": "it is already cancelled",
    "already_completed": "it is already completed",
    "answer_needed": "an ask must be answered first",
    "ask_closed": "the ask is closed",
    "bad_arguments": "the arguments do not fit",
    "cap_not_raised": "a new cap must be higher than the old one",
    "cap_reached": "it has reached a cap",
    "empty_text": "the text is empty",
    "files_refused": "its files are beyond a limit",
    "frame_not_on_top": "another held topic is on top",
    "hidden_argument": "an argument is hidden from the approver",
    "no_files_here": "the answer to this ask cannot have files",
    "no_residue": "it has no residue",
    "no_such_ask": "there is no such ask",
    "no_such_cap": "it has no such cap",
    "no_such_frame": "there is no such held topic",
    "not_a_boundary": "there is no step boundary to fork from",
    "not_a_question": "the ask is not a question",
    "not_allowed": "the sender may not decide this",
    "not_an_approval": "the ask is not an approval",
    "not_an_outcome": "the answer must be yes, no or unknown",
    "not_halted": "it is not halted",
    "not_paused": "it is not paused",
    "not_pending": "there is nothing to withdraw at that seq",
    "not_taken_over": "the sender has not taken it over",
    "request_id_reused": "the request id was used for another request",
    "several_asks_open": "several asks are open, and none was named",
    "stale_revision": "it has changed since it was read",
    "taken_over": "another person has taken it over",
    "unknown_agent": "its agent is not registered in this process",
}
"""Reason of a refusal → its text. `is_<phase>` and reasons without a text are put into words
by rule."""

_REFUSAL_TEXTS_WITH_BY: Final = {
    "cap_reached": "it has reached its cap on {by}",
    "not_allowed": "only {by} may decide this",
    "frame_not_on_top": "the held topic {by} is on top",
    "taken_over": "{by} has taken it over",
    "not_taken_over": "{by} has taken it over",
}
"""Reason of a refusal → its text, where `by` is not the person who was first."""

VERB_BY_CONTROL: Final = {
    "accept_residue": "accept the residue of",
    "answer": "answer a question of",
    "approve": "approve a call of",
    "decline": "decline a call of",
    "drop_frame": "drop a topic of",
    "raise_cap": "raise a cap of",
    "resume_frame": "return to a topic of",
    "retry_undo": "retry the undos of",
    "say": "send a message to",
    "use_tool": "use a tool of",
    "withdraw": "withdraw a request to",
    "write": "write a message in",
}
"""Control → its verb in "Cannot … run_1"; the other controls are verbs of a run themselves."""

LOST_ASK_REASONS: Final = frozenset({"already_answered", "ask_closed"})
"""Reasons of a refusal because the ask was closed before, by a decision or by its timeout."""


def explain_refusal(reason: str, by: str, seq: int, detail: str) -> str:
    """Return the text of `reason`, with the person and the entry that came first.

    `detail` of a lost ask is the predicate of the person who decided ("approved it"), or a
    clause of its own ("it was closed: …").
    """
    first = f" by {by} at seq {seq}" if by else ""
    if reason.startswith("is_"):
        phase = reason.removeprefix("is_")
        if first and phase in {"cancelled", "halted", "paused"}:
            return f"it was {phase}{first}"
        return f"it is {phase}, requested{first}" if first else f"it is {phase}"
    if by and reason in _REFUSAL_TEXTS_WITH_BY:
        text, first = _REFUSAL_TEXTS_WITH_BY[reason].format(by=by), ""
    else:
        text = _REFUSAL_TEXTS.get(reason) or reason.replace("_", " ")
    if reason in LOST_ASK_REASONS and by and detail and not detail.startswith("it "):
        return f"{text}: {by} {detail} at seq {seq}"
    if detail and not detail.endswith("."):
        text = f"{text}: {detail}"
    return f"{text}; {by} was first at seq {seq}" if first else text
