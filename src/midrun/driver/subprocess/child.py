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
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final, Never, cast

import msgspec

from midrun.agents.builtin_tools import PauseHere
from midrun.agents.file import split_files
from midrun.agents.signature import Function
from midrun.agents.tool import NOT_DONE, Tool
from midrun.agents.tool_context import Call, ProcessContext, refuse_context
from midrun.agents.tool_environment import DECLARE_HINT, is_missing_variable
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core.values import Json
from midrun.driver.subprocess.protocol import (
    FRAME_HEADER,
    RESULT_MAX_BYTES,
    ChildAnswer,
    ChildMessage,
    ChildRequest,
    FunctionTask,
    NotDone,
    NoteRequest,
    QuestionAsked,
    Raised,
    Returned,
    SaveRequest,
    SentFile,
    ShowRequest,
    decode_task,
    encode_frame,
    find_unrun_code,
)
from midrun.errors import FileRefused, NotJson, OutcomeUnknown, TooLarge

NO_ANSWER_EXIT_CODE: Final = 70
"""The exit code of a child that could not send its answer."""


class ChildChannel:
    """The child's end of its call's socket.

    A tool may close descriptors that are not its own, and open others under the same number. So
    the identity of the socket is remembered and compared before each message.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # noqa: FBT003 - the name of the function says it
        self._socket = socket.socket(fileno=fd)
        self._identity = self._identify()
        self._lock = threading.Lock()  # several threads of a tool may save or note

    def receive(self) -> bytes:
        """Return the body of the next frame."""
        (size,) = FRAME_HEADER.unpack(self._receive_exactly(FRAME_HEADER.size))
        return self._receive_exactly(size)

    def send(self, message: ChildMessage) -> None:
        """Send a message.

        Raises:
            OSError: the worker is not listening, or the tool has closed this descriptor.
        """
        if self._identify() != self._identity:
            raise OSError("the descriptor of the call's socket was closed and reused")
        self._socket.sendall(encode_frame(message))

    def request(self, message: ChildRequest) -> None:
        """Send a message, and wait until the worker has done it.

        Raises:
            FileRefused: the worker refused a file.
        """
        # Held from the request to its reply: a second thread would otherwise read the reply of
        # the first one.
        with self._lock:
            self.send(message)
            problem = self.receive()
        if problem:
            raise FileRefused(problem.decode())

    def _receive_exactly(self, size: int) -> bytes:
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


def run_task(
    channel: ChildChannel, function: object, find_function: Callable[[str], object]
) -> Never:
    """Read the task from `channel`, run `function` for it, send the answer, and exit.

    `find_function` finds the function that makes the context, if the tool uses it.
    """
    code = NO_ANSWER_EXIT_CODE
    try:
        task = decode_task(channel.receive())
        channel.send(_make_answer(task, function, channel, find_function))
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


def _make_answer(
    task: FunctionTask,
    function: object,
    channel: ChildChannel,
    find_function: Callable[[str], object],
) -> ChildAnswer:
    context = _make_context(task, find_function)
    value, has_returned = None, False
    try:
        with context or nullcontext():
            value = _call_function(task, function, _make_call(task, channel, context))
            has_returned = True
            # The function has returned, so its effect has happened. A SIGTERM from now on must
            # not end the process before the answer is sent; SIGKILL after the grace still does.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    except PauseHere as pause:
        return QuestionAsked.from_pause(pause)
    except BaseException as error:  # noqa: BLE001 - SystemExit, too, is an answer
        advice = f". {DECLARE_HINT}" if is_missing_variable(error) else ""
        message = f"{safe_str(error)}{advice}"
        failure = Raised(kind=type(error).__name__, message=message)
        return _make_unknown(failure) if has_returned else failure
    if value is NOT_DONE:
        return NotDone()
    if (problem := find_unrun_code(value, task.form)) is not None:
        return problem
    value, files = split_files(value)
    sent = tuple(map(SentFile.from_file, files))
    try:
        return Returned(value=_make_storable(value), files=sent)
    except (NotJson, TooLarge) as error:
        return Returned(problem=str(error), shown=safe_repr(value), files=sent)


def _make_unknown(failure: Raised) -> Raised:
    """Return the outcome of a function that has returned, and whose context did not close."""
    # The function has done its work, and the end of its context may have undone it.
    problem = f"Cannot close the context of the call: {failure.kind}: {failure.message}"
    return Raised(kind=OutcomeUnknown.__name__, message=str(OutcomeUnknown(problem)))


def _make_storable(value: object) -> Json:
    plain = normalize_json(value, "result")
    size = len(msgspec.json.encode(plain))  # `normalize_json` limits sizes only roughly
    if size > RESULT_MAX_BYTES:
        raise TooLarge("result", size, RESULT_MAX_BYTES)
    return plain


def _make_context(
    task: FunctionTask, find_function: Callable[[str], object]
) -> ProcessContext | None:
    name = task.context
    if name is None:
        return None
    return ProcessContext(
        partial(find_function, name) if name else refuse_context, task.call.run_id
    )


def _make_call(
    task: FunctionTask, channel: ChildChannel, context: ProcessContext | None
) -> Call:
    facts = task.call
    return Call(
        key=facts.key,
        original=facts.original,
        run_id=facts.run_id,
        epoch=facts.epoch,
        attempt=facts.attempt,
        progress=facts.progress,
        saver=lambda progress: channel.request(SaveRequest(progress)),
        noter=lambda text: channel.request(NoteRequest(text)),
        shower=lambda file: channel.request(ShowRequest(SentFile.from_file(file))),
        _context=context,
    )


def _call_function(task: FunctionTask, function: object, call: Call) -> object:
    if task.form == "tool":
        tool = function if isinstance(function, Tool) else Tool.of(_check_function(function))
        arguments = tool.parse(task.args)
        return tool.fn(call, **arguments) if tool.takes_call else tool.fn(**arguments)
    hook = function.fn if isinstance(function, Tool) else _check_function(function)
    return hook(call, *msgspec.convert(task.args, list[Json]))


def _check_function(function: object) -> Function:
    if not callable(function):
        raise TypeError(f"{safe_repr(function)} is not a function")
    return cast("Function", function)
