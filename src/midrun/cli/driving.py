"""Commands that drive: `run` and `worker`."""

import signal
from argparse import Namespace
from typing import Final

import anyio

from midrun.agents.outcome import Cancelled, Completed, Failed, Outcome
from midrun.cli.apps import agents_of
from midrun.cli.saying import Sayer, item_line
from midrun.driver.live import Delta
from midrun.embed.midrun import Midrun
from midrun.embed.run import Run
from midrun.errors import ControlRefused, Misconfigured

PAUSED: Final = 75
CODES: Final[dict[type[Outcome], int]] = {Completed: 0, Failed: 1, Cancelled: 3}


async def run(args: Namespace, say: Sayer) -> int:
    """Start a run and show it until it rests; an interrupt pauses it."""
    agents = agents_of(args.app)
    name = args.agent or agents[0].name
    if args.agent is None and len(agents) > 1:
        names = ", ".join(agent.name for agent in agents)
        raise Misconfigured(args.app, f"has several agents, choose with --agent: {names}")
    async with Midrun(args.store, agents=agents) as midrun:
        started = await midrun.start(name, args.task, actor=args.actor)
        if not say.as_json:
            say.text(f"{started.id}  (pause it from anywhere: midrun pause {started.id})")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pause_when_interrupted, started, args.actor)
            await _show(started, say)
            outcome = await started.result()
            tasks.cancel_scope.cancel()
        say.say(outcome, str(outcome))
        code = CODES.get(type(outcome), PAUSED)
        if code == PAUSED and not say.as_json:
            say.text(f"resume with: midrun resume {started.id}")
        return code


async def _show(run: Run, say: Sayer) -> None:
    """Print what happens until the run rests."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            async for item in run.feed():
                text = item_line(item)
                if text is not None or (say.as_json and not isinstance(item, Delta)):
                    say.say(item, text or "")

        tasks.start_soon(watch)
        await run.result()
        tasks.cancel_scope.cancel()


async def _pause_when_interrupted(run: Run, actor: str) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            try:
                await run.pause(actor=actor, reason="interrupted at the terminal")
            except ControlRefused:
                return


async def serve(args: Namespace, say: Sayer) -> int:
    """Serve an app over HTTP until interrupted."""
    try:
        from midrun.server import serve as listen  # noqa: PLC0415 - only those who serve need it
    except ImportError as error:
        raise Misconfigured("midrun serve", f"install midrun[server] ({error})") from error
    midrun = Midrun(args.store, agents=agents_of(args.app))
    await listen(midrun, host=args.host, port=args.port, token=args.token, say=say.text)
    return 0


async def worker(args: Namespace, say: Sayer) -> int:
    """Drive the runs of an app until interrupted."""
    agents = agents_of(args.app)
    async with Midrun(args.store, agents=agents):
        names = ", ".join(agent.name for agent in agents)
        say.say(
            {"driving": names}, f"driving the runs of {names} in {args.store}; Ctrl-C to leave"
        )
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break
    say.say({"left": True}, "stood down: the runs go on wherever a driver takes them next")
    return 0
