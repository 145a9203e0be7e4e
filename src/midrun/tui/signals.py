"""Receive the signals of a terminal: Ctrl-C, the end of the process, the loss of the terminal.

A terminal that is closed sends SIGHUP more than once: first when it hangs up, and again when
the shell that leads the session exits. The second one may arrive while the command is already
leaving: it pauses its run, stops its calls and releases its lease. The default action of SIGHUP
would kill the process in the middle of that. So SIGHUP is ignored from the first one on.
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

    On exit the handlers from before are restored. After a SIGHUP, SIGHUP is ignored instead.
    Must be entered in the main thread, inside of an event loop.
    """
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[signal.Signals](math.inf)
    hung_up = False

    def pass_on(number: signal.Signals) -> None:
        with suppress(anyio.ClosedResourceError):  # it came while the receiver was closed
            send.send_nowait(number)

    def handle(number: int, _frame: FrameType | None) -> None:
        # Python calls this in the main thread, between any two instructions.
        nonlocal hung_up
        if number == signal.SIGHUP:
            hung_up = True
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop.call_soon_threadsafe(pass_on, signal.Signals(number))

    before = {number: signal.getsignal(number) for number in _RECEIVED}
    with send, receive:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # ignored SIGHUP: started by nohup
                signal.signal(number, handle)
        try:
            yield receive
        finally:
            for number, handler in before.items():
                if number is not signal.SIGHUP or not hung_up:
                    signal.signal(number, handler)
