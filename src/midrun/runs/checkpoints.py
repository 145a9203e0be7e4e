"""Checkpoints of a run with its child runs: collect them, check them, import them, resume.

A checkpoint always holds a whole family: a run, its child runs and theirs. If a child were left
out, the parent would start it again in the new store and repeat its effects.

A checkpoint may come from an untrusted writer, so an import checks more than the signature:
`check_agents` compares the fingerprints of the agents, and `check_approval_rules` refuses a
journal in which a pending call needs less approval than its tool declares in this process.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import PauseHere
from midrun.agents.checkpoint import Checkpoint, ChildJournal
from midrun.codec.hash_chain import UNKEYED_CHAIN
from midrun.codec.journal import decode_line
from midrun.codec.safe_repr import safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core import controls as c
from midrun.core.entries import RunImported
from midrun.core.evolve import apply_entries
from midrun.core.files import iter_file_refs
from midrun.core.ids import RunId, Seq, parse_call_number
from midrun.core.run_head import build_head
from midrun.core.state import Ask, CallState, State, iter_child_ids
from midrun.core.step_boundary import make_approval_ask
from midrun.core.transitions import list_possible_controls
from midrun.core.values import DRIVABLE_PHASES, TERMINAL_PHASES, Actor, Json, Phase, Traits
from midrun.driver.journal_writer import load_run_state
from midrun.errors import (
    CheckpointRefused,
    ControlRefused,
    FileMissing,
    RunExists,
    RunNotFound,
)
from midrun.ports.store import Store
from midrun.runs.validation import check_text, convert_caps
from midrun.stores.encryption import read_decrypted_lines, read_unkeyed_lines

FILE_MARK: Final = b'"media_type":'
"""A part of every stored line that names a file."""

JournalLines: TypeAlias = tuple[tuple[bytes, bytes], ...]
Family: TypeAlias = Sequence[tuple[ChildJournal, State]]


async def load_child_journals(store: Store, state: State) -> list[tuple[RunId, JournalLines]]:
    """Return the journals of all child runs of a run, and of their child runs.

    Raises:
        CheckpointRefused: `checkpoint_invalid`: one of them is not at rest.
    """
    journals: list[tuple[RunId, JournalLines]] = []
    queue = list(iter_child_ids(state))
    while queue:
        run = queue.pop(0)
        try:
            child = await load_run_state(store, run)
        except RunNotFound:
            # The parent has journaled the call, but its worker died before it created the
            # child run. An empty journal says so; the next worker creates the run.
            journals.append((run, ()))
            continue
        if child.phase in DRIVABLE_PHASES:
            problem = f"child run {run} is {child.phase}; wait until it is at rest"
            raise CheckpointRefused("checkpoint_invalid", problem)
        # Only entries up to the state that was checked: the child may have advanced since.
        journals.append((run, await read_unkeyed_lines(store, run, limit=child.seq)))
        queue += iter_child_ids(child)
    return journals


CHECKPOINT_FILES_MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of files in a checkpoint, which as base64 are less than a checkpoint may have."""


async def load_checkpoint_files(
    store: Store, journals: Iterable[tuple[RunId, JournalLines]]
) -> dict[str, bytes]:
    """Return the files that the journals name, by hash.

    Files beyond `CHECKPOINT_FILES_MAX_BYTES` are left out: the checkpoint can then only be
    imported by a store that has them.
    """
    found: dict[str, bytes] = {}
    left = CHECKPOINT_FILES_MAX_BYTES
    for run, pairs in journals:
        for line, _ in pairs:
            if FILE_MARK not in line:  # most lines name no file, and need not be decoded
                continue
            for ref in iter_file_refs(decode_line(line, run=run).entry):
                if ref.hash not in found and ref.size <= left:
                    found[ref.hash] = await store.read_file(run, ref.hash)
                    left -= ref.size
    return found


async def find_active_child(store: Store, state: State) -> RunId | None:
    """Return the first child run that is not at rest, or None."""
    queue = list(iter_child_ids(state))
    while queue:
        try:
            child = await load_run_state(store, queue.pop(0))
        except RunNotFound:
            continue
        if child.phase in DRIVABLE_PHASES:
            return child.run
        queue += iter_child_ids(child)
    return None


