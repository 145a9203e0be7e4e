"""Files and artifacts of a run: the files that an entry names, and the bounds on them.

An entry holds a `FileRef`; the bytes lie beside the journal, stored once under their hash in
the transaction that appends the entry. So a journal stays short, and no entry names a file that
the store does not have.

The bounds (`FileLimits`) belong to the run: they are in its first entry, and every process
decides by the same ones. Files of a history were counted in the run that they came from.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from midrun.core.entries import (
    ArtifactShown,
    AskAnswered,
    AskOpened,
    CallDone,
    Entry,
    LateResult,
    MessageReceived,
    RedirectRequested,
    RunResumed,
    RunStarted,
)
from midrun.core.state import State
from midrun.core.values import FileLimits, FileRef, Message

FILE_HASH_PATTERN: Final = re.compile(r"[0-9a-f]{64}")
"""The form of the hash of a file: a SHA-256 in hex."""

_MIB: Final = 1024 * 1024


def iter_file_refs(entry: Entry) -> Iterator[FileRef]:
    """Yield every file that `entry` names, those of an inherited history included."""
    match entry:
        case RunStarted():
            yield from entry.files
            for message in entry.history:
                yield from iter_message_files(message)
        case CallDone() | LateResult() | MessageReceived() | RedirectRequested() | RunResumed():
            yield from entry.files
        case AskOpened() | AskAnswered():
            yield from entry.files
        case ArtifactShown():
            yield entry.file
        case _:
            return


def may_name_files(entries: Iterable[Entry]) -> bool:
    """Tell whether `iter_file_refs` may yield a file for one of `entries`; False is certain."""
    for entry in entries:
        if getattr(entry, "files", ()) or isinstance(entry, RunStarted | ArtifactShown):
            return True
    return False


def iter_message_files(message: Message) -> Iterator[FileRef]:
    """Yield the files of a message, and those that its calls returned."""
    yield from message.files
    for call in message.made:
        yield from call.files


def find_file_ref(state: State, file_hash: str) -> FileRef | None:
    """Return the newest reference of the run to the file of this hash; None if it has none."""
    shown = (artifact.file for artifact in reversed(state.artifacts))
    waiting = (file for text in state.pending for file in text.files)
    messages = state.messages
    said = (
        file
        for number in reversed(range(len(messages)))
        for file in iter_message_files(messages[number])
    )
    calls = state.calls
    made = (file for number in reversed(range(len(calls))) for file in calls[number].files)
    asked = (file for ask in state.asks for file in (*ask.files, *ask.answer_files))
    every = chain(shown, waiting, said, made, asked)
    found = (file for file in every if file.hash == file_hash)
    return next(found, None) or next(
        (f for f in iter_file_refs(state.run_started) if f.hash == file_hash), None
    )


def get_file_limits(started: RunStarted) -> FileLimits:
    """Return the bounds on the files of a run."""
    return started.file_limits or FileLimits()


def find_file_problem(
    files: Sequence[FileRef], limits: FileLimits, *, count: int = 0, size: int = 0
) -> str:
    """Say which bound `files` would exceed; "" if they fit.

    The run has `count` files of `size` bytes already.
    """
    for file in files:
        if file.size > limits.file_bytes:
            return (
                f"Cannot take the file “{file.name}”: it has {file.size} bytes, and the limit "
                f"is {limits.file_bytes} per file. Send a smaller one, or a link."
            )
    if files and count + len(files) > limits.run_files:
        return (
            f"Cannot take the file “{files[-1].name}”: the run would have "
            f"{count + len(files)} files, and the limit is {limits.run_files}. "
            "Send fewer files, or start another run."
        )
    total = size + sum(file.size for file in files)
    if files and total > limits.run_bytes:
        return (
            f"Cannot take the file “{files[-1].name}”: the files of the run would have "
            f"{total / _MIB:.1f} MiB, and the limit is {limits.run_bytes / _MIB:.1f} MiB. "
            "Send smaller files, or start another run."
        )
    return ""


def find_run_file_problem(state: State, files: Sequence[FileRef]) -> str:
    """Say which bound of the run `files` would exceed; "" if they fit."""
    if not files:
        return ""
    limits = get_file_limits(state.run_started)
    return find_file_problem(files, limits, count=state.file_count, size=state.file_bytes)
