"""Ask a person from inside a tool: `pause_here`, and the ready-made tool `ask_human`.

`pause_here` raises `PauseHere`, which ends the function. The worker records the question as an
ask, and the run waits without any process. The answer becomes the result of the call. The
function is not called again, unless `PauseHere` carries a continuation (as MCP tools use it).
"""

import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, Final, NoReturn

import msgspec
from msgspec.structs import replace

from midrun.agents.file import File, check_files
from midrun.agents.signature import SchemaArguments
from midrun.agents.tool import TOOL_NAME_PATTERN, Approve, Tool, tool
from midrun.agents.tool_context import Call
from midrun.agents.tool_environment import EnvironmentOption
from midrun.codec.strict_json import normalize_json
from midrun.core.journaled_text import count_plan_items
from midrun.core.values import ClientTool, Effect, Json, PlanItem, PlanItemState, Traits
from midrun.errors import Misconfigured


class PauseHere(BaseException):
    """Ends a tool that asks a person; raised by `pause_here`, caught by the worker.

    It is a `BaseException`, so that `except Exception` in a tool does not catch it.

    The answer becomes the result of the call. With a `continuation`, the tool is called again
    instead, and finds the decision and the continuation in `Call.answered`. The continuation is
    JSON data that is stored with the question and not shown. The person may then also decline.
    """

    def __init__(
        self,
        question: str,
        data: dict[str, Json],
        continuation: Json = None,
        files: Sequence[File] = (),
    ) -> None:
        super().__init__(question, data)
        self.question = question
        self.data = data
        self.continuation = continuation
        self.files = tuple(files)


def pause_here(
    question: str = "", *, files: Sequence[File] | None = None, **data: Json
) -> NoReturn:
    """Ask a person from inside a tool; the answer becomes the result of the tool.

    This function does not return, and the tool is not called again. Do everything else before
    the question.

        @tool
        async def choose_hotel(city: str) -> str:
            offers = await search(city)
            pause_here("Which hotel?", options=[offer.name for offer in offers])

    Args:
        question: The text that the person reads.
        files: Files that the person sees with the question. The answer may have files, too;
            the model reads them with the result of the tool.
        **data: JSON data that is shown with the question. `options` is a list of answers to
            choose from.

    Raises:
        NotJson, TooLarge, Misconfigured: The question, the data or the files cannot be stored.
            The call fails, and no question is asked.
    """
    normalize_json(question, "question")
    shown = {name: normalize_json(value, name) for name, value in data.items()}
    raise PauseHere(question, shown, files=check_files(files))


@tool(read_only=True)
async def ask_human(question: str, options: list[str] | None = None) -> NoReturn:
    """Ask a person a question and wait for the answer.

    Args:
        question: The question, with what the person must know to answer it.
        options: Answers to choose from, if there are few.
    """
    raise PauseHere(question, {"options": options} if options else {})


# Tools of the client, which the first entry of a run declares. A call asks, and the client that
# has the tool answers in place of a person.


def make_client_tool(declared: ClientTool) -> Tool:
    """Return a tool of the client as a tool that asks for its result.

    Raises:
        Misconfigured: A model cannot be offered a tool of this name or with these arguments.
    """
    if not TOOL_NAME_PATTERN.fullmatch(declared.name):
        problem = "must have 1 to 64 letters, digits, _ and -"
        raise Misconfigured(f"tool {declared.name[:80]}", problem)
    arguments = SchemaArguments(declared.schema if isinstance(declared.schema, dict) else {})
    if "why" in arguments.schema["properties"]:  # type: ignore[operator]  # always a dict
        problem = "must have no argument `why`: the name is reserved for the model's reason"
        raise Misconfigured(f"tool {declared.name}", problem)

    async def ask_client(call: Call, /, **arguments: object) -> Json:
        del call, arguments
        pause_here(f"The client makes the call of {declared.name}. Answer with its result.")

    return Tool(
        name=declared.name,
        description=declared.text,
        fn=ask_client,
        arguments=arguments,
        traits=Traits(effect=Effect.READ),
    )


CLIENT_TOOLS_MAX: Final = 64
CLIENT_TOOLS_MAX_BYTES: Final = 64 * 1024
"""The size of all tools of a client: the journal keeps them, and each prompt has them."""


def check_client_tools(declared: Sequence[ClientTool]) -> tuple[ClientTool, ...]:
    """Return the tools of a client if an agent can be given all of them.

    Raises:
        Misconfigured: There are too many, two have one name, or a tool is not valid.
    """
    names = [make_client_tool(each).name for each in declared]
    if len(names) > CLIENT_TOOLS_MAX or len(set(names)) < len(names):
        problem = f"must be at most {CLIENT_TOOLS_MAX} tools with different names"
        raise Misconfigured("client_tools", f"{problem}, got {len(names)}")
    if len(msgspec.json.encode(declared)) > CLIENT_TOOLS_MAX_BYTES:
        problem = f"must have at most {CLIENT_TOOLS_MAX_BYTES} bytes. Shorten the descriptions."
        raise Misconfigured("client_tools", problem)
    return tuple(declared)


# The built-in tool `plan`: the agent's own to-do list, which surfaces show as its progress.
#
# The model calls the tool to set the plan or the states of its items. The worker does not run a
# function for it: it computes the new plan with `apply_plan_call` and journals it, so the plan
# is part of the run's state.
#
# The argument `marks` has the new states (`PlanItem.state`). Its name cannot change: journals
# have it in the arguments of calls, and the schema of the tool is part of the fingerprint of
# every agent, which a checkpoint must match.


