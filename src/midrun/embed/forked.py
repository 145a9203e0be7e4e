"""A process that was forked from one with an open `Midrun`: how it leaves."""

import os
import sys
import traceback
from typing import Final, NoReturn

FORKED: Final = """\
midrun: process {child} was forked from {parent} inside an open Midrun, and leaves it.
Its threads stayed with {parent}, and its event loop shares that one's sockets: it can close
nothing, and ends here; the runs of {parent} go on. Fork before a Midrun is opened, or end the
fork with os._exit().
"""


def end_forked_process(parent: int, error: BaseException | None) -> NoReturn:
    """End this process and say why, after `error` if it left by one.

    Whatever it would close, it would wait for for ever, or take away from its parent.
    """
    code = error.code if isinstance(error, SystemExit) else 1
    try:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stderr.write(FORKED.format(child=os.getpid(), parent=parent))
        sys.stderr.flush()
        sys.stdout.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))
