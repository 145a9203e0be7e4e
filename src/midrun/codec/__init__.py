"""Entries and states as bytes, and the checks at the border of the process.

Theory of operation. User data enters through `strict_json`, which refuses every value that JSON
cannot represent exactly. `redaction` finds secrets in it; the driver replaces them by
placeholders before anything is journaled. `journal` encodes an entry as one canonical line and
decodes stored lines, through upcasts for older versions. `hash_chain` links each line to all
before it, so that a changed line is detected. `snapshot` encodes a state as a cache of a long
journal. `safe_repr` describes values that are not JSON.

Invariants: the same entry always gives the same bytes; stored lines are never rewritten; no
code of a user's value is run while it is checked or encoded; all work is bounded in time, and
large values are processed in steps that let the event loop run in between.

Start reading with the docstring of `journal`, which specifies the format.
"""
