"""Handlers for forks, checkpoints (export and import) and whole journals."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import anyio.to_thread
import msgspec
from msgspec import Struct
from starlette.responses import Response

from midrun.core.entries import Record
from midrun.core.evolve import fold
from midrun.core.history import is_at_boundary
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import CheckpointRefused
from midrun.runs.control_bodies import make_files
from midrun.server.request_context import RequestContext, json_response
from midrun.server.runs import make_created_response
from midrun.server.schemas import CheckpointBody, ForkBody
from midrun.stores.encryption import read_decrypted_lines

EXPIRY_MAX_S: Final = 10 * 365 * 24 * 3600
"""The longest lifetime of a checkpoint, in seconds; without an expiry it has no end."""


class Boundary(Struct, frozen=True, kw_only=True):
    """A point from which the run can be forked: the last entry with no call under way."""

    seq: Seq
    at: Micros
    step: int
    phase: Phase


class Boundaries(Struct, frozen=True, kw_only=True):
    """Every boundary of a run, in order."""

    items: tuple[Boundary, ...]


async def list_boundaries(context: RequestContext) -> Response:
    """List the boundaries from which the run can be forked."""
    run = await context.find_run()
    records = await context.server.store.read(run.id)
    # Folding a long journal takes a while: in a thread, so that the event loop stays free.
    found = await anyio.to_thread.run_sync(_find_boundaries, run.id, records)
    return json_response(Boundaries(items=found))


def _find_boundaries(run: RunId, records: Sequence[Record]) -> tuple[Boundary, ...]:
    found: list[Boundary] = []
    state, was = State(run=run), False
    for record in records:
        state = fold(run, [record], state)
        now = is_at_boundary(state)
        if now:
            here = Boundary(
                seq=state.seq, at=state.at, step=state.meter.steps, phase=state.phase
            )
            # Of several boundary entries in a row only the last is listed.
            found[-1:] = [here] if was else [*found[-1:], here]
        was = now
    return tuple(found)


async def fork_run(context: RequestContext) -> Response:
    """Fork a new run from a boundary of the run."""
    run = await context.find_run()
    body = await context.decode_body(ForkBody)
    request_id = context.request_id()
    forked = await context.start_within_quotas(
        request_id,
        lambda quotas: run.fork(
            body.seq,
            instruction=body.instruction or None,
            files=make_files(body.files),
            actor=context.actor,
            request_id=request_id,
            quotas=quotas,
        ),
    )
    return await make_created_response(context, forked)


async def export_checkpoint(context: RequestContext) -> Response:
    """Export a parked run as a portable checkpoint, signed if the server has a key."""
    run = await context.find_run()
    seconds = context.read_number("expires_s", 0, minimum=1, maximum=EXPIRY_MAX_S)
    expires = timedelta(seconds=seconds) if seconds else None
    found = await run.checkpoint(expires=expires)
    return Response(found.to_json(), media_type="application/json")


async def import_checkpoint(context: RequestContext) -> Response:
    """Resume from a checkpoint; import the run if it is not known here.

    Only for operators, and only with a signature unless the app allows unsigned ones: the
    checkpoint contains the journal, and the sender of an unsigned one could have forged it.
    """
    body = await context.decode_body(CheckpointBody)
    mid = context.server.mid
    brought = mid.checkpoint_in(msgspec.json.encode(body.checkpoint))
    context.audit.target = brought.run  # recorded even if the import is refused below
    if not brought.signed and not context.server.unsigned_checkpoints:
        problem = "this server accepts only signed checkpoints"
        raise CheckpointRefused("checkpoint_unsigned", problem)
    run = await mid.resume(
        brought,
        body.answer,
        instruction=body.instruction or None,
        caps=body.caps.list_set_caps(),
        actor=context.actor,
        request_id=context.request_id(),
    )
    return await make_created_response(context, run)


async def export_journal(context: RequestContext) -> Response:
    """Export the journal, one line per entry: as it is stored, and decrypted."""
    run = await context.find_run()
    pairs = await read_decrypted_lines(context.server.store, run.id)
    return Response(
        b"".join(line + b"\n" for line, _ in pairs), media_type="application/x-ndjson"
    )