def check_agents(family: Family, agents: Mapping[str, Agent]) -> None:
    """Check that this process has the same agent for every child that can continue.

    Raises:
        CheckpointRefused: `agent_mismatch`: an agent is missing or was changed.
    """
    for child, state in family:
        name, fingerprint = state.run_started.agent, state.run_started.agent_fingerprint
        agent = agents.get(name)
        if state.phase in TERMINAL_PHASES:
            continue
        if agent is None or agent.fingerprint != fingerprint:
            problem = f"agent {name!r} of child run {child.run} is missing here, or was changed"
            raise CheckpointRefused("agent_mismatch", problem)
        check_approval_rules(agent, state)


def check_tenants(checkpoint: Checkpoint, known: State | None, by: Actor) -> None:
    """Refuse a checkpoint with a run of another tenant than that of `by`.

    Raises:
        CheckpointRefused: `tenant_mismatch`.
        RunNotFound: the store has the run, in another tenant.
    """
    if not by.tenant:
        return
    states = [checkpoint.state(), *(child for _, child in checkpoint.family())]
    if any(state.run_started.tenant != by.tenant for state in states):
        detail = f"it has a run of another tenant than {by.tenant}"
        raise CheckpointRefused("tenant_mismatch", detail)
    if known is not None and known.run_started.tenant != by.tenant:
        raise RunNotFound(known.run)


def check_approval_rules(agent: Agent, state: State) -> None:
    """Check that pending calls and the stop are as strict as `agent` declares them here.

    The traits of a call, and the audience of its ask, are stored in the journal. The writer of
    a checkpoint could remove the approval of a pending call, address its ask to another role,
    or name a custom stop condition, which would import any module of this process.

    Raises:
        CheckpointRefused: `agent_mismatch`, with the call, the ask or the condition.
    """
    if name := agent.find_undeclared_stop(state.stop):
        problem = f"its stop condition {name} is not in the stop of agent {agent.name!r}"
        raise CheckpointRefused("agent_mismatch", problem)
    asks = [state.asks[n - 1] for n in state.open_asks]
    # Every call that may still start: open ones, those of held topics, those with an ask.
    asked = (parse_call_number(ask.call) for ask in asks)
    for number in {*state.open_and_parked_calls, *asked}:
        call = state.calls[number - 1]
        if _is_weaker(call.traits, _find_declared_traits(agent, call)):
            problem = f"{call.id} has another approval than its tool {call.use.tool} declares"
            raise CheckpointRefused("agent_mismatch", problem)
    for ask in (ask for ask in asks if ask.ask_kind == "approval"):
        # The ask must be the one that the runtime itself would make for this call.
        expected = make_approval_ask(
            state.calls[parse_call_number(ask.call) - 1], ask.id, state.at
        )
        fields = (ask.audience, ask.four_eyes, ask.args_hash)
        if fields != (expected.audience, expected.four_eyes, expected.args_hash):
            problem = f"{ask.id} has another audience or other arguments than its tool declares"
            raise CheckpointRefused("agent_mismatch", problem)


def _find_declared_traits(agent: Agent, call: CallState) -> Traits:
    """Return the traits that the agent's tool declares for `call`; the default without one."""
    tool, args = agent.find_tool(call.use.tool), call.use.args
    if tool is None or not isinstance(args, dict):
        return Traits()
    try:
        return tool.traits_for(args)
    except (Exception, PauseHere) as error:
        problem = f"{call.id} ({call.use.tool}): its approve function raised {safe_str(error)}"
        raise CheckpointRefused("agent_mismatch", problem) from error


def _is_weaker(stored: Traits, declared: Traits) -> bool:
    """Tell whether `stored` traits require less approval than `declared` ones."""
    if not declared.approve:
        return False
    other_audience = stored.audience != declared.audience
    lacks_four_eyes = declared.four_eyes and not stored.four_eyes
    return not stored.approve or other_audience or lacks_four_eyes


async def load_state(store: Store, run: RunId) -> State | None:
    """Return the state of `run`, or None if the store does not have it."""
    try:
        return await load_run_state(store, run)
    except RunNotFound:
        return None


def make_import_entry(checkpoint: Checkpoint, by: Actor, kid: str) -> RunImported:
    """Return the entry that records the import of `checkpoint` by an actor.

    `kid` names the key with which the signature was checked; "" if it was not checked.
    """
    return RunImported(
        checkpoint=checkpoint.run,
        head=checkpoint.head_hash,
        kid=kid,
        by=by.name,
        role=by.role,
    )


