"""The declarations that a user writes: agents, tools, and the values that come back.

An `Agent` (`agent.py`) is a model, instructions, tools and a stop condition. It holds no state
of a run: one agent drives any number of runs. `@tool` (`tool.py`) makes a `Tool` of a function;
`signature.py` derives the JSON Schema and the argument check from the signature and the
docstring. When a model proposes a call, `Agent.offered` completes it: it checks the arguments
and computes the traits (effect, undo, approval) that are journaled with the call.

Inside a tool, `Call` (`tool_context.py`) gives the idempotency key and saves progress;
`pause_here` and `ask_human` (`builtin_tools.py`) ask a person. Blocking tools run in other
processes, with the environment that `tool_environment.py` allows. `outcome.py` has the results
of a run, `checkpoint.py` the portable form of a parked run. Nothing here drives a run; only
`Agent.run` imports `midrun.runs`, when it is called. Start reading at `Agent`, then `tool`.
"""
