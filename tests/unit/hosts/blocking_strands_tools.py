"""A blocking tool of Strands; another process can import it."""

import os

from strands import tool


@tool
def read_process_id() -> int:
    """Return the id of the process that runs the tool."""
    return os.getpid()