async def read_heads(store: Store, run: RunId) -> tuple[tuple[Seq, bytes], ...]:
    """Return the chain heads at which a checkpoint of `run` is not stale, newest first.

    Each is a seq with a hash. A checkpoint names its head by a hash without the store's key, so
    the hash is computed from the lines here, not taken from the row.
    """
    lines = [line for line, _ in await read_decrypted_lines(store, run)]
    newest = (Seq(len(lines)), UNKEYED_CHAIN.compute_head(run, lines))
    last = decode_line(lines[-1], run=run).entry
    if isinstance(last, RunImported):
        # The run was imported and nothing has happened since. The journal is one entry longer
        # than the checkpoint, which can still be resumed.
        return newest, (Seq(len(lines) - 1), bytes.fromhex(last.head))
    return (newest,)


async def import_family(
    store: Store, checkpoint: Checkpoint, family: Family, imported: RunImported
) -> bool:
    """Import a run and its child runs into the store.

    Return False if another process imported the run first. It may be driven there already.

    Raises:
        CheckpointRefused: `stale_checkpoint`: the store has one of the children, with a journal
            that has advanced.
    """

    async def adopt(member: ChildJournal | Checkpoint, state: State) -> None:
        entry = replace(imported, head=member.head_hash)
        head = build_head(apply_entries(state, [entry]))
        try:
            await store.adopt(
                member.run, member.journal, entry, head=head, files=dict(checkpoint.files)
            )
        except FileMissing as missing:
            problem = f"it lacks the file {missing.hash[:12]}, and so does this store"
            raise CheckpointRefused("checkpoint_invalid", problem) from missing
        except ValueError as error:  # the bytes of a file do not have its hash
            raise CheckpointRefused("checkpoint_invalid", str(error)) from error

    # Each import is a transaction of its own. The children come first: as soon as the parent
    # is in the store a worker may drive it, and it would start a missing child anew. After a
    # crash in between, the next resume finds the imported children and continues.
    for child, state in family:
        try:
            await adopt(child, state)
        except RunExists:
            heads = await read_heads(store, child.run)
            if child.head_hash not in {head.hex() for _, head in heads}:
                problem = f"child run {child.run} is at seq {heads[0][0]}"
                raise CheckpointRefused("stale_checkpoint", problem) from None
    try:
        await adopt(checkpoint, checkpoint.state())
    except RunExists:
        return False
    return True


# Resume from a checkpoint: translate an answer and an instruction to controls.


def make_resume_controls(
    state: State,
    answer: Json,
    instruction: str | None,
    *,
    caps: dict[str, float],
    by: Actor,
) -> tuple[c.Control, ...]:
    """Return the controls that continue a parked run, in order.

    An answer needs exactly one open ask. For a question, the answer becomes the result of the
    call. For an approval it is True or False, or `{"approved": …, "args": …, "reason": …}`. For
    an unsure call it is "yes", "no" or "unknown".

    Raises:
        ControlRefused: The run waits for an answer and none is given; or an answer is given
            and no ask is open, or several are.
    """
    controls: list[c.Control] = []
    if answer is not None:
        controls.append(_make_decision(_require_single_ask(state), normalize_json(answer), by))
    instruction = check_text("instruction", instruction or "")
    # A waiting run continues by its answer; it cannot be resumed. An instruction for it is a
    # redirect.
    if state.phase is not Phase.WAITING:
        controls.append(c.Resume(instruction=instruction, caps=convert_caps(caps), by=by))
    elif instruction:
        controls.append(c.Redirect(text=instruction, by=by))
    if not controls:
        raise ControlRefused(state.run, "resume", "answer_needed", state.phase, ("answer",))
    return tuple(controls)


def _require_single_ask(state: State) -> Ask:
    if len(state.open_asks) == 1:
        return state.asks[state.open_asks[0] - 1]
    reason = "several_asks_open" if state.open_asks else "no_such_ask"
    raise ControlRefused(
        state.run, "answer", reason, state.phase, list_possible_controls(state)
    )


def _make_decision(ask: Ask, answer: Json, by: Actor) -> c.Control:
    # An unsure call is answered with a word; accept a bool, too.
    if ask.effective_kind == "unsure" and isinstance(answer, bool):
        return c.Answer(ask=ask.id, value="yes" if answer else "no", by=by)
    if ask.effective_kind != "approval":
        return c.Answer(ask=ask.id, value=answer, by=by)
    decision = answer if isinstance(answer, dict) else {"approved": answer}
    # Only True approves. Any other value, such as "yes" or 1, declines.
    if decision.get("approved") is True:
        return c.Approve(ask=ask.id, args=decision.get("args"), by=by)
    return c.Decline(ask=ask.id, reason=str(decision.get("reason", "")), by=by)
