"""AG-UI 1.0 (and older clients), and the routes of CopilotKit.

An AG-UI "run" is one request and its stream. Here it is called a segment: a stretch of a Midrun
run from a start or resumption until the run rests (paused, waiting, failed, halted or ended).
A run has one or more segments, all on one thread.

A request flows through the modules like this: `inputs.py` decodes it, finds the newest run of
the thread and turns the message into a control (start, resume, answer, redirect); `routes.py`
streams the run's feed; `translate.py` turns each entry and delta into AG-UI events, and the
state at rest into the last event. AG-UI has no pause. A client stops a run by dropping its
stream, so a dropped stream pauses the run after a grace (`Bridges.on_disconnect`).
"""
