"""Blocking tools in processes that can be killed.

A thread cannot be stopped: a cancelled tool would continue and act unseen. So a blocking
function runs in a process of its own. Starting Python and importing the tools for every call
would take seconds. Instead one process, the *zygote*, imports the modules of the tools once and
forks a child for each call, which takes milliseconds.

    worker (zygote_client)                  zygote (zygote_server)         child (child)
    Zygote ── StartProcess, SignalProcess ► imports modules, forks   ──►   runs one function
       ▲   ◄── started, refused, gone ───── reaps, kills at the deadline         │
       │                                                                         │
       └───── one socket for each call: task ►, ◄ progress, ◄ notes, ◄ answer ───┘

The child leads a session and process group of its own. To kill the group kills the call and all
processes that it has started. Each declared tool environment has a zygote of its own.

No call outlives the worker's right to make it:

- The worker **stops** a call: SIGTERM, the grace, SIGKILL (`ProcessCall.stop`).
- The worker **dies**: its sockets close, and its zygote kills all calls and exits.
- The worker **freezes**: its sockets stay open. The zygote reads the end of the lease from a
  page of memory that both share (`protocol.Deadline`), and kills all calls when it has passed.
- The zygote **dies**: the kernel kills its children (on other systems than Linux they kill
  themselves), and the worker kills their process groups.

`protocol` has the messages, `function_lookup` finds functions by name inside the zygote. Start
with `zygote_client.Zygote`.
"""
