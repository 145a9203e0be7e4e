"""The table of the tools: names, descriptions, arguments, and the calls of `Midrun` and `Run`.

The arguments of a tool are a msgspec struct. Its JSON schema is shown to clients, and arguments
that do not fit are refused with the name of the field. The struct of a control is made from the
arguments of its command, so a new option of a command is an argument of its tool, too.
"""

import json
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Annotated, Final, Literal, TypeAlias, cast

import anyio
import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from midrun.agents.outcome import AskView
from midrun.core.entries import FramePushed, MessageClosed, MessageTaken
from midrun.core.ids import Seq
from midrun.core.values import Json
from midrun.errors import Misconfigured
from midrun.events import EntryEvent, ReplyFinished
from midrun.runs.control_specs import (
    CONTROL_SPECS,
    CommandArgument,
    CommandGroup,
    ControlSpec,
    ControlTarget,
)
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.validation import ActorLike, ControlOptions
from midrun.runs.values import FeedEntry, Receipt, RunView

TOOL_PREFIX: Final = "midrun_"

TOOL_GROUPS: Final[frozenset[CommandGroup]] = frozenset({"control", "decide"})
"""The groups of commands whose controls are tools. The others are for people at a page or a
terminal: a model would only be confused by nineteen controls."""

TOOL_NAMES: Final = {"say": "ask"}
"""Control → name of its tool, where it has another one."""

JSON_METAVARS: Final = frozenset({"JSON", "VALUE"})
"""Metavars of arguments that a command reads as JSON. A tool takes any JSON value for them."""

WAIT_MAX_S: Final = 3600.0
REPLY_WAIT_S: Final = 20.0
"""Seconds that `midrun_ask` waits for the reply by default."""

RUNS_MAX: Final = 50
ENTRIES_MAX: Final = 200

ID_PATTERN: Final = "[A-Za-z0-9_-]"
END_PATTERN: Final = r"(?![\s\S])"
"""The end of a text, in the regular expressions of Python and of JSON schemas alike. Ids become
parts of a path, and `$` would accept a line feed after them."""

RunName = Annotated[
    str, Meta(pattern=rf"^{ID_PATTERN}{{1,64}}{END_PATTERN}", description="the id of the run")
]
WaitSeconds = Annotated[float, Meta(ge=0, le=WAIT_MAX_S)]


class RunAccess(Struct, frozen=True):
    """The runs that the caller of a request may reach, and the actor of its controls."""

    midrun: AnyMidrun
    actor: ActorLike = None  # None: a server takes the actor from the credential


class ToolArguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of the arguments of a tool."""


class NoArguments(ToolArguments):
    """A tool without arguments."""


class RunArguments(ToolArguments, kw_only=True):
    """A tool that only names a run."""

    run: RunName


class ListRunsArguments(ToolArguments, kw_only=True):
    """A tool that lists runs."""

    phase: Annotated[
        str, Meta(description="only runs in this phase: running, paused, waiting …")
    ] = ""
    agent: Annotated[str, Meta(description="only runs of this agent")] = ""
    thread: Annotated[str, Meta(description="only runs of this conversation")] = ""
    limit: Annotated[int, Meta(ge=1, le=RUNS_MAX, description="the number of runs")] = 10
    cursor: Annotated[str, Meta(description="the `cursor` of the page before")] = ""


class HistoryArguments(RunArguments, kw_only=True):
    """A tool that reads the journal of a run."""

    after: (
        Annotated[
            int, Meta(ge=0, description="only entries after this number; default: the newest")
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=ENTRIES_MAX, description="the number of entries")] = 50


class StartArguments(ToolArguments, kw_only=True):
    """A tool that starts a run."""

    agent: Annotated[str, Meta(description="the name of the agent; midrun_list_agents")]
    task: Annotated[str, Meta(description="the task of the run")]
    thread: Annotated[str, Meta(description="the conversation to continue")] = ""
    labels: Annotated[list[str], Meta(description="labels to find and halt runs by")] = []
    request_id: Annotated[
        str, Meta(description="a repeated call with the same id returns the first run")
    ] = ""
    wait_s: (
        Annotated[
            WaitSeconds,
            Meta(
                description="seconds to wait until the run rests; 0 returns its id at once. "
                "Default: a task, if the client supports tasks, else 0"
            ),
        ]
        | None
    ) = None


class WaitArguments(RunArguments, kw_only=True):
    """A tool that waits for a run."""

    wait_s: (
        Annotated[
            WaitSeconds,
            Meta(
                description="seconds to wait; default: a task, if the client has tasks, else 50"
            ),
        ]
        | None
    ) = None


CallFunction: TypeAlias = Callable[[RunAccess, ToolArguments], Awaitable[dict[str, Json]]]


class RunTool(Struct, frozen=True, kw_only=True):
    """One tool. `call` is None for a tool that may wait; see `run_waits.py`."""

    name: str
    description: str
    arguments: type[ToolArguments]
    call: CallFunction | None = None
    is_read_only: bool = False
    is_destructive: bool = False

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON schema of the arguments."""
        (_,), found = msgspec.json.schema_components([self.arguments])
        schema: dict[str, Json] = found[self.arguments.__name__]
        del schema["title"]
        schema.pop("description", None)  # of the class, for readers of this module
        return schema

    def read_arguments(self, given: object) -> ToolArguments:
        """Return the arguments of a call.

        Raises:
            Misconfigured: They do not fit the schema.
        """
        try:
            return msgspec.convert(given, self.arguments)
        except msgspec.ValidationError as error:
            known = ", ".join(self.arguments.__struct_fields__) or "none"
            problem = f"Cannot read the arguments: {error}. Known arguments: {known}"
            raise Misconfigured(self.name, problem) from None


# ── views ────────────────────────────────────────────────────────────────────────────────────


def describe_status(view: RunView) -> str:
    """Return the status of a run in one line."""
    status = view.status
    return " · ".join(part for part in (status.word, status.by, status.note) if part)


def describe_run(view: RunView) -> dict[str, Json]:
    """Describe a run for a model: its phase, its asks, and the tools that continue it."""
    known = {spec.name: tool.name for spec, tool in _CONTROL_TOOLS}
    fields: dict[str, Json] = {
        "run": view.run_id,
        "agent": view.agent,
        "task": view.task,
        "phase": view.phase.value,
        "status": describe_status(view),
        "position": view.position,
        "plan": [f"{row.text} ({row.style})" for row in view.plan_rows],
        "in_flight": [call.title or call.tool or "the model" for call in view.in_flight],
        "pending": [item.text for item in view.pending],
        "asks": [_describe_ask(ask) for ask in view.asks],
        "tools": [known[name] for name in view.allowed if name in known],
        "thread": view.thread,
        "labels": list(view.labels),
        "tokens": view.usage.tokens,
        "cost": view.usage.cost_text,
        "output": view.output,
        "value": view.value,
        "error": view.error,
    }
    return {name: value for name, value in fields.items() if value not in ("", None, [], 0)}


def _describe_ask(ask: AskView) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "ask": ask.id,
        "kind": ask.effective_kind,
        "question": ask.question,
        "data": ask.data,
        "tool": ask.tool,
        "args": ask.args,
        "title": ask.title,
        "why": ask.why,
        "hidden": ask.hidden,
        "audience": ask.audience,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _describe_receipt(run: AnyRun, control: str, receipt: Receipt) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "run": run.id,
        "control": control,
        "phase": receipt.phase.value,
        "applied": receipt.applied,
        "already": receipt.already,
        "by": receipt.by,
        "acknowledgement": receipt.acknowledgement,
        "seq": receipt.seq,
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}


# ── tools that read ──────────────────────────────────────────────────────────────────────────


async def _list_agents(access: RunAccess, _: ToolArguments) -> dict[str, Json]:
    return {"agents": list(await access.midrun.list_agents())}


async def _list_runs(access: RunAccess, given: ToolArguments) -> dict[str, Json]:
    assert isinstance(given, ListRunsArguments)
    page = await access.midrun.runs(
        phase=given.phase or None,
        agent=given.agent or None,
        thread=given.thread or None,
        limit=given.limit,
        cursor=given.cursor or None,
    )
    rows: list[Json] = [
        {"run": view.run_id, "agent": view.agent, "task": view.task, "phase": view.phase.value}
        for view in page.items
    ]
    return {"runs": rows, "cursor": page.cursor}


