"""Runs that move: forks, checkpoints to take away and to bring back, whole journals."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.responses import Response

from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.history import is_boundary
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import CheckpointRefused
from midrun.server.request_context import Visit, answer
from midrun.server.runs import created
from midrun.server.schemas import CheckpointBody, ForkBody

EXPIRY_MAX: Final = 10 * 365 * 24 * 3600
"""Seconds; whoever wants a checkpoint to be good for longer leaves its expiry out."""


class Boundary(Struct, frozen=True, kw_only=True):
    """Where the run could be continued from: the last entry with nothing under way."""

    seq: Seq
    at: Micros
    step: int
    phase: Phase


class Boundaries(Struct, frozen=True, kw_only=True):
    """Every boundary of a run, in order."""

    items: tuple[Boundary, ...]


async def boundaries(context: Visit) -> Response:
    """List from where the run can be forked."""
    run = await context.run()
    records = await context.lobby.store.read(run.id)
    found = await anyio.to_thread.run_sync(_boundaries, run.id, records)
    return answer(Boundaries(items=found))


def _boundaries(run: RunId, records: Sequence[Record]) -> tuple[Boundary, ...]:
    found: list[Boundary] = []
    state, was = State(run=run), False
    for record in records:
        state = fold(run, [record], state)
        now = is_boundary(state)
        if now:
            here = Boundary(
                seq=state.seq, at=state.at, step=state.meter.steps, phase=state.phase
            )
            found[-1:] = [here] if was else [*found[-1:], here]
        was = now
    return tuple(found)


async def fork(context: Visit) -> Response:
    """Continue from a boundary of the run as a new one."""
    run = await context.run()
    body = await context.body(ForkBody)
    request_id = context.request_id()
    await context.check_quota(request_id)
    made = await run.fork(
        body.seq,
        instruction=body.instruction or None,
        actor=context.actor,
        request_id=request_id,
    )
    return await created(context, made)


async def checkpoint(context: Visit) -> Response:
    """Return a parked run as portable JSON, signed where there is a key."""
    run = await context.run()
    seconds = context.number("expires_s", 0, least=1, most=EXPIRY_MAX)
    expires = timedelta(seconds=seconds) if seconds else None
    found = await run.checkpoint(expires=expires)
    return Response(found.to_json(), media_type="application/json")


async def bring(context: Visit) -> Response:
    """Go on from a checkpoint; a run that is not known here is taken in.

    For operators, and only with a signature unless the app allows otherwise: the journal in
    the text says who did what, and the operator who sends it could have written it.
    """
    body = await context.body(CheckpointBody)
    mid = context.lobby.mid
    brought = mid.checkpoint_in(msgspec.json.encode(body.checkpoint))
    context.audit.target = brought.run
    if not brought.signed and not context.lobby.unsigned_checkpoints:
        raise CheckpointRefused("checkpoint_unsigned", "this server takes signed ones only")
    run = await mid.resume(
        brought,
        body.answer,
        instruction=body.instruction or None,
        caps=body.caps.given(),
        actor=context.actor,
        request_id=context.request_id(),
    )
    return await created(context, run)


async def export(context: Visit) -> Response:
    """Return the journal, line by line as it is stored: what the chain was computed over."""
    run = await context.run()
    pairs = await context.lobby.store.lines(run.id)
    return Response(
        b"".join(line + b"\n" for line, _ in pairs), media_type="application/x-ndjson"
    )
