"""Families: a run goes into a checkpoint, and comes out of it, with all its child runs.

A child that was left behind would be begun anew where its parent goes on, and do again what it
had done.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint, ChildJournal
from midrun.codec.chain import PLAIN
from midrun.core.family import children_of
from midrun.core.head import head_of
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.values import DRIVABLE, TERMINAL
from midrun.driver.journal import load
from midrun.errors import CheckpointRefused, RunExists, RunNotFound
from midrun.ports.store import RunRow, Store

Pairs: TypeAlias = tuple[tuple[bytes, bytes], ...]
Family: TypeAlias = Sequence[tuple[ChildJournal, State]]


async def members(store: Store, state: State) -> list[tuple[RunId, Pairs]]:
    """Return the journals of all child runs of a run, and of theirs.

    Raises:
        CheckpointRefused: `checkpoint_invalid`, one of them is at work.
    """
    found: list[tuple[RunId, Pairs]] = []
    wanted = list(children_of(state))
    while wanted:
        run = wanted.pop(0)
        try:
            child = await load(store, run)
        except RunNotFound:
            found.append((run, ()))  # its process died before it began it
            continue
        if child.phase in DRIVABLE:
            where = f"child run {run} is {child.phase}; wait until it is at rest, too"
            raise CheckpointRefused("checkpoint_invalid", where)
        found.append((run, tuple(await store.lines(run))[: child.seq]))
        wanted += children_of(child)
    return found


async def at_work(store: Store, state: State) -> RunId | None:
    """Return a child run that is not at rest although its parent is, if there is one."""
    wanted = list(children_of(state))
    while wanted:
        try:
            child = await load(store, wanted.pop(0))
        except RunNotFound:
            continue
        if child.phase in DRIVABLE:
            return child.run
        wanted += children_of(child)
    return None


def check_agents(family: Family, agents: Mapping[str, Agent]) -> None:
    """Refuse unless all children that can still go on find their agents as they were.

    Raises:
        CheckpointRefused: `agent_mismatch`, one of them does not.
    """
    for child, state in family:
        name, made_by = state.started.agent, state.started.agent_print
        agent = agents.get(name)
        if state.phase not in TERMINAL and (agent is None or agent.fingerprint != made_by):
            problem = f"{name!r} of child run {child.run} is another one now, or not known here"
            raise CheckpointRefused("agent_mismatch", problem)


async def row_in(store: Store, run: RunId) -> RunRow | None:
    """Return the row of a run; None: the store does not know it."""
    try:
        return await store.row(run)
    except RunNotFound:
        return None


async def take_in(store: Store, checkpoint: Checkpoint, family: Family) -> bool:
    """Have the store know a run and its whole family; the run comes last.

    False: somebody was quicker, and may have gone on with it already.

    Raises:
        CheckpointRefused: `stale_checkpoint`, the store has one of the children, and it has
            gone on.
    """
    for child, state in family:
        try:
            await store.adopt(child.run, child.journal, head=head_of(state))
        except RunExists:
            pairs = await store.lines(child.run)
            if PLAIN.head(child.run, (line for line, _ in pairs)).hex() != child.head_hash:
                where = f"child run {child.run} is at seq {len(pairs)}"
                raise CheckpointRefused("stale_checkpoint", where) from None
    try:
        await store.adopt(checkpoint.run, checkpoint.journal, head=head_of(checkpoint.state()))
    except RunExists:
        return False
    return True
