"""Families: a run goes into a checkpoint, and comes out of it, with all its child runs.

A child that was left behind would be begun anew where its parent goes on, and do again what it
had done.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint, ChildJournal
from midrun.agents.human import PauseHere
from midrun.codec.hash_chain import PLAIN
from midrun.codec.journal import decode_line
from midrun.codec.safe_repr import safe_str
from midrun.codec.strict_json import checked
from midrun.core import controls as c
from midrun.core.child_runs import children_of
from midrun.core.entries import RunImported
from midrun.core.evolve import apply
from midrun.core.ids import RunId, Seq, number_of
from midrun.core.run_head import head_of
from midrun.core.state import Ask, Call, State
from midrun.core.step_boundary import approval
from midrun.core.transitions import possible
from midrun.core.values import DRIVABLE, TERMINAL, Actor, Json, Phase, Traits
from midrun.driver.journal_writer import load
from midrun.errors import CheckpointRefused, ControlRefused, RunExists, RunNotFound
from midrun.ports.store import Store
from midrun.runs.validation import counted, text

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
        if state.phase in TERMINAL:
            continue
        if agent is None or agent.fingerprint != made_by:
            problem = f"{name!r} of child run {child.run} is another one now, or not known here"
            raise CheckpointRefused("agent_mismatch", problem)
        check_gates(agent, state)


def check_gates(agent: Agent, state: State) -> None:
    """Refuse a journal that asks for less than the agent's tools and stop declare here.

    What a call needs and who may approve it are stored in the journal. The writer of a
    checkpoint could leave the approval of a pending call out, address the ask to another
    role, or name a stop condition in any module of this process.

    Raises:
        CheckpointRefused: `agent_mismatch`, with the call, the ask or the condition.
    """
    if name := agent.find_undeclared_stop(state.stop):
        problem = f"its stop condition {name} is not in the stop of agent {agent.name!r}"
        raise CheckpointRefused("agent_mismatch", problem)
    asks = [state.asks[n - 1] for n in state.open_asks]
    parked = (n for frame in state.frames for n in frame.parked)
    for number in {*state.open, *parked, *(number_of(ask.call) for ask in asks)}:
        call = state.calls[number - 1]
        if _is_weaker(call.traits, _find_declared_traits(agent, call)):
            problem = f"{call.id} has another approval than its tool {call.use.tool} declares"
            raise CheckpointRefused("agent_mismatch", problem)
    for ask in (ask for ask in asks if ask.ask_kind == "approval"):
        right = approval(state.calls[number_of(ask.call) - 1], ask.id, state.at)
        fields = (ask.audience, ask.four_eyes, ask.args_hash)
        if fields != (right.audience, right.four_eyes, right.args_hash):
            problem = f"{ask.id} has another audience or other arguments than its tool declares"
            raise CheckpointRefused("agent_mismatch", problem)


def _find_declared_traits(agent: Agent, call: Call) -> Traits:
    """Return the traits that the tool of a pending call declares; none without a tool."""
    tool, args = agent.tools.get(call.use.tool), call.use.args
    if tool is None or not isinstance(args, dict):
        return Traits()
    try:
        return tool.traits_for(args)
    except (Exception, PauseHere) as error:
        problem = f"{call.id} ({call.use.tool}): its approve function raised {safe_str(error)}"
        raise CheckpointRefused("agent_mismatch", problem) from error


def _is_weaker(stored: Traits, declared: Traits) -> bool:
    """Tell whether a call with the traits `stored` could be made with less than `declared`."""
    if not declared.approve:
        return False
    others = stored.audience != declared.audience
    return not stored.approve or others or (declared.four_eyes and not stored.four_eyes)


async def load_state(store: Store, run: RunId) -> State | None:
    """Return the state of `run`, or None if the store does not have it."""
    try:
        return await load(store, run)
    except RunNotFound:
        return None


def make_import_entry(checkpoint: Checkpoint, by: Actor, kid: str) -> RunImported:
    """Return the entry that records the import of `checkpoint` by an actor.

    `kid` names the key with which the signature was checked; empty: none was.
    """
    return RunImported(
        checkpoint=checkpoint.run,
        head=checkpoint.head_hash,
        kid=kid,
        by=by.name,
        role=by.role,
    )


async def read_heads(store: Store, run: RunId) -> tuple[tuple[Seq, bytes], ...]:
    """Return the heads with which a checkpoint of `run` is not stale, the newest first.

    Heads in checkpoints are made without the store's key. A run that has just been imported
    stands where its checkpoint stands: the entry about the import is the store's own.
    """
    lines = [line for line, _ in await store.lines(run)]
    newest = (Seq(len(lines)), PLAIN.head(run, lines))
    last = decode_line(lines[-1], run=run).entry
    if isinstance(last, RunImported):
        return newest, (Seq(len(lines) - 1), bytes.fromhex(last.head))
    return (newest,)


async def take_in(
    store: Store, checkpoint: Checkpoint, family: Family, imported: RunImported
) -> bool:
    """Import a run and its child runs into the store; the run comes last.

    False: another process took the run in first, and may have gone on with it already.

    Raises:
        CheckpointRefused: `stale_checkpoint`, the store has one of the children, and it has
            gone on.
    """

    async def adopt(one: ChildJournal | Checkpoint, state: State) -> None:
        entry = replace(imported, head=one.head_hash)
        head = head_of(apply(state, [entry]))
        await store.adopt(one.run, one.journal, entry, head=head)

    for child, state in family:
        try:
            await adopt(child, state)
        except RunExists:
            heads = await read_heads(store, child.run)
            if child.head_hash not in {head.hex() for _, head in heads}:
                where = f"child run {child.run} is at seq {heads[0][0]}"
                raise CheckpointRefused("stale_checkpoint", where) from None
    try:
        await adopt(checkpoint, checkpoint.state())
    except RunExists:
        return False
    return True


# Resuming from a checkpoint: which controls an answer and an instruction mean.


def answers(
    state: State,
    answer: Json,
    instruction: str | None,
    *,
    caps: dict[str, float],
    by: Actor,
) -> tuple[c.Control, ...]:
    """Return what to ask of a parked run, in order.

    An answer needs exactly one open ask. To a question it is the result; to an approval True or
    False, or `{"approved": …, "args": …, "reason": …}`; to an unsure call yes, no or unknown.

    Raises:
        ControlRefused: nothing, or more than one thing, was asked.
    """
    wishes: list[c.Control] = []
    if answer is not None:
        wishes.append(_decision(_only(state), checked(answer), by))
    words = text("instruction", instruction or "")
    if state.phase is not Phase.WAITING:
        wishes.append(c.Resume(instruction=words, caps=counted(caps), by=by))
    elif words:
        wishes.append(c.Redirect(text=words, by=by))
    if not wishes:
        raise ControlRefused(state.run, "resume", "answer_needed", state.phase, ("answer",))
    return tuple(wishes)


def _only(state: State) -> Ask:
    if len(state.open_asks) == 1:
        return state.asks[state.open_asks[0] - 1]
    reason = "several_asks_open" if state.open_asks else "no_such_ask"
    raise ControlRefused(state.run, "answer", reason, state.phase, possible(state))


def _decision(ask: Ask, answer: Json, by: Actor) -> c.Control:
    if ask.kind == "unsure" and isinstance(answer, bool):
        return c.Answer(ask=ask.id, value="yes" if answer else "no", by=by)
    if ask.kind != "approval":
        return c.Answer(ask=ask.id, value=answer, by=by)
    said = answer if isinstance(answer, dict) else {"approved": answer}
    if said.get("approved") is True:
        return c.Approve(ask=ask.id, args=said.get("args"), by=by)
    return c.Decline(ask=ask.id, reason=str(said.get("reason", "")), by=by)
