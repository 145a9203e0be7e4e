"""Commands that ask something of a run."""

from argparse import Namespace

from midrun.cli.finding import find
from midrun.cli.saying import Sayer, receipt_line
from midrun.codec.strict import parse
from midrun.core.values import Json, UndoSet, When
from midrun.embed.midrun import Midrun
from midrun.embed.receipt import Receipt
from midrun.errors import Misconfigured, NotJson


async def pause(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Pause a run."""
    run = await find(midrun, args.run)
    return _told(say, "pause", await run.pause(now=args.now, actor=args.actor))


async def resume(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Resume a run."""
    run = await find(midrun, args.run)
    return _told(say, "resume", await run.resume(args.text, actor=args.actor))


async def redirect(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Redirect a run."""
    run = await find(midrun, args.run)
    when: When = "now" if args.now else "next_step"
    return _told(say, "redirect", await run.redirect(args.text, when=when, actor=args.actor))


async def say_to(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Speak to a run."""
    run = await find(midrun, args.run)
    return _told(say, "say", await run.say(args.text, urgency=args.urgency, actor=args.actor))


async def cancel(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Cancel a run."""
    run = await find(midrun, args.run)
    undo: UndoSet = "all" if args.undo_all else "in_flight"
    receipt = await run.cancel(undo=undo, reason=args.reason, actor=args.actor)
    return _told(say, "cancel", receipt)


async def answer(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Answer a question."""
    run, ask = _ask(args.ask)
    handle = await find(midrun, run)
    receipt = await handle.answer(_value(args.value), ask=ask, actor=args.actor)
    return _told(say, "answer", receipt)


async def approve(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Approve a call."""
    run, ask = _ask(args.ask)
    edited = None if args.args is None else parse(args.args)
    handle = await find(midrun, run)
    return _told(say, "approve", await handle.approve(ask=ask, args=edited, actor=args.actor))


async def decline(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Decline a call."""
    run, ask = _ask(args.ask)
    handle = await find(midrun, run)
    return _told(say, "decline", await handle.decline(args.reason, ask=ask, actor=args.actor))


async def halt(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Set a latch."""
    await midrun.halt(args.reason, scope=args.scope, actor=f"operator:{args.actor}")
    say.say(
        {"halted": args.scope},
        f"halted {args.scope}; lift it with: midrun lift --scope {args.scope}",
    )
    return 0


async def lift(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Lift a latch."""
    lifted = await midrun.lift(scope=args.scope, actor=f"operator:{args.actor}")
    text = f"lifted {args.scope}" if lifted else f"no latch held {args.scope}"
    say.say({"lifted": lifted}, text)
    return 0 if lifted else 1


def _told(say: Sayer, name: str, receipt: Receipt) -> int:
    say.say(receipt, receipt_line(say, name, receipt))
    return 0


def _ask(given: str) -> tuple[str, str]:
    run, slash, ask = given.rpartition("/")
    if not slash:
        raise Misconfigured(given, "name it as `midrun asks` prints it: RUN/ASK")
    return run, ask


def _value(text: str) -> Json:
    """Return JSON where it is JSON, and the plain text where it is not."""
    try:
        return parse(text)
    except NotJson:
        return text
