"""The demo of `midrun demo`: a real agent with a scripted model, made to be interrupted.

The agent reads a small library about the street trees of Larkhaven, an invented town, and
writes a briefing for its council. It uses every feature once: a plan, a blocking analysis, a
draft with undo, a lock with release, a question, a child run and an approval.

`agents` puts the agent together. Its tools are in `notes` (library), `analysis` (in a process
of its own) and `files` (draft, lock, outbox). `model` streams the lines that `script` finds;
`main_script` is the briefing, `interruptions` reacts to users, `texts.toml` has the wording. A
script is replayed from the transcript before every reply and keeps no state, so pauses and
crashes do not matter. `launch` finds or starts the run; `page` and `terminal` show it.
"""

from typing import Final

DEFAULT_DEMO_STORE: Final = "sqlite:///midrun-demo/runs.db"
