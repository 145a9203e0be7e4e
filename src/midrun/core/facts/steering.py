"""What people do to a run: pause, resume, redirect, cancel, halt; and what came of it."""

from typing import Literal

from midrun.core.facts.fact import Asked, Fact
from midrun.core.ids import Micros, Seq
from midrun.core.values import PauseReason, Phase, Residue, UndoSet, When


class PauseRequested(Asked, kw_only=True):
    """Somebody wants the run to stop at its next boundary, or now."""

    now: bool = False
    why: PauseReason = "user"
    until: Micros | None = None  # a held pause lets go by itself


class PauseWithdrawn(Asked, kw_only=True):
    """The pause was taken back before it took hold; the run goes on."""


class RunPaused(Fact, kw_only=True):
    """Nothing is in flight, nothing is spent, the lease is given back."""

    why: PauseReason = "user"


class RunResumed(Asked, kw_only=True):
    """The run may go on; a driver will take it."""

    instruction: str = ""
    minus: str = ""  # what would have come next ...
    plus: str = ""  # ... and what comes instead: the one-line difference


class CapRaised(Asked, kw_only=True):
    """A bound of the stop condition was moved."""

    caps: dict[str, int]


class CapReached(Fact, kw_only=True):
    """A stop condition was met; the run pauses and asks."""

    stop: str
    cap: str = ""  # the bound to raise; empty if the condition has none


class EndReached(Fact, kw_only=True):
    """A stop condition was met that says: the run is done."""

    stop: str


class VerdictGiven(Fact, kw_only=True):
    """A custom stop condition was evaluated at a boundary."""

    name: str
    met: bool


class RedirectRequested(Asked, kw_only=True):
    """A new instruction waits for its boundary."""

    text: str
    when: When = "next_step"


class RedirectApplied(Fact, kw_only=True):
    """The instruction that waited since `redirect` reached the agent."""

    redirect: Seq
    minus: str = ""
    plus: str = ""


class RedirectClosed(Asked, kw_only=True):
    """The instruction was withdrawn, or came back because the run ended first."""

    redirect: Seq
    why: Literal["withdrawn", "returned"]
    text: str = ""


class CancelRequested(Asked, kw_only=True):
    """From here on no model or tool call of this run is started, by anyone."""

    undo: UndoSet = "in_flight"


class RunCancelled(Fact, kw_only=True):
    """Everything is stopped; what was in the undo set is undone or listed."""

    residue: tuple[Residue, ...] = ()
    partial: str = ""


class UndoRetried(Asked, kw_only=True):
    """An operator wants the residue tried again."""


class ResidueAccepted(Asked, kw_only=True):
    """An operator has seen what could not be undone and takes it as it is."""


class RunHalted(Asked, kw_only=True):
    """An operator's latch holds the run; lifted, it goes on where `then` says."""

    then: Phase
    scope: str = "run"


class RunLifted(Asked, kw_only=True):
    """The latch no longer holds the run."""


class RequestNoted(Asked, kw_only=True):
    """A request changed nothing; what it was told is kept, so that a repeat hears the same."""

    verdict: str
    refused: bool = False
    since: Seq = Seq(0)
    since_by: str = ""
