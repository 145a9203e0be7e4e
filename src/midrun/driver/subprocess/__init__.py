"""Blocking tools, each call in a process of its own that can really be killed.

A thread cannot be stopped: what a cancelled tool does next, it does behind everybody's back. So
one process, the zygote, imports the tools' modules once and forks a child for every call. The
child leads a session and process group of its own; to kill the group is to kill the call and
whatever it has started. The zygote dies with the runtime, and takes all calls along.

`zygote` is the runtime's side, `server` the zygote's, `child` the call's.
"""
