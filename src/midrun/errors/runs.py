"""What can go wrong with a run, its agent, its model or its journal."""

from typing import Final

from midrun.errors.root import MidrunError

_OTHERWISE: Final = {
    "cap_reached": ", at its cap: {by}",
    "not_allowed": ", and that is for {by}",
    "frame_not_on_top": ", and {by} is on top",
    "taken_over": ", and {by} has taken it over",
}
"""Reason of a refusal → what its `by` says, where it is not who came first."""

LOST_ASK: Final = frozenset({"already_answered", "ask_closed"})
"""Reasons of a refusal that say: another decision, or the end of its time, closed the ask."""


class ControlRefused(MidrunError):
    """The run stands where this control makes no sense; nothing was applied.

    `reason` is one of the names of the transition table, `allowed` says what can be asked
    instead, `by` and `seq` say who came first where somebody did.
    """

    code = "control_refused"

    def __init__(
        self,
        run: str,
        control: str,
        reason: str,
        phase: str,
        allowed: tuple[str, ...] = (),
        by: str = "",
        seq: int = 0,
        detail: str = "",
    ) -> None:
        super().__init__(run, control, reason, phase, allowed, by, seq, detail)
        self.run = run
        self.control = control
        self.reason = reason
        self.phase = phase
        self.allowed = allowed or ("fork",)  # a run can be forked in every phase
        self.by = by
        self.seq = seq
        self.detail = detail

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        first = _OTHERWISE.get(self.reason, ", first was {by} at seq {seq}") if self.by else ""
        first = first.format(by=self.by, seq=self.seq)
        instead = f"possible now: {', '.join(self.allowed)}"
        return (
            f"run {self.run}: {self.control} refused, {self.reason}{detail} "
            f"(the run is {self.phase}{first}); {instead}"
        )


class RunOver(MidrunError):
    """The run has ended, so that what somebody waits for will never be."""

    code = "run_over"

    def __init__(self, run: str, phase: str, wanted: tuple[str, ...]) -> None:
        super().__init__(run, phase, wanted)
        self.run = run
        self.phase = phase
        self.wanted = wanted

    def __str__(self) -> str:
        never = " or ".join(self.wanted)
        return f"run {self.run} is {self.phase}: it will never be {never}; look at its report"


class NotJson(MidrunError):
    """A value that cannot be stored as JSON and come back the same. `path` says where it is."""

    code = "not_json"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; pass plain JSON data"


class TooLarge(MidrunError):
    """A value beyond its bound; it was refused before it could fill memory or disk."""

    code = "too_large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(path, size, limit)
        self.path = path
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.path}: at least {self.size} bytes, the limit is {self.limit}; "
            "store the data elsewhere and pass a reference"
        )


class CheckpointRefused(MidrunError):
    """A checkpoint that must not be resumed; `reason` says why.

    `checkpoint_invalid`, `checkpoint_unsigned`, `stale_checkpoint`, `checkpoint_expired` or
    `agent_mismatch`.
    """

    code = "checkpoint_refused"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        advice = "take a new one from the run"
        if self.reason == "agent_mismatch":
            advice = "resume it with the agent that it is of, as it was then"
        if self.reason == "checkpoint_unsigned":
            advice = (
                "sign it: open both Midruns with the same key (key=…, MIDRUN_KEY); or allow "
                "unsigned ones: app(…, unsigned_checkpoints=True), "
                "midrun serve --unsigned-checkpoints"
            )
        return f"checkpoint refused: {self.reason}{detail}; {advice}"


class ModelFailed(MidrunError):
    """A provider said no, or broke off. A `transient` failure is worth another attempt.

    `reason` is a stable word: rate_limited, overloaded, timeout, connection, broken_stream,
    bad_request, unauthorized, context_too_long, refused, server_error. `retry_after` is how
    many seconds the provider asked us to wait, if it did.
    """

    code = "model_failed"

    def __init__(
        self,
        model: str,
        reason: str,
        detail: str = "",
        transient: bool = False,  # noqa: FBT001, FBT002 - all fields are in args, so it pickles
        retry_after: float | None = None,
    ) -> None:
        super().__init__(model, reason, detail, transient, retry_after)
        self.model = model
        self.reason = reason
        self.detail = detail
        self.transient = transient
        self.retry_after = retry_after

    def __str__(self) -> str:
        # Whether it is made again is decided elsewhere: attempts are bounded, and so are waits.
        advice = "this may pass" if self.transient else "see the provider's message"
        return f"model {self.model}: {self.reason}: {self.detail or 'no detail'}; {advice}"


class OutcomeUnknown(MidrunError):
    """Raised by a tool when nobody can say whether it took effect: an answer that got lost.

    The call is then *unknown*: made again only if that is safe, settled by its `check`, or put
    to a person. Any other error says that the call failed.
    """

    code = "outcome_unknown"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.problem}; the call may have taken effect"


class ToolsUnreachable(MidrunError):
    """The server that a tool lives in cannot be reached; the call was not made."""

    code = "tools_unreachable"

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(server, problem)
        self.server = server
        self.problem = problem

    def __str__(self) -> str:
        return f"server {self.server}: {self.problem}"


class EngineLost(MidrunError):
    """Tasks of an open `Midrun` were cancelled by others, so that nothing is driven any more.

    The block that it was open around is left. No run is lost: whoever opens the store next goes
    on with them.
    """

    code = "engine_lost"

    def __str__(self) -> str:
        return (
            "midrun's tasks were cancelled by others (by code that cancels "
            "asyncio.all_tasks()?), and nothing is driven here any more; the runs go on where "
            "their store is opened again"
        )


class Misconfigured(MidrunError, ValueError):
    """Something cannot work as it is declared. `where` names it, `problem` says what to do."""

    code = "misconfigured"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class JournalCorrupt(MidrunError):
    """The stored line at `seq` is not what was written there. This run is not driven any more.

    Other runs go on. Compare with an export or a backup; `verify` lists everything it finds.
    """

    code = "journal_corrupt"

    def __init__(self, run: str, seq: int, problem: str) -> None:
        super().__init__(run, seq, problem)
        self.run = run
        self.seq = seq
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"run {self.run}: journal is corrupt at seq {self.seq}: {self.problem}; "
            "restore it from a backup, the run is left alone until then"
        )


class JournalTooNew(MidrunError):
    """The journal holds a kind of entry that this version does not know: it must not write."""

    code = "journal_too_new"

    def __init__(self, run: str, seq: int, kind: str) -> None:
        super().__init__(run, seq, kind)
        self.run = run
        self.seq = seq
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"run {self.run}: seq {self.seq} holds {self.kind}, written by a newer midrun; "
            "upgrade this process to drive the run"
        )
