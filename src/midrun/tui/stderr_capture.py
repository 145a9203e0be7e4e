"""Capture standard error, so that tool processes do not write across the bar.

A blocking tool runs in a process of its own, which inherits file descriptor 2. Replacing
`sys.stderr` does not reach it. While a `StderrCapture` is open, descriptor 2 is a pipe, and a
thread passes the text that comes out of it to `sink`.
"""

import codecs
import os
import select
import threading
from collections.abc import Callable
from typing import Final, Self

_STDERR: Final = 2
_READ_MAX_BYTES: Final = 65_536

TextSink = Callable[[str], None]


class StderrCapture:
    """Reads standard error in a thread while it is open, so that no writer blocks.

    `sink` is called with the text, in that thread. By default it writes to the terminal.
    """

    def __enter__(self) -> Self:
        # `_terminal_fd` keeps the real standard error. The second pipe carries no data: closing
        # its write end wakes the thread from `select`.
        self._terminal_fd = os.dup(_STDERR)
        self._read_fd, write = os.pipe()
        os.dup2(write, _STDERR)
        os.close(write)
        self._stop_read_fd, self._stop_write_fd = os.pipe()
        self.sink: TextSink = self.write_to_terminal
        self._thread = threading.Thread(
            target=self._read_until_stopped, name="midrun-stderr", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Restore descriptor 2 first, so that nothing more enters the pipe from this process.
        # Child processes may still hold its write end, so end-of-file may never come: closing
        # `_stop_write_fd` tells the thread to stop as soon as the pipe is empty.
        self.sink = self.write_to_terminal
        os.dup2(self._terminal_fd, _STDERR)
        os.close(self._stop_write_fd)
        self._thread.join()
        for number in (self._terminal_fd, self._read_fd, self._stop_read_fd):
            os.close(number)

    def write_to_terminal(self, text: str) -> None:
        """Write text to the terminal, unchanged."""
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._terminal_fd, data) :]

    def _read_until_stopped(self) -> None:
        # Incremental: a read may end in the middle of a character.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            ready, _, _ = select.select([self._read_fd, self._stop_read_fd], [], [])
            if self._read_fd not in ready:  # stopped, and the pipe is empty
                return
            data = os.read(self._read_fd, _READ_MAX_BYTES)
            self.sink(decoder.decode(data))
            if not data:
                return
