"""Commands that send a control to a run, decide an ask, or set and lift a halt.

Each function finds its run, calls the method of the same name, and prints the receipt with
`print_receipt`. A receipt says that the control is in the journal; it may not be applied yet.
"""

from argparse import Namespace

from midrun.cli.hints import format_command, print_worker_hint
from midrun.cli.output import CommandOutput, format_receipt
from midrun.cli.targets import find_ask, find_run, load_agents, open_target
from midrun.codec.strict_json import parse_json
from midrun.core.stops import CAP_TYPES
from midrun.core.values import Json, RedirectTiming, UndoSet
from midrun.errors import ControlRefused, Misconfigured
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.validation import ActorLike
from midrun.runs.values import Receipt
from midrun.tui.styled_text import parse_typed_value


async def pause(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Pause a run."""
    run = await find_run(midrun, args.run)
    return await print_receipt(
        midrun, args, out, run, await run.pause(now=args.now, actor=args.actor)
    )


async def resume(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Resume a run."""
    run = await find_run(midrun, args.run)
    caps = dict(map(_parse_cap, args.cap)) if args.cap else None
    receipt = await run.resume(args.text, caps=caps, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def redirect(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Redirect a run."""
    run = await find_run(midrun, args.run)
    when: RedirectTiming = "now" if args.now else "next_step"
    receipt = await run.redirect(args.text, when=when, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def say_to(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Send a side question to a run."""
    run = await find_run(midrun, args.run)
    receipt = await run.say(args.text, urgency=args.urgency, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def cancel(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Cancel a run."""
    run = await find_run(midrun, args.run)
    undo: UndoSet = "all" if args.undo_all else "in_flight"
    receipt = await run.cancel(undo=undo, reason=args.reason, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def withdraw(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Withdraw a pending request; without a seq, the newest one."""
    run = await find_run(midrun, args.run)
    seq = args.seq
    if seq is None:
        view = await run.view()
        if not view.pending:
            detail = "`resume` withdraws a pending pause."
            raise ControlRefused(
                run.id, "withdraw", "not_pending", view.phase, view.allowed, detail=detail
            )
        seq = view.pending[-1].seq
    return await print_receipt(
        midrun, args, out, run, await run.withdraw(seq, actor=args.actor)
    )


async def raise_cap(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Raise caps of a run."""
    run = await find_run(midrun, args.run)
    caps: dict[str, float] = dict(map(_parse_cap, args.cap))
    receipt = await run.raise_cap(actor=args.actor, **caps)  # type: ignore[arg-type]  # caps, by name
    return await print_receipt(midrun, args, out, run, receipt)


async def force_pause(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Pause a run without waiting for calls that do not respond."""
    run = await find_run(midrun, args.run)
    return await print_receipt(midrun, args, out, run, await run.force_pause(actor=args.actor))


async def resume_frame(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Return to a held topic."""
    run = await find_run(midrun, args.run)
    frame = await _find_frame(run, args)
    return await print_receipt(
        midrun, args, out, run, await run.resume_frame(frame, actor=args.actor)
    )


async def drop_frame(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Drop a held topic."""
    run = await find_run(midrun, args.run)
    frame = await _find_frame(run, args)
    return await print_receipt(
        midrun, args, out, run, await run.drop_frame(frame, actor=args.actor)
    )


async def retry_undo(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Retry the undos that failed."""
    run = await find_run(midrun, args.run)
    return await print_receipt(
        midrun, args, out, run, await run.retry_undo(actor=_operator_actor(args))
    )


async def accept_residue(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Accept the effects that could not be undone."""
    run = await find_run(midrun, args.run)
    return await print_receipt(
        midrun, args, out, run, await run.accept_residue(actor=_operator_actor(args))
    )


async def fork(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Fork a run: continue from a boundary in a new run."""
    run = await find_run(midrun, args.run)
    forked = await run.fork(args.at, instruction=args.text, actor=args.actor)
    view = await forked.view()
    shape = {"run_id": forked.id, "control": "fork", "of": run.id, "phase": view.phase}
    out.write(shape, f"{forked.id}", f"it continues {run.id}, which does not change")
    await print_worker_hint(midrun, view, args, out)
    return 0


async def answer(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Answer a question."""
    run, ask = await find_ask(midrun, args.ask)
    receipt = await run.answer(parse_typed_value(args.value), ask=ask, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def approve(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Approve a call."""
    run, ask = await find_ask(midrun, args.ask)
    edited = None if args.args is None else parse_json(args.args)
    receipt = await run.approve(ask=ask, args=edited, actor=args.actor)
    return await print_receipt(midrun, args, out, run, receipt)


async def decline(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Decline a call."""
    run, ask = await find_ask(midrun, args.ask)
    return await print_receipt(
        midrun, args, out, run, await run.decline(args.reason, ask=ask, actor=args.actor)
    )


async def halt(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Set a halt."""
    await midrun.halt(args.reason, scope=args.scope, actor=_operator_actor(args))
    out.write(
        {"halted": args.scope},
        f"halted {args.scope}; lift it with: "
        f"{format_command(args, 'lift', '--scope', args.scope)}",
    )
    return 0


async def lift(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Lift a halt."""
    lifted = await midrun.lift(scope=args.scope, actor=_operator_actor(args))
    text = f"lifted {args.scope}" if lifted else f"no halt is set for the scope {args.scope}"
    out.write({"lifted": lifted}, text)
    return 0 if lifted else 1


def _operator_actor(args: Namespace) -> ActorLike:
    """Return the actor with the role of an operator; None to let a server decide.

    A user who can open the store directly can change all of it, so no role is checked there.
    A server takes actor and role from the token.
    """
    return f"operator:{args.actor}" if args.actor else None


async def print_receipt(
    midrun: AnyMidrun, args: Namespace, out: CommandOutput, run: AnyRun, receipt: Receipt
) -> int:
    """Print the receipt of a control, and a hint if no worker drives the run."""
    name = args.command
    if out.as_json:
        control = name.replace("-", "_")
        out.write_json({"run_id": run.id, "control": control, **_receipt_fields(receipt)})
        return 0
    # The receipt says whether the control was applied. Only the view says whether the worker
    # that should apply it is alive.
    view = await run.view()
    out.write_line(format_receipt(name, receipt, lost=view.sign.look == "lost"))
    await print_worker_hint(midrun, view, args, out)
    return 0


async def _find_frame(run: AnyRun, args: Namespace) -> str:
    """Return the id of the named topic, or of the topmost one."""
    if args.frame:
        return str(args.frame)
    view = await run.view()
    if not view.frames:
        control = args.command.replace("-", "_")
        raise ControlRefused(run.id, control, "no_such_frame", view.phase, view.allowed)
    return view.frames[-1].id


def _receipt_fields(receipt: Receipt) -> dict[str, Json]:
    """Return all fields, including empty ones, which msgspec would leave out."""
    return {name: getattr(receipt, name) for name in receipt.__struct_fields__}


def _parse_cap(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    if equals and name not in CAP_TYPES:
        raise Misconfigured(text, f"there is no such cap; the caps are: {', '.join(CAP_TYPES)}")
    try:
        return name, float(amount)
    except ValueError:
        expected = "the amount must be a number" if equals else "must be NAME=AMOUNT"
        raise Misconfigured(text, f"{expected}, such as steps=20") from None


# Commands of a user who acts in the agent's place.


async def take_over(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Take a run over from its agent."""
    run = await find_run(midrun, args.run)
    return await print_receipt(midrun, args, out, run, await run.take_over(actor=args.actor))


async def write(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Write a message in the agent's place."""
    run = await find_run(midrun, args.run)
    return await print_receipt(
        midrun, args, out, run, await run.write(args.text, actor=args.actor)
    )


async def use_tool(args: Namespace, out: CommandOutput) -> int:
    """Call a tool in the agent's place.

    The arguments are checked against the tool's schema, so this process needs the agent's code
    (`--app`) unless a server has it.
    """
    if args.app and args.url:
        problem = "cannot be combined with --url: a server has its own agents; leave --app out"
        raise Misconfigured("--app", problem)
    agents = load_agents(args.app) if args.app else ()
    async with open_target(args, agents, drive=False) as midrun:
        run = await find_run(midrun, args.run)
        receipt = await run.use_tool(args.tool, parse_json(args.args), actor=args.actor)
        return await print_receipt(midrun, args, out, run, receipt)


async def hand_back(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Return the run to its agent."""
    run = await find_run(midrun, args.run)
    return await print_receipt(
        midrun, args, out, run, await run.hand_back(args.text, actor=args.actor)
    )
