"""DBOS with its system database in SQLite: a workflow with one step for each call."""

import threading

from dbos import DBOS

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

probe = StepProbe.from_arguments()
DBOS(
    config={
        "name": "bench",
        "system_database_url": f"sqlite:///{probe.folder / 'dbos.db'}",
        "application_version": "1",
        "log_level": "ERROR",
    }
)


@DBOS.step()
def call_model() -> dict[str, object]:
    """Return the scripted reply: a text and a tool call."""
    return {"text": REPLY_TEXT, "tool": "look", "args": {"n": probe.mark()}}


@DBOS.step()
def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


@DBOS.workflow()
def run_agent() -> None:
    """Call the model and its tool in turns."""
    messages: list[object] = []
    while True:
        reply = call_model()
        messages += [reply, look(**reply["args"])]


probe.open()
DBOS.launch()  # starts again the workflows that a crash has interrupted
if not probe.is_resumed:
    DBOS.start_workflow(run_agent)
threading.Event().wait()
