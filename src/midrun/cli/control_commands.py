"""Commands that send a control to a run, decide an ask, or set and lift a halt.

`send_control` is the function of all controls: it finds the run, makes the body from the
arguments as the control's spec says, sends it, and prints the receipt. A receipt says that the
control is in the journal; it may not be applied yet. The arguments of `use-tool` are checked
against the tool's schema, so this process needs the agent's code (`--app`) unless a server has
it.
"""

from argparse import Namespace
from typing import Final

from midrun.cli.hints import format_command, print_worker_hint
from midrun.cli.output import CommandOutput, format_receipt
from midrun.cli.targets import find_ask, find_run
from midrun.core.values import Json
from midrun.errors import ControlRefused
from midrun.runs.control_specs import CONTROL_SPECS, ControlSpec, ControlTarget
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.validation import ActorLike, ControlOptions
from midrun.runs.values import Receipt

SPECS_BY_COMMAND: Final = {spec.command_name: spec for spec in CONTROL_SPECS}


async def send_control(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Send the control that the command names, and print its receipt."""
    spec = SPECS_BY_COMMAND[args.command]
    target = await _find_target(midrun, spec, args)
    body = spec.read_body(args)
    actor = _make_operator_actor(args) if spec.command.as_operator else args.actor
    receipt = await spec.send(target, body, ControlOptions(actor=actor, reason=body.reason))
    return await print_receipt(midrun, args, out, target.run, receipt)


async def _find_target(midrun: AnyMidrun, spec: ControlSpec, args: Namespace) -> ControlTarget:
    """Return the run of the command, and the ask, topic or request that it names."""
    if spec.route.part == "ask":
        run, ask = await find_ask(midrun, args.ask)
        return ControlTarget(run, ask or "")
    run = await find_run(midrun, args.run)
    match spec.route.part:
        case "frame":
            return ControlTarget(run, args.frame or await _find_top_frame(run, spec.name))
        case "command":
            seq = args.seq if args.seq is not None else await _find_newest_request(run)
            return ControlTarget(run, str(seq))
        case _:
            return ControlTarget(run)


async def _find_top_frame(run: AnyRun, control: str) -> str:
    view = await run.view()
    if not view.frames:
        raise ControlRefused(run.id, control, "no_such_frame", view.phase, view.allowed)
    return view.frames[-1].id


async def _find_newest_request(run: AnyRun) -> int:
    view = await run.view()
    if not view.pending:
        detail = "`resume` withdraws a pending pause."
        raise ControlRefused(
            run.id, "withdraw", "not_pending", view.phase, view.allowed, detail=detail
        )
    return view.pending[-1].seq


async def fork(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Fork a run: continue from a boundary in a new run."""
    run = await find_run(midrun, args.run)
    forked = await run.fork(args.at, instruction=args.text, actor=args.actor)
    view = await forked.view()
    shape = {"run_id": forked.id, "control": "fork", "of": run.id, "phase": view.phase}
    out.write(shape, f"{forked.id}", f"it continues {run.id}, which does not change")
    await print_worker_hint(midrun, view, args, out)
    return 0


async def halt(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Set a halt."""
    tenant = args.tenant
    await midrun.halt(
        args.reason, scope=args.scope, tenant=tenant, actor=_make_operator_actor(args)
    )
    words = ("lift", "--scope", args.scope, *(("--tenant", tenant) if tenant else ()))
    where = f"{args.scope} of tenant {tenant}" if tenant else args.scope
    out.write(
        {"halted": args.scope},
        f"halted {where}; lift it with: {format_command(args, *words)}",
    )
    return 0


async def lift(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Lift a halt."""
    lifted = await midrun.lift(
        scope=args.scope, tenant=args.tenant, actor=_make_operator_actor(args)
    )
    text = f"lifted {args.scope}" if lifted else f"no halt is set for the scope {args.scope}"
    out.write({"lifted": lifted}, text)
    return 0 if lifted else 1


def _make_operator_actor(args: Namespace) -> ActorLike:
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
        out.write_json({"run_id": run.id, "control": control, **_make_receipt_fields(receipt)})
        return 0
    # The receipt says whether the control was applied. Only the view says whether the worker
    # that should apply it is alive.
    view = await run.view()
    out.write_line(format_receipt(name, receipt, lost=view.status.style == "lost"))
    await print_worker_hint(midrun, view, args, out)
    return 0


def _make_receipt_fields(receipt: Receipt) -> dict[str, Json]:
    """Return all fields, including empty ones, which msgspec would leave out."""
    return {name: getattr(receipt, name) for name in receipt.__struct_fields__}
