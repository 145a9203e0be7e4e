"""Receive the signals of a terminal: Ctrl-C, the end of the process, the loss of the terminal.

When a terminal is closed, the kernel signals only the leader of its session, which is a shell.
The command notices the end of its input at once, and gets SIGHUP later, when the shell exits.
By then it may be leaving: it pauses its run, stops its calls and releases its lease. The
default action of SIGHUP would kill it in the middle of that. So SIGHUP has no effect after a
receiver.
"""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import anyio

_RECEIVED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def receive_terminal_signals() -> Iterator[AsyncIterator[signal.Signals]]:
    """Yield the signals SIGINT, SIGTERM and SIGHUP as they come; not one that is ignored.

    On exit the handlers of SIGINT and SIGTERM from before are restored, and SIGHUP has no
    effect until another receiver is opened. Must be entered in the main thread, inside of an
    event loop.
    """
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[signal.Signals](math.inf)

    def pass_on(number: signal.Signals) -> None:
        with suppress(anyio.ClosedResourceError):  # it came while the receiver was closed
            send.send_nowait(number)

    def handle(number: int, _frame: FrameType | None) -> None:
        # Python calls this in the main thread, between any two instructions.
        loop.call_soon_threadsafe(pass_on, signal.Signals(number))

    before = {number: signal.getsignal(number) for number in _RECEIVED}
    received = [number for number in _RECEIVED if before[number] is not signal.SIG_IGN]
    with send, receive:
        for number in received:  # without SIGHUP if the command was started by nohup
            signal.signal(number, handle)
        try:
            yield receive
        finally:
            for number in received:
                hung_up = number is signal.SIGHUP
                signal.signal(number, _do_nothing if hung_up else before[number])


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal without an effect.

    Not `SIG_IGN`: programs that tools start would inherit that, and the next receiver could not
    tell it from `nohup`.
    """
