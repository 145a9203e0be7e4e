"""What runtime, zygote and children say to each other: JSON in frames, over Unix sockets.

The runtime and the zygote share one socket for the life of the zygote; each call has another,
whose far end travels with its `Start`. A frame is the length of its body in four bytes, and the
body. A process that is gone says so by itself: its sockets close.

A frozen runtime, however, says nothing, and its sockets stay open. So the moment at which its
lease lapses stands in a page of memory that the zygote reads: see `Deadline`.
"""

import mmap
import os
import struct
import sys
from collections.abc import Coroutine
from inspect import isasyncgen, isawaitable, isgenerator
from tempfile import TemporaryFile
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from midrun.core.values import Json

# Errands: what a blocking function is to do in a process of its own, and what came of it.

ErrandForm: TypeAlias = Literal["tool", "hook"]
"""A tool's own function; or its undo, release or check."""


class CallFacts(Struct, frozen=True, kw_only=True):
    """What the child needs to build the `Call` that a tool or hook is given."""

    key: str
    run_id: str
    epoch: int
    attempt: int
    progress: Json = None
    original: str = ""


class Errand(Struct, frozen=True, kw_only=True):
    """One function to be run.

    `target` is its place, "module:qualname". A tool gets `args` as its model gave them, parsed
    there; a hook gets the call and then the items of the list `args`: [args] or [args, result].
    """

    target: str
    form: ErrandForm
    args: Json
    call: CallFacts


class Returned(Struct, frozen=True, kw_only=True, tag="returned"):
    """It came to its end. The effect has happened, also where the result is not JSON.

    Then `problem` says what is wrong with it, and `shown` describes it in words.
    """

    value: Json = None
    problem: str = ""
    shown: str = ""


class NotDone(Struct, frozen=True, kw_only=True, tag="not_done"):
    """A `check` hook returned NOT_DONE: the call it looked into took no effect."""


class Raised(Struct, frozen=True, kw_only=True, tag="raised"):
    """It raised an exception of the type `kind`, or it could not be found or started.

    `not_found` says that its module cannot be imported, or lacks the function: a fault of the
    program, which no other arguments can mend.
    """

    kind: str
    message: str
    not_found: bool = False


class Asked(Struct, frozen=True, kw_only=True, tag="asked"):
    """It called `pause_here`."""

    question: str
    data: dict[str, Json]
    continuation: Json = None


class Died(Struct, frozen=True, kw_only=True):
    """Its process ended without an answer: by `signal`, or with `exit_code`.

    If it has not even `started`, it had no effect; otherwise nobody can say.
    """

    signal: int = 0
    exit_code: int = 0
    started: bool = True
    detail: str = ""


def unrun(value: object, form: ErrandForm) -> Raised | None:
    """Return that what was meant to happen has not: `value` is code that nobody will run.

    A coroutine; and of a hook, whose result is of no use, also a generator.
    """
    if isinstance(value, Coroutine):
        value.close()
    if isawaitable(value):
        return Raised(kind="TypeError", message="it returned a coroutine; make it an async def")
    if form == "hook" and (isgenerator(value) or isasyncgen(value)):
        return Raised(kind="TypeError", message="it returned a generator; drop its yield")
    return None


Answer: TypeAlias = Returned | NotDone | Raised | Asked
"""What the child itself can say."""

Outcome: TypeAlias = Answer | Died

RESULT_MAX: Final = 8 * 1024 * 1024
"""Bytes of JSON that a result may have; a longer one is described instead."""

FRAME_MAX: Final = 8 * RESULT_MAX
"""What is announced as longer is not a message of ours."""

TARGET_MAX: Final = 1000
"""Characters in a target. Frames to the zygote stay short, so that they are sent whole."""

LENGTH: Final = struct.Struct("!I")


class Start(Struct, frozen=True, tag="start"):
    """To the zygote: fork a child for this call; its end of the call's socket comes along."""

    call: int
    target: str


