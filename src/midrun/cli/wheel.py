"""Commands of a person who takes an agent's place for a while."""

from argparse import Namespace

from midrun.cli.apps import agents_of
from midrun.cli.finding import find
from midrun.cli.opening import opened
from midrun.cli.saying import Sayer
from midrun.cli.steering import told
from midrun.codec.strict import parse
from midrun.errors import Misconfigured
from midrun.handles.interface import AnyMidrun


async def take_over(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Become the assistant."""
    run = await find(midrun, args.run)
    return await told(midrun, args, say, run, await run.take_over(actor=args.actor))


async def write(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Say something as the assistant."""
    run = await find(midrun, args.run)
    return await told(midrun, args, say, run, await run.write(args.text, actor=args.actor))


async def use_tool(args: Namespace, say: Sayer) -> int:
    """Make a call as the assistant; only who knows the agent can say what its tools take."""
    if args.app and args.url:
        raise Misconfigured("--app", "a server knows its agents; leave --app out")
    agents = agents_of(args.app) if args.app else ()
    async with opened(args, agents, drive=False) as midrun:
        run = await find(midrun, args.run)
        receipt = await run.use_tool(args.tool, parse(args.args), actor=args.actor)
        return await told(midrun, args, say, run, receipt)


async def hand_back(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Return the run to its agent."""
    run = await find(midrun, args.run)
    return await told(midrun, args, say, run, await run.hand_back(args.text, actor=args.actor))
