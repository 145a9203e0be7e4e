"""The child process of one call: read the task, run the function, send the answer, exit.

The function runs in the main thread, so that it may install signal handlers. SIGTERM, which
asks the call to stop, ends the process at once by default. A tool that installs a handler can
clean up within its grace instead.
"""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Final, Never, cast

import msgspec

from midrun.agents.human import PauseHere
from midrun.agents.signature import Function
from midrun.agents.tool import NOT_DONE, Tool
from midrun.agents.tool_context import Call
from midrun.agents.tool_environment import DECLARE, is_missing_variable
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import checked
from midrun.core.values import Json
from midrun.driver.subprocess.protocol import (
    LENGTH,
    RESULT_MAX,
    Answer,
    Asked,
    Errand,
    NotDone,
    Note,
    Raised,
    Returned,
    Said,
    Save,
    errand_of,
    framed,
    unrun,
)
from midrun.errors import NotJson, TooLarge

NO_ANSWER: Final = 70
"""The exit code of a child that could not send its answer."""


class Channel:
    """The child's end of its call's socket.

    A tool may close descriptors that are not its own, and open others under the same number. So
    the identity of the socket is remembered and compared before each message.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003 - the name of the function says it
        self._socket = socket.socket(fileno=fd)
        self._identity = self._identify()
        self._turn = threading.Lock()  # several threads of a tool may save or note

    def receive(self) -> bytes:
        """Return the body of the next frame."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return self._exactly(size)

    def send(self, message: Said) -> None:
        """Send a message.

        Raises:
            OSError: the worker is not listening, or the tool has closed this descriptor.
        """
        if self._identify() != self._identity:
            raise OSError("the descriptor of the call's socket was closed and reused")
        self._socket.sendall(framed(message))

    def ask(self, message: Save | Note) -> None:
        """Send a message, and wait until the worker has done it."""
        with self._turn:
            self.send(message)
            self.receive()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def _identify(self) -> tuple[int, int]:
        found = os.fstat(self._socket.fileno())
        return found.st_dev, found.st_ino


def perform(channel: Channel, found: object) -> Never:
    """Read the task from `channel`, run `function` for it, send the answer, and exit."""
    code = NO_ANSWER
    try:
        task = errand_of(channel.receive())
        channel.send(_answer(task, found, channel))
        code = 0
    except (EOFError, OSError):
        pass  # the worker is gone, or the tool has closed the socket
    finally:
        # `os._exit`, not `sys.exit`: the exit handlers and buffers that were inherited belong
        # to the zygote. Only the standard streams are the tool's own.
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _answer(errand: Errand, found: object, channel: Channel) -> Answer:
    try:
        value = _value(errand, found, _call(errand, channel))
        # The function has returned, so its effect has happened. A SIGTERM from now on must not
        # end the process before the answer is sent; SIGKILL after the grace still does.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    except PauseHere as pause:
        return Asked(question=pause.question, data=pause.data, continuation=pause.continuation)
    except BaseException as error:  # noqa: BLE001 - SystemExit, too, is an answer
        advice = f". {DECLARE}" if is_missing_variable(error) else ""
        return Raised(kind=type(error).__name__, message=f"{safe_str(error)}{advice}")
    if value is NOT_DONE:
        return NotDone()
    if (problem := unrun(value, errand.form)) is not None:
        return problem
    try:
        return Returned(value=_storable(value))
    except (NotJson, TooLarge) as error:
        return Returned(problem=str(error), shown=safe_repr(value))


def _storable(value: object) -> Json:
    plain = checked(value, "result")
    size = len(msgspec.json.encode(plain))  # `normalize_json` limits sizes only roughly
    if size > RESULT_MAX:
        raise TooLarge("result", size, RESULT_MAX)
    return plain


def _call(errand: Errand, channel: Channel) -> Call:
    facts = errand.call
    return Call(
        key=facts.key,
        original=facts.original,
        run_id=facts.run_id,
        epoch=facts.epoch,
        attempt=facts.attempt,
        progress=facts.progress,
        saver=lambda progress: channel.ask(Save(progress)),
        noter=lambda text: channel.ask(Note(text)),
    )


def _value(errand: Errand, found: object, call: Call) -> object:
    if errand.form == "tool":
        tool = found if isinstance(found, Tool) else Tool.of(_function(found))
        arguments = tool.parse(errand.args)
        return tool.fn(call, **arguments) if tool.takes_call else tool.fn(**arguments)
    hook = found.fn if isinstance(found, Tool) else _function(found)
    return hook(call, *msgspec.convert(errand.args, list[Json]))


def _function(found: object) -> Function:
    if not callable(found):
        raise TypeError(f"{safe_repr(found)} is not a function")
    return cast("Function", found)
