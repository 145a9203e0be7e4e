"""Messages between worker, zygote and children: JSON in frames, over Unix sockets.

The worker and the zygote share one socket for the life of the zygote. Each call has a socket of
its own; the child's end of it travels with `StartProcess`, as a descriptor. A frame is the
length of its body in four bytes, and the body. When a process is gone, its sockets close, and
the other side reads the end of the stream.

The sockets of a frozen worker, however, stay open. So the moment at which its lease lapses is
kept in a page of memory that the zygote reads: see `Deadline`.
"""

import mmap
import os
import struct
from collections.abc import Coroutine
from inspect import isasyncgen, isawaitable, isgenerator
from tempfile import TemporaryFile
from typing import Final, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct

from midrun.agents.builtin_tools import PauseHere
from midrun.agents.file import File
from midrun.core.values import Json
from midrun.ports import platform

# Tasks: the function that a child runs, and its outcome.

FunctionForm: TypeAlias = Literal["tool", "hook"]
"""A tool's own function; or its undo, release or check."""


class CallFacts(Struct, frozen=True, kw_only=True):
    """The data from which the child builds the `Call` argument of a tool or hook."""

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = ""


class FunctionTask(Struct, frozen=True, kw_only=True):
    """One function to run in a child.

    `target` is its name, "module:qualname". For a tool, `args` are the arguments as the model
    wrote them, and the child parses them. For a hook, `args` is the list of the arguments that
    follow the `Call`: [args] or [args, result].

    `context` is the name of the function that makes `call.context`: "" if no other process can
    import it, None if there is none.
    """

    target: str
    form: FunctionForm
    args: Json
    call: CallFacts
    context: str | None = None


class SentFile(Struct, frozen=True):
    """A file that a function returned or shows; JSON has its bytes as base64."""

    name: str
    media_type: str
    data: bytes

    @classmethod
    def from_file(cls, file: File) -> Self:
        """Return the message for `file`."""
        return cls(file.name, file.media_type, file.data)

    def to_file(self) -> File:
        """Return the file."""
        return File(self.name, self.media_type, self.data)


class Returned(Struct, frozen=True, kw_only=True, tag="returned"):
    """The function returned, so its effect has happened.

    If the result is not JSON, `problem` names the reason and `shown` describes the result.
    """

    value: Json = None
    problem: str = ""
    shown: str = ""
    files: tuple[SentFile, ...] = ()


class NotDone(Struct, frozen=True, kw_only=True, tag="not_done"):
    """A `check` hook returned NOT_DONE: the checked call took no effect."""


class Raised(Struct, frozen=True, kw_only=True, tag="raised"):
    """The function raised an exception of type `kind`, or could not be found or started.

    `not_found` says that its module cannot be imported, or lacks the function. That is an error
    in the program: other arguments do not help.
    """

    kind: str
    message: str
    not_found: bool = False


class QuestionAsked(Struct, frozen=True, kw_only=True, tag="asked"):
    """The function called `pause_here` to ask a person."""

    question: str
    data: dict[str, Json]
    continuation: Json = None
    files: tuple[SentFile, ...] = ()

    @classmethod
    def from_pause(cls, pause: PauseHere) -> Self:
        """Return the question that `pause` asks."""
        return cls(
            question=pause.question,
            data=pause.data,
            continuation=pause.continuation,
            files=tuple(map(SentFile.from_file, pause.files)),
        )


class Died(Struct, frozen=True, kw_only=True):
    """The process ended without an answer: by `signal`, or with `exit_code`.

    If it was never `started`, it had no effect. Otherwise that is unknown. Without `is_gone` it
    was killed, but its end was not seen: it may still act.
    """

    signal: int = 0
    exit_code: int = 0
    started: bool = True
    is_gone: bool = True
    detail: str = ""


def find_unrun_code(value: object, form: FunctionForm) -> Raised | None:
    """Return an error if `value` is code that was never run, and will not be.

    That is a coroutine of a blocking function. For a hook, whose result is not used, it is also
    a generator.
    """
    if isinstance(value, Coroutine):
        # A blocking tool that returns a coroutine was meant to be async. Its body has not run.
        value.close()  # or Python warns that it was never awaited
    if isawaitable(value):
        return Raised(kind="TypeError", message="it returned a coroutine; make it an async def")
    if form == "hook" and (isgenerator(value) or isasyncgen(value)):
        return Raised(kind="TypeError", message="it returned a generator; drop its yield")
    return None


ChildAnswer: TypeAlias = Returned | NotDone | Raised | QuestionAsked
"""The outcomes that the child itself reports."""

FunctionOutcome: TypeAlias = ChildAnswer | Died
"""All outcomes; the worker finds out about `Died`."""

RESULT_MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of JSON that a result may have; a larger one is replaced by a description."""

FRAME_MAX_BYTES: Final = 8 * RESULT_MAX_BYTES
"""Bytes. A header that announces more was not written by Midrun."""

TARGET_MAX_CHARS: Final = 1000
"""Characters in a target. Frames to the zygote stay short, so that one send takes each."""

FRAME_HEADER: Final = struct.Struct("!I")
"""The header of a frame: the length of its body."""


# Messages between the worker and its zygote. The zygote reports one `ProcessRefused` or one
# `ProcessStarted` for each `StartProcess`, and later one `ProcessGone` for each process that
# it started. If it dies itself, the worker reads the end of the stream instead, and every call
# without a report counts as `Died`.


class StartProcess(Struct, frozen=True, tag="start"):
    """To the zygote: fork a child for this call; the child's socket end comes with it."""

    call: int
    target: str


class SignalProcess(Struct, frozen=True, tag="kill"):
    """To the zygote: send this signal to the call's process group."""

    call: int
    signal: int


