"""Spill: what other processes of ours write to the terminal, past Python, kept off the bar.

A blocking tool runs in a process of its own, which has our standard error for its output. Left
alone it would write across the bar. While a `Spill` is open, standard error is a pipe, and
what comes out of it is handed to whoever draws.
"""

import codecs
import os
import select
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_STDERR: Final = 2
_CHUNK: Final = 65_536

Sink = Callable[[str], None]


class Spill:
    """Reads standard error while it is open, in a thread: no writer ever waits for us.

    `sink` is given the text, in that thread; at first that is the terminal itself.
    """

    def __enter__(self) -> Self:
        self._terminal = os.dup(_STDERR)
        self._read, write = os.pipe()
        os.dup2(write, _STDERR)
        os.close(write)
        self._over, self._end = os.pipe()
        self.sink: Sink = self.pass_on
        self._thread = threading.Thread(target=self._pump, name="midrun-spill", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sink = self.pass_on
        os.dup2(self._terminal, _STDERR)
        os.close(self._end)
        self._thread.join()
        for number in (self._terminal, self._read, self._over):
            os.close(number)

    def pass_on(self, text: str) -> None:
        """Write to the terminal as if nobody were in between."""
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._terminal, data) :]

    def _pump(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            ready, _, _ = select.select([self._read, self._over], [], [])
            if self._read not in ready:  # it is over, and the pipe is empty
                return
            data = os.read(self._read, _CHUNK)
            self.sink(decoder.decode(data))
            if not data:
                return
