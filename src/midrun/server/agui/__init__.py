"""AG-UI 1.0, with what clients of before 1.0 understand, and the routes of CopilotKit.

What AG-UI calls a run is a segment here: from a start or a resumption to the next rest. A run
has one segment after the other, all on one thread.
"""