class ProcessRefused(Struct, frozen=True, tag="refused"):
    """From the zygote: the call was not started, and will not be."""

    call: int
    kind: str
    message: str
    not_found: bool = False  # as in `Raised`


class ProcessStarted(Struct, frozen=True, tag="started"):
    """From the zygote: the child `pid` was forked and leads the call's process group."""

    call: int
    pid: int


class ProcessGone(Struct, frozen=True, tag="gone"):
    """From the zygote: the child was reaped, and the rest of its process group killed.

    `code` is the exit code; it is negative for a signal.
    """

    call: int
    code: int


# Messages of a child, on the socket of its call. It sends any number of requests, each of
# which it waits for, and one answer at the end.


class SaveRequest(Struct, frozen=True, tag="save"):
    """From a child: save this progress. The child waits for an empty frame."""

    progress: Json


class NoteRequest(Struct, frozen=True, tag="note"):
    """From a child: show this line. The child waits for an empty frame."""

    text: str


class ShowRequest(Struct, frozen=True, tag="show"):
    """From a child: show this file. The child waits for a frame: empty, or with a problem."""

    file: SentFile


ChildRequest: TypeAlias = SaveRequest | NoteRequest | ShowRequest
ZygoteRequest: TypeAlias = StartProcess | SignalProcess
ZygoteReport: TypeAlias = ProcessRefused | ProcessStarted | ProcessGone
ChildMessage: TypeAlias = ChildRequest | ChildAnswer

DONE_FRAME: Final = FRAME_HEADER.pack(0)
"""The empty frame: the request of the child is done."""

_REQUEST_DECODER: Final[msgspec.json.Decoder[ZygoteRequest]] = msgspec.json.Decoder(
    ZygoteRequest
)
_REPORT_DECODER: Final[msgspec.json.Decoder[ZygoteReport]] = msgspec.json.Decoder(ZygoteReport)
_MESSAGE_DECODER: Final[msgspec.json.Decoder[ChildMessage]] = msgspec.json.Decoder(ChildMessage)
_TASK_DECODER: Final = msgspec.json.Decoder(FunctionTask)


def encode_problem(problem: str) -> bytes:
    """Encode the reply to a request of a child that was refused."""
    body = problem.encode("utf-8", "replace")
    return FRAME_HEADER.pack(len(body)) + body


def encode_frame(message: ZygoteRequest | ZygoteReport | ChildMessage | FunctionTask) -> bytes:
    """Encode a message as a frame."""
    body = msgspec.json.encode(message)
    return FRAME_HEADER.pack(len(body)) + body


def decode_request(body: bytes) -> ZygoteRequest:
    """Decode a request of the worker to the zygote."""
    return _REQUEST_DECODER.decode(body)


def decode_report(body: bytes) -> ZygoteReport:
    """Decode a report of the zygote."""
    return _REPORT_DECODER.decode(body)


def decode_message(body: bytes) -> ChildMessage:
    """Decode a message of a child.

    A tool may write to any file descriptor, this socket included, so anything can arrive here.

    Raises:
        GarbledFrame: the bytes are no message.
    """
    try:
        return _MESSAGE_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GarbledFrame(str(error)) from None


def decode_task(body: bytes) -> FunctionTask:
    """Decode the task of a child."""
    return _TASK_DECODER.decode(body)


class Deadline:
    """The end of the lease, in a page of memory that the worker shares with its zygote.

    The worker moves it forward with every heartbeat that the store accepts, from the heartbeat
    thread. When it has passed, the zygote kills all calls: the worker may be frozen, and by the
    end of the lease another worker may make the same calls.

    It is a page rather than a message because the reader always sees the newest moment, however
    many heartbeats came before it looked, and neither side can block the other. An aligned
    double is written and read as a whole, so no lock is needed.

    The clock is `ports.platform.read_boot_clock`. It is the same in all processes of a
    machine and also counts while the machine sleeps.
    """

    _MOMENT: Final = struct.Struct("d")

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, self._MOMENT.size)

    @property
    def moment(self) -> float:
        """The newest moment that was set, in seconds of the boot clock."""
        (moment,) = self._MOMENT.unpack_from(self._page)
        return float(moment)

    @moment.setter
    def moment(self, moment: float) -> None:
        self._MOMENT.pack_into(self._page, 0, moment)

    @classmethod
    def open_page(cls) -> int:
        """Return a file descriptor of a new page, for a `Deadline` here and in the zygote."""
        # An anonymous file: both processes map it, and it vanishes with the last of them.
        if platform.CURRENT.has_memfd:
            fd = os.memfd_create("midrun-deadline")
        else:
            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.pwrite(fd, cls._MOMENT.pack(0.0), 0)
        return fd


class GarbledFrame(Exception):
    """The bytes on a call's socket are no message of Midrun."""


class FrameBuffer:
    """Cuts the bytes of a stream into frames, however they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes as they arrive."""
        self._buffer += data

    def take_frame(self) -> bytes | None:
        """Return the body of the next frame, or None while it is incomplete.

        Raises:
            GarbledFrame: the header announces more than `FRAME_MAX_BYTES` bytes.
        """
        if len(self._buffer) < FRAME_HEADER.size:
            return None
        (size,) = FRAME_HEADER.unpack_from(self._buffer)
        # Checked before any of the body has arrived: four stray bytes could announce 4 GB, and
        # the reader would wait for them for ever.
        if size > FRAME_MAX_BYTES:
            raise GarbledFrame(f"a frame of {size} bytes")
        end = FRAME_HEADER.size + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[FRAME_HEADER.size : end])
        del self._buffer[:end]
        return body
