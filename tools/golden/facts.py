"""Facts derived from a stored journal, which no later version may change."""

from collections.abc import Sequence

import msgspec

from midrun.codec.journal import format_record, hash_line, hash_run_id
from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.core.state import State

RUN = RunId("run_1")


def text_of(records: Sequence[Record]) -> bytes:
    """Return the journal as stored: one line per entry."""
    return b"".join(format_record(record) + b"\n" for record in records)


def facts_of(records: Sequence[Record]) -> bytes:
    """Return the facts of the journal and the hash of its last line, as JSON."""
    state = fold(RUN, records)
    head = hash_run_id(RUN)
    for record in records:
        head = hash_line(head, format_record(record))
    facts = {"head": head.hex(), **_facts(state)}
    return msgspec.json.format(msgspec.json.encode(facts, order="sorted"), indent=1) + b"\n"


def _facts(state: State) -> dict[str, object]:
    return {
        "phase": state.phase,
        "seq": state.seq,
        "epoch": state.epoch,
        "leased": state.is_leased,
        "steps": state.meter.steps,
        "tool_calls": state.meter.tool_calls,
        "spent": state.meter.spent,
        "calls": {
            call.id: [call.stage, call.attempt, call.undo.stage, call.release.stage]
            for call in state.calls
        },
        "results": {call.id: call.result for call in state.calls if call.result is not None},
        "asks": {ask.id: ask.close_reason for ask in state.asks},
        "frames": [frame.goal for frame in state.frames],
        "pending": [waiting.text for waiting in state.pending],
        "said": [f"{message.role}: {message.text}" for message in state.messages],
        "plan": [[item.text, item.state] for item in state.plan],
        "residue": [[left.call, left.action] for left in state.residue],
        "output": state.output,
    }
