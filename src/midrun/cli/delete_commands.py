"""Commands that delete runs.

The command says what it would delete and asks, unless it has `--yes`. Without a terminal it
cannot ask, so it needs `--yes` there.
"""

import sys
from argparse import Namespace
from datetime import timedelta

import anyio

from midrun.cli.output import CommandOutput
from midrun.cli.targets import find_run
from midrun.driver.deletion import parse_age
from midrun.errors import Misconfigured
from midrun.runs.protocols import AnyMidrun
from midrun.runs.validation import SelectionOptions


async def delete(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Delete one run, or all runs that match the options."""
    selected = _read_selection(args)
    has_filter = any(value is not None for value in selected.values())
    if (args.run is not None) == has_filter:
        problem = (
            "needs RUN, or at least one of --thread, --user, --agent, --label, --tenant, "
            "--older-than"
        )
        raise Misconfigured("delete", f"{problem}; not both")
    # A server takes the actor from the token.
    actor = f"operator:{args.actor}" if args.actor else None
    if args.run is not None:
        run = await find_run(midrun, args.run)
        if not await _confirm(args, f"Delete run {run.id} and its child runs"):
            return 1
        erasure = await run.delete(args.reason, actor=actor)
        out.write(erasure, f"run {erasure.run_id}: {erasure}")
        return 0
    found = await midrun.count_deletable(**selected)
    kept = f" ({found.alive} more have not ended and are kept)" if found.alive else ""
    if not found.runs:
        out.write({"deleted": 0}, f"no run to delete{kept}")
        return 0
    if not await _confirm(args, f"Delete {found.runs} runs and their child runs{kept}"):
        return 1
    deleted = await midrun.delete_runs(**selected, reason=args.reason, actor=actor)
    out.write({"deleted": deleted}, f"deleted {deleted} runs, child runs included{kept}")
    return 0


def _read_selection(args: Namespace) -> SelectionOptions:
    age = None if args.older_than is None else _parse_older_than(args.older_than)
    return SelectionOptions(
        thread=args.thread,
        user=args.user,
        agent=args.agent,
        label=args.label,
        tenant=args.tenant,
        older_than=age,
    )


def _parse_older_than(text: str) -> timedelta:
    try:
        return parse_age(text)
    except Misconfigured as error:
        raise Misconfigured("--older-than", error.problem) from None


async def _confirm(args: Namespace, question: str) -> bool:
    """Ask on the terminal; return whether the answer is yes.

    Raises:
        Misconfigured: there is no terminal to ask on.
    """
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise Misconfigured("delete", f"{question}? There is no terminal to ask on; pass --yes")
    sys.stderr.write(f"{question}? This cannot be undone. [y/N] ")
    sys.stderr.flush()
    # Not in a thread: Ctrl-C could not stop it, and the command would wait for Enter.
    await anyio.wait_readable(sys.stdin)
    answer = sys.stdin.readline()
    return answer.strip().lower() in {"y", "yes"}
