"""Asks: where a run needs a person."""

from typing import Literal

from midrun.core.facts.fact import Asked, Fact
from midrun.core.ids import AskId, CallId, Micros
from midrun.core.values import AskKind, Decision, Json

Unanswered = Literal["superseded", "cancelled", "expired", "evidence", "elsewhere"]
"""Why nobody decides an ask any more."""


class AskOpened(Fact, kw_only=True):
    """A person is needed: a question, an approval, an unsure call, or a child's ask."""

    ask: AskId
    ask_kind: AskKind
    call: CallId
    question: str = ""
    data: Json = None
    blocking: bool = True
    of: AskKind | None = None  # of a child's: what kind of ask it is there
    audience: str = ""
    four_eyes: bool = False
    excluded: tuple[str, ...] = ()  # of a child's: people who may not decide it there
    args_hash: str = ""
    expires: Micros | None = None
    # With it the call is made again once there is a decision, and given both. Without it the
    # answer is the result of the call.
    continuation: Json = None


class AskAnswered(Asked, kw_only=True):
    """Somebody decided. The first decision counts, and it is this one."""

    ask: AskId
    decision: Decision
    args_hash: str = ""


class AskClosed(Asked, kw_only=True):
    """The ask no longer needs anyone; nobody decided it."""

    ask: AskId
    why: Unanswered