async def _show_status(access: RunAccess, given: ToolArguments) -> dict[str, Json]:
    assert isinstance(given, RunArguments)
    return describe_run(await (await access.midrun.get(given.run)).view())


async def _show_report(access: RunAccess, given: ToolArguments) -> dict[str, Json]:
    assert isinstance(given, RunArguments)
    report = await (await access.midrun.get(given.run)).report()
    return {"run": given.run, "clean": report.clean, "report": str(report)}


async def _show_history(access: RunAccess, given: ToolArguments) -> dict[str, Json]:
    assert isinstance(given, HistoryArguments)
    run = await access.midrun.get(given.run)
    newest = (await run.view()).seq
    after = max(newest - given.limit, 0) if given.after is None else given.after
    entries: list[Json] = []
    if after < newest:
        async with aclosing(run.events(after)) as events:
            async for event in events:
                if not isinstance(event, EntryEvent):
                    continue
                line: dict[str, Json] = {"seq": event.seq, "text": event.sentence}
                if isinstance(event, ReplyFinished) and event.reply:
                    line["reply"] = event.reply
                entries.append(line)
                if event.seq >= newest or len(entries) == given.limit:
                    break
    return {"run": given.run, "entries": entries, "newest": newest}


# ── tools that send a control ────────────────────────────────────────────────────────────────


def _make_control_tool(spec: ControlSpec) -> RunTool:
    async def send_control(access: RunAccess, given: ToolArguments) -> dict[str, Json]:
        fields = asdict(given)
        run = await access.midrun.get(fields.pop("run"))
        target = ControlTarget(run, fields.pop("ask", ""))
        wait_s = fields.pop("wait_s", 0.0)
        words = {
            argument: _encode_json_word(fields[argument])
            if _find_metavar(spec, argument) in JSON_METAVARS
            else fields[argument]
            for argument in fields
        }
        body = spec.read_body(Namespace(**words))
        options = ControlOptions(actor=access.actor, reason=body.reason)
        receipt = await spec.send(target, body, options)
        described = _describe_receipt(run, spec.name, receipt)
        if wait_s and (reply := await _wait_for_reply(run, receipt.seq, wait_s)):
            described["reply"] = reply
        return described

    name = TOOL_NAMES.get(spec.name, spec.name)
    summary = spec.command.summary
    return RunTool(
        name=TOOL_PREFIX + name,
        description=f"{summary[0].upper()}{summary[1:]}.",
        arguments=_make_control_arguments(name, spec),
        call=send_control,
        is_destructive=spec.name == "cancel",
    )


