"""Runs as tools and tasks of an MCP server. Needs `midrun[mcp]`.

`server.py` makes the MCP server and serves it over stdio (`midrun mcp`). The HTTP server mounts
the same server at `/mcp`, with its own credentials (`server/mcp_routes.py`). Each request opens
a `RunAccess`: an `AnyMidrun`, and the actor of its controls. So this package has no rules about
runs: a store or a server applies them, and a refusal becomes an error result.

`run_tools.py` is the table of the tools. A tool that sends a control is made from the control's
spec, with the arguments and the help of its command. `run_waits.py` has the calls that wait
until a run rests: they report progress, and ask the person at the client about open asks
(`ask_forms.py`). `tasks.py` shows runs as tasks of the MCP extension of that name.

Invariants: a call that is dropped stops its wait, never its run; nothing here is remembered
between two requests, so a server can be restarted at any time. Start reading at `RUN_TOOLS`.
"""