class Kill(Struct, frozen=True, tag="kill"):
    """To the zygote: send this signal to the call's process group."""

    call: int
    signal: int


class Refused(Struct, frozen=True, tag="refused"):
    """Of the zygote: the call was not started, nor will it be."""

    call: int
    kind: str
    message: str
    not_found: bool = False  # as in `errands.Raised`


class Started(Struct, frozen=True, tag="started"):
    """Of the zygote: the child `pid` leads the call's process group."""

    call: int
    pid: int


class Gone(Struct, frozen=True, tag="gone"):
    """Of the zygote: the child was reaped, and its group killed. Signals are negative codes."""

    call: int
    code: int


class Save(Struct, frozen=True, tag="save"):
    """Of a child: keep this progress. It waits for an empty frame."""

    progress: Json


class Note(Struct, frozen=True, tag="note"):
    """Of a child: show this line. It waits for an empty frame."""

    text: str


Request: TypeAlias = Start | Kill
News: TypeAlias = Refused | Started | Gone
Said: TypeAlias = Save | Note | Answer

DONE: Final = LENGTH.pack(0)
"""The empty frame: what the child asked for has been done."""

_REQUEST: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
_NEWS: Final[msgspec.json.Decoder[News]] = msgspec.json.Decoder(News)
_SAID: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)
_ERRAND: Final = msgspec.json.Decoder(Errand)


def framed(message: Request | News | Said | Errand) -> bytes:
    """Return the frame of a message."""
    body = msgspec.json.encode(message)
    return LENGTH.pack(len(body)) + body


def request_of(body: bytes) -> Request:
    """Return what the runtime wants of the zygote."""
    return _REQUEST.decode(body)


def news_of(body: bytes) -> News:
    """Return what the zygote tells."""
    return _NEWS.decode(body)


def said_of(body: bytes) -> Said:
    """Return what a child says. Tools may write to any descriptor, so it can be anything.

    Raises:
        Garbled: it is not a message.
    """
    try:
        return _SAID.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Garbled(str(error)) from None


def errand_of(body: bytes) -> Errand:
    """Return what a child is to do."""
    return _ERRAND.decode(body)


class Deadline:
    """A moment in a page of memory that the runtime shares with its zygote.

    The runtime moves it with every heartbeat that the store accepts, from the thread that
    beats. The zygote kills all calls when it has passed. A page rather than a message: the
    reader always sees the newest moment, however many beats came before it looked, and
    neither side can block the other. An aligned double is written and read as a whole.

    The clock is `ports.clock.boottime`, which is the same in all processes of a machine and
    counts the time in which the machine sleeps.
    """

    _MOMENT: Final = struct.Struct("d")

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, self._MOMENT.size)

    @property
    def moment(self) -> float:
        """The newest moment that was set."""
        (moment,) = self._MOMENT.unpack_from(self._page)
        return float(moment)

    @moment.setter
    def moment(self, moment: float) -> None:
        self._MOMENT.pack_into(self._page, 0, moment)

    @classmethod
    def open_page(cls) -> int:
        """Return a descriptor of a new page, for `Deadline` here and in the zygote."""
        if sys.platform == "linux":
            fd = os.memfd_create("midrun-deadline")
        else:
            with TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.pwrite(fd, cls._MOMENT.pack(0.0), 0)
        return fd


class Garbled(Exception):
    """What came over a call's socket is not ours."""


class Frames:
    """Cuts the bytes of a stream into frames, however they arrive."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what came next."""
        self._held += data

    def take(self) -> bytes | None:
        """Return the body of the next frame, or None as long as it is not whole.

        Raises:
            Garbled: the frame says that it is longer than any of ours.
        """
        if len(self._held) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._held)
        if size > FRAME_MAX:
            raise Garbled(f"a frame of {size} bytes")
        end = LENGTH.size + size
        if len(self._held) < end:
            return None
        body = bytes(self._held[LENGTH.size : end])
        del self._held[:end]
        return body
