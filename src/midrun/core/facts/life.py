"""The life of a run: it starts, is driven, waits, wakes and ends."""

from midrun.core.facts.fact import Asked, Fact
from midrun.core.ids import Epoch, RunId
from midrun.core.stops import Stop
from midrun.core.values import Item, Message, Origin


class RunStarted(Asked, kw_only=True):
    """A run exists and waits for a driver."""

    agent: str
    task: str
    agent_print: str = ""
    thread: str = ""
    labels: tuple[str, ...] = ()
    stop: Stop | None = None
    hosted: bool = False
    history: tuple[Message, ...] = ()
    plan: tuple[Item, ...] = ()
    frame_depth: int = 4
    frame_ttl: int = 86_400_000_000
    undo_attempts: int = 5
    model_attempts: int = 6
    window: int = 0  # condense when a prompt grew past this many tokens; 0 is never
    parent: Origin | None = None
    steered_by: tuple[str, ...] = ()  # people who led to it, but are not in `history`
    forked: Origin | None = None
    trace: str = ""  # the W3C traceparent that its spans belong to


class RunImported(Asked, kw_only=True):
    """Every entry before this one was written elsewhere and came with a checkpoint.

    Only `Store.adopt` appends it, in the transaction that stores those entries.
    """

    checkpoint: RunId  # the run that the checkpoint is of: this one, or its parent
    head: str  # the hash of the entry before this one, as checkpoints have it: without a key
    kid: str = ""  # the key that signed the checkpoint and was checked; empty: none was


class LeaseTaken(Fact, kw_only=True):
    """A driver holds the run. Older epochs are fenced off from here on."""

    epoch: Epoch
    holder: str = ""
    agent_print: str = ""  # of the agent that drives from here on, where it is another version


class StoodDown(Fact, kw_only=True):
    """The driver gave the lease back without anyone having asked the run to stop."""

    why: str = ""


class RunWaiting(Fact, kw_only=True):
    """Nothing is in flight and a person is needed."""


class RunWoken(Fact, kw_only=True):
    """What the run waited for has come; it can be driven again."""

    why: str = ""


class RunCompleted(Fact, kw_only=True):
    """The run reached its end."""

    output: str = ""


class RunFailed(Fact, kw_only=True):
    """The run stopped at its last boundary because of an error; it can be resumed."""

    error: str
    code: str = ""