def _make_control_arguments(name: str, spec: ControlSpec) -> type[ToolArguments]:
    """Make the struct of the arguments from those of the command."""
    fields: list[tuple[str, object] | tuple[str, object, object]] = [("run", RunName)]
    if spec.route.part == "ask":
        about = "the id of the ask; it may be left out if only one is open"
        pattern = f"^{ID_PATTERN}{{0,64}}{END_PATTERN}"
        fields.append(("ask", Annotated[str, Meta(pattern=pattern, description=about)], ""))
    fields += [_make_field(argument) for argument in spec.command.arguments]
    if spec.name == "say":
        about = "seconds to wait for the reply; 0 returns at once"
        fields.append(("wait_s", Annotated[WaitSeconds, Meta(description=about)], REPLY_WAIT_S))
    made = msgspec.defstruct(
        f"{name.title()}Arguments",
        fields,
        bases=(ToolArguments,),
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return cast("type[ToolArguments]", made)


def _make_field(argument: CommandArgument) -> tuple[str, object] | tuple[str, object, object]:
    name, meta = _name_argument(argument), Meta(description=argument.help)
    is_required = not argument.name.startswith("--") and argument.nargs is None
    if argument.kind == "flag":
        return name, Annotated[bool, meta], False
    if argument.kind == "list":
        return name, Annotated[list[str], meta], msgspec.field(default_factory=list)
    if argument.metavar in JSON_METAVARS:
        json_type = Annotated[object, meta]
        return (name, json_type) if is_required else (name, json_type | UnsetType, UNSET)
    if argument.choices is not None:
        return name, Annotated[Literal[argument.choices], meta], argument.default
    if is_required:
        return name, Annotated[str, meta]
    return name, Annotated[str, meta], argument.default or ""


def _name_argument(argument: CommandArgument) -> str:
    return argument.name.removeprefix("--").replace("-", "_")


def _find_metavar(spec: ControlSpec, name: str) -> str | None:
    return next(
        argument.metavar
        for argument in spec.command.arguments
        if _name_argument(argument) == name
    )


def _encode_json_word(value: object) -> str | None:
    """Return a JSON value as the word that a command would read; text stays as it is."""
    if value is UNSET:
        return None
    return value if isinstance(value, str) else json.dumps(value)


async def _wait_for_reply(run: AnyRun, message: Seq, wait_s: float) -> str:
    """Return the agent's reply to a message; "" if none comes in time."""
    with anyio.move_on_after(wait_s):
        taken = await _wait_until_taken(run, message)
        if taken is not None:
            async with aclosing(run.events(taken)) as events:
                async for event in events:
                    if isinstance(event, ReplyFinished) and event.outcome == "done":
                        return event.reply
    return ""


async def _wait_until_taken(run: AnyRun, message: Seq) -> Seq | None:
    """Return the number of the entry with which the agent took a message; None if never."""
    async with aclosing(run.feed(message)) as feed:
        async for item in feed:
            match item:
                case FeedEntry(seq=seq, entry=FramePushed(message=taken)) if taken == message:
                    return seq
                case FeedEntry(seq=seq, entry=MessageTaken(message=taken)) if taken == message:
                    return seq
                case FeedEntry(entry=MessageClosed(message=closed)) if closed == message:
                    return None
    return None


# ── the table ────────────────────────────────────────────────────────────────────────────────

_CONTROL_TOOLS: Final = tuple(
    (spec, _make_control_tool(spec))
    for spec in CONTROL_SPECS
    if spec.command.group in TOOL_GROUPS
)

START_TOOL: Final = RunTool(
    name=f"{TOOL_PREFIX}start",
    description="Start a run of an agent. The run goes on, whether or not this call waits.",
    arguments=StartArguments,
)
WAIT_TOOL: Final = RunTool(
    name=f"{TOOL_PREFIX}wait",
    description="Wait until a run rests: completed, cancelled, failed, paused, or waiting for "
    "a person. Returns its status. If the time is up, the run still works: wait again.",
    arguments=WaitArguments,
)


def _make_reading_tool(
    name: str, description: str, arguments: type[ToolArguments], call: CallFunction
) -> RunTool:
    """Return a tool that changes nothing."""
    return RunTool(
        name=f"{TOOL_PREFIX}{name}",
        description=description,
        arguments=arguments,
        call=call,
        is_read_only=True,
    )


def _list_tools() -> Iterator[RunTool]:
    yield START_TOOL
    yield _make_reading_tool(
        "status",
        "Show the state of a run, its open asks, and the tools it accepts now.",
        RunArguments,
        _show_status,
    )
    yield WAIT_TOOL
    for _, tool in _CONTROL_TOOLS:
        yield tool
    yield _make_reading_tool(
        "report",
        "Report the outcome of every call of a run: kept, undone or unknown.",
        RunArguments,
        _show_report,
    )
    yield _make_reading_tool(
        "history",
        "Read the journal of a run, one sentence per entry, oldest first.",
        HistoryArguments,
        _show_history,
    )
    yield _make_reading_tool(
        "list_runs", "List runs, newest first.", ListRunsArguments, _list_runs
    )
    yield _make_reading_tool(
        "list_agents",
        "List the agents that runs can be started with.",
        NoArguments,
        _list_agents,
    )


RUN_TOOLS: Final[Mapping[str, RunTool]] = {tool.name: tool for tool in _list_tools()}
"""All tools by name, in the order in which clients see them."""
