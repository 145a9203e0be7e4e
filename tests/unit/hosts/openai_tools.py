"""Decorated blocking tools of the OpenAI Agents SDK; another process can import them."""

import os

from agents import RunContextWrapper, function_tool


@function_tool
def get_process_id() -> int:
    """Return the id of the process that runs the tool."""
    return os.getpid()


@function_tool
def block_with_context(context: RunContextWrapper[None]) -> str:
    """Block in a thread: a tool with a context needs the SDK."""
    return str(context.context)
