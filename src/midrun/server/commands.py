"""Commands: the controls that a run has received, with their outcome, read from the journal.

*Accepted* means that the journal has the control, *applied* that it took effect. A text that
could not be applied is *returned*. `read_commands` walks the journal once: an entry first
settles earlier commands, and then may be a command itself.
"""

from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace

from midrun.core import entries as e
from midrun.core.entries import Entry, Record, RequestEntry
from midrun.core.ids import Micros, Seq
from midrun.core.values import Value

CommandStatus = Literal["accepted", "applied", "withdrawn", "superseded", "returned", "failed"]

# Requests that take effect with a later entry; all others are applied as they are recorded.
_DEFERRED_REQUESTS: Final = (
    e.PauseRequested,
    e.RedirectRequested,
    e.MessageReceived,
    e.CancelRequested,
)

# The entries that settle an open pause request, and the status that they give it.
_PAUSE_ENDS: Final[dict[type[Entry], CommandStatus]] = {
    e.RunPaused: "applied",
    e.PauseWithdrawn: "withdrawn",
    e.CancelRequested: "superseded",
    e.RunCompleted: "superseded",
    e.RunFailed: "superseded",
    e.RunWaiting: "superseded",
}


class Command(Value, kw_only=True):
    """A control that the run has received.

    `settled` is the seq of the entry that settled it; 0 while it is open. `text` is the text of
    the control; with the status `returned` it was never applied.
    """

    id: str
    seq: Seq
    kind: str
    status: CommandStatus
    by: str
    reason: str
    at: Micros
    text: str = ""
    settled: Seq = Seq(0)
    problem: str = ""


def read_commands(records: Iterable[Record]) -> tuple[Command, ...]:
    """Return the commands in a journal, oldest first."""
    found: dict[Seq, Command] = {}
    for record in records:
        for seq, status in _find_settled(record, found):
            if found[seq].status == "accepted":  # the first outcome counts
                found[seq] = replace(found[seq], status=status, settled=record.seq)
        command = _make_command(record)
        if command is not None and not _carries_out_last(command, found):
            found[command.seq] = command
    return tuple(found.values())


def _find_settled(record: Record, found: dict[Seq, Command]) -> list[tuple[Seq, CommandStatus]]:
    """Return the commands that `record` settles, each with its new status."""
    entry = record.entry
    settled: list[tuple[Seq, CommandStatus]] = []
    match entry:
        case e.RedirectApplied(redirect=seq) | e.MessageTaken(message=seq):
            settled.append((seq, "applied"))
        case e.FramePushed(message=seq):
            settled.append((seq, "applied"))
        case e.RedirectClosed(redirect=seq, why=why) | e.MessageClosed(message=seq, why=why):
            settled.append((seq, why))
        case e.RunCancelled():
            settled += [(seq, "applied") for seq in _find_by_kind(found, "cancel")]
        case _:
            pass
    # These entries name no request: they settle every open pause.
    if type(entry) in _PAUSE_ENDS:
        settled += [(seq, _PAUSE_ENDS[type(entry)]) for seq in _find_by_kind(found, "pause")]
    return [(seq, status) for seq, status in settled if seq in found]


def _find_by_kind(found: dict[Seq, Command], kind: str) -> list[Seq]:
    return [seq for seq, command in found.items() if command.kind == kind]


_COMMAND_KINDS: Final[dict[type[Entry], str]] = {
    e.PauseRequested: "pause",
    e.PauseWithdrawn: "resume",
    e.RunResumed: "resume",
    e.CapRaised: "raise_cap",
    e.RedirectRequested: "redirect",
    e.MessageReceived: "say",
    e.CancelRequested: "cancel",
    e.AskAnswered: "answer",
    e.UndoRetried: "retry_undo",
    e.ResidueAccepted: "accept_residue",
    e.TakenOver: "take_over",
    e.PersonWrote: "write",
    e.ToolUseRequested: "use_tool",
    e.HandedBack: "hand_back",
    e.RequestNoted: "",
}


def _make_command(record: Record) -> Command | None:
    entry = record.entry
    # An entry without an actor was not requested: the system paused or resumed the run itself.
    if not isinstance(entry, RequestEntry) or not entry.by or type(entry) not in _COMMAND_KINDS:
        return None
    status: CommandStatus = "accepted" if isinstance(entry, _DEFERRED_REQUESTS) else "applied"
    problem = ""
    # `RequestNoted` records a request that changed nothing: it was refused, or already so.
    if isinstance(entry, e.RequestNoted):
        status, problem = ("failed" if entry.refused else "applied"), entry.verdict
    return Command(
        id=f"cmd_{record.seq}",
        seq=record.seq,
        kind=_COMMAND_KINDS[type(entry)],
        status=status,
        by=entry.by,
        reason=entry.reason,
        at=record.at,
        text=getattr(entry, "text", "") or getattr(entry, "instruction", ""),
        settled=record.seq if status != "accepted" else Seq(0),
        problem=problem,
    )


def _carries_out_last(command: Command, found: dict[Seq, Command]) -> bool:
    """Return whether an entry only carries out the last command, in the same append.

    A redirect of a paused run, and a hand-back, are followed by a resumption of the run. The
    entries of one append have the same time and actor.
    """
    last = next(reversed(found.values()), None)
    if last is None or (last.at, last.by) != (command.at, command.by):
        return False
    return command.kind == "resume" and last.kind in {"redirect", "hand_back"}
