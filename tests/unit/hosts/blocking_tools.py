"""Blocking functions for tools of hosted agents; another process can import them."""

import os


def get_process_id() -> int:
    """Return the id of the process that runs the tool."""
    return os.getpid()