def revise_plan(
    plan: Sequence[PlanItem],
    items: Sequence[PlanItem] | None,
    states: Mapping[int, PlanItemState],
) -> tuple[PlanItem, ...]:
    """Replace the items of `plan` if `items` is given, then set `states` by number, from 1.

    Raises:
        ValueError: There is no item with that number. The text is for the model.
    """
    new_plan = list(plan)
    if items is not None:
        # A model that revises its plan often repeats finished items without their states. An
        # item with the same text as before keeps its state, unless a new one is given.
        old_states = {item.text: item.state for item in plan}
        new_plan = [
            replace(item, state=old_states.get(item.text, "queued"))
            if item.state == "queued"
            else item
            for item in items
        ]
    for number, state in states.items():
        if not 0 < number <= len(new_plan):
            raise ValueError(f"the plan has {len(new_plan)} items, and no item {number}")
        new_plan[number - 1] = replace(new_plan[number - 1], state=state)
    return tuple(new_plan)


def apply_plan_call(
    plan: tuple[PlanItem, ...], arguments: dict[str, object]
) -> tuple[PlanItem, ...]:
    """Return the plan after a call of the tool with these arguments.

    Raises:
        ValueError: There is no item with that number. The text is for the model.
    """
    items, states = arguments.get("items"), arguments.get("marks") or {}
    assert isinstance(items, list | None)  # checked by the schema of the tool
    assert isinstance(states, dict)
    new_items = None if items is None else [_make_item(item) for item in items]
    return revise_plan(
        plan, new_items, {_parse_number(key): state for key, state in states.items()}
    )


def format_plan(plan: tuple[PlanItem, ...]) -> str:
    """Return the plan as text: the result of the call, which the model reads."""
    lines = [f"{number}. [{item.state}] {item.text}" for number, item in enumerate(plan, 1)]
    behind, total = count_plan_items(plan)
    at = f"item {min(behind + 1, total)} of {total}" if total else "the beginning"
    return "\n".join([f"You are at {at}.", *lines])


def _make_item(item: str | PlanItem) -> PlanItem:
    return PlanItem(text=item) if isinstance(item, str) else item


def _parse_number(key: str) -> int:
    if not key.isdecimal():
        raise ValueError(f"items are marked by number, from 1; {key!r} is none")
    return int(key)


@tool(name="plan", read_only=True)
async def _plan(
    items: list[str | PlanItem] | None = None, marks: dict[str, PlanItemState] | None = None
) -> str:
    """Keep a plan of the task that people can follow. Set it first, then mark what is done.

    Args:
        items: The whole plan, in order; replaces the one before. Leave out to only mark.
        marks: New marks by number, from 1: {"1": "done", "2": "running"}.
    """
    raise NotImplementedError(f"the driver keeps the plan: {items}, {marks}")


PLAN_TOOL: Tool = _plan
"""The tool. The worker never calls its function; see the module's docstring."""

# `shell`: a ready-made tool that runs command lines.

OUTPUT_MAX_BYTES: Final = 64 * 1024
"""Bytes that are returned of stdout and of stderr. Of a longer output the first and the last
half of this are returned: errors usually stand at the beginning or at the end."""


def shell(
    name: str = "shell",
    *,
    timeout: timedelta | None = None,
    approve: Approve = False,
    env: EnvironmentOption = None,
) -> Tool:
    """Return a tool that runs a command line with `sh`.

    The command runs in the working folder of the worker, with the rights of the worker's user,
    but not with its environment. It is a blocking tool, so it has its own process group. When
    the call is aborted or has ended, all processes of the group are killed, background
    processes included.

    Args:
        name: The name of the tool.
        timeout: A call that takes longer is aborted.
        approve: True: a person approves every command first. A function: called with the
            arguments, it decides.
        env: Environment variables for the command, as in `tool`.
    """
    return tool(run_command, name=name, timeout=timeout, approve=approve, env=env)


def run_command(command: str) -> dict[str, Json]:
    """Run a command line with sh and wait for it. Returns exit_code, stdout and stderr.

    There is no terminal and no input. Background processes end with the command.

    Args:
        command: The command line.
    """
    # Files, not pipes: a pipe that is not read blocks the command when it is full, and one that
    # a background process keeps open would not end.
    with TemporaryFile() as out, TemporaryFile() as err:
        done = subprocess.run(  # noqa: S603 - running the given command is its purpose
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            check=False,
        )
        return {
            "exit_code": done.returncode,
            "stdout": _read_bounded(out),
            "stderr": _read_bounded(err),
        }


def _read_bounded(output: IO[bytes]) -> str:
    size = output.seek(0, 2)
    output.seek(0)
    if size <= OUTPUT_MAX_BYTES:
        return output.read(OUTPUT_MAX_BYTES).decode(errors="replace")
    half = OUTPUT_MAX_BYTES // 2
    first = output.read(half)
    output.seek(-half, 2)
    last = output.read(half)
    # Either half may begin or end within a UTF-8 character; those bytes are replaced.
    left_out = f"\n… {size - 2 * half} bytes left out …\n"
    return first.decode(errors="replace") + left_out + last.decode(errors="replace")
