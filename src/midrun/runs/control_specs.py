"""Specifications of the controls: one `ControlSpec` for each control that people can send.

All interfaces are made from `CONTROL_SPECS`. The server takes routes, bodies, roles and
preconditions from it, and `RemoteRun` the requests that it sends. The command line takes its
commands with their help and arguments, and so do the shell completions. The terminal takes its
keys. Example: every interface that pauses a run makes a `PauseBody`. The function in `PAUSE`
calls `Run.pause` with it, and that method makes the control `Pause` of the core.

Whether a run accepts a control is decided in `midrun.core`, never here.
"""

from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct

from midrun.agents.file import File
from midrun.codec.strict_json import parse_json, parse_json_or_text
from midrun.core import controls as c
from midrun.core.stops import CAP_TYPES
from midrun.core.transitions import get_input_name
from midrun.core.values import Role, Urgency
from midrun.errors import Misconfigured, NotJson
from midrun.runs.control_bodies import (
    CancelBody,
    Caps,
    ChangeBody,
    ControlBody,
    Decision,
    DecisionBody,
    Empty,
    FileBody,
    HandBackBody,
    MessageBody,
    PauseBody,
    RedirectBody,
    ResumeBody,
    UseToolBody,
    WriteBody,
    make_files,
)
from midrun.runs.validation import ControlOptions
from midrun.runs.values import Receipt

if TYPE_CHECKING:  # the command line imports this module to parse, without the tools of agents
    from midrun.runs.protocols import AnyRun

RunPart: TypeAlias = Literal["", "ask", "frame", "command"]
"""The part of a run that a control is about, as its parameter in the path is called."""

IfMatch: TypeAlias = Literal["ignored", "optional", "required"]
"""The use that a request makes of the header with the caller's revision of the run."""

CommandGroup: TypeAlias = Literal["control", "decide", "more controls", "take over"]
"""A title in the help of the command line."""


class ControlRoute(Struct, frozen=True):
    """The HTTP request that sends a control.

    A pause and a cancel ignore `If-Match`, because a request to stop is never outdated.
    `is_queued` marks texts that wait for a step boundary: `Limits.pending` bounds their number.
    """

    path: str
    summary: str  # in the OpenAPI document
    method: Literal["POST", "PATCH", "DELETE"] = "POST"
    role: Role = "user"  # the least role that may send it
    if_match: IfMatch = "optional"
    part: RunPart = ""
    is_queued: bool = False
    takes_files: bool = False  # its body may be as long as `Limits.upload`

    def format_path(self, run: str, part: str) -> str:
        """Return the path of one run, and of one part of it."""
        return self.path.format(run=run, **{self.part: part})


class CommandArgument(Struct, frozen=True):
    """An argument of a command, or an option if the name begins with two dashes."""

    name: str
    help: str
    metavar: str | None = None
    kind: Literal["value", "flag", "list"] = "value"  # a list: the option may be repeated
    nargs: Literal["?", "+"] | None = None
    choices: tuple[str, ...] | None = None
    default: str | None = None
    type: Callable[[str], object] = str


class ControlCommand(Struct, frozen=True):
    """The command that sends a control.

    The command line adds the argument RUN or ASK, and the options that all commands have.
    """

    group: CommandGroup
    summary: str  # one line of help; lower case, no period
    examples: tuple[str, ...]
    arguments: tuple[CommandArgument, ...] = ()
    as_operator: bool = False  # the core accepts the control from operators only


class ControlTarget(Struct, frozen=True):
    """The run that gets a control, and the part of the run that the control is about.

    `part` is the id of an ask or of a held topic, or the number of a pending request. It is ""
    for a control of the whole run, and for the only open ask.
    """

    run: "AnyRun"
    part: str = ""


BodyT = TypeVar("BodyT", bound=ControlBody)
Send: TypeAlias = Callable[[ControlTarget, BodyT, ControlOptions], Awaitable[Receipt]]


class ControlSpec(Struct, frozen=True, kw_only=True):
    """One control, as people send it: by HTTP, by a command, by a key in the terminal.

    Several controls may share a key. The spec of one of them has its line in the help; the
    action of a key is in `midrun.tui.controller`.
    """

    control: type[c.Control]
    body: type[ControlBody]
    send: Send[ControlBody]  # calls the method of `Run`
    route: ControlRoute
    command: ControlCommand
    read_body: Callable[[Namespace], ControlBody]  # from the arguments of the command
    key: str = ""
    key_help: str = ""

    @property
    def name(self) -> str:
        """The name of the control, which is the name of the method of `Run`."""
        return get_input_name(self.control)

    @property
    def command_name(self) -> str:
        """The name of the command: `take-over` for `take_over`."""
        return self.name.replace("_", "-")


def _make_spec(
    control: type[c.Control],
    body: type[BodyT],
    send: Send[BodyT],
    *,
    route: ControlRoute,
    command: ControlCommand,
    read_body: Callable[[Namespace], BodyT] | None = None,
    key: str = "",
    key_help: str = "",
) -> ControlSpec:
    """Return a spec; without `read_body`, the command sends a body without fields.

    The type checker compares `send` and `read_body` with the class of the body here. A
    `ControlSpec` itself has no type parameter, so that one tuple can hold all of them.
    """

    def send_checked(
        target: ControlTarget, given: ControlBody, options: ControlOptions
    ) -> Awaitable[Receipt]:
        assert isinstance(given, body), given  # the caller took the body of another spec
        return send(target, given, options)

    return ControlSpec(
        control=control,
        body=body,
        send=send_checked,
        route=route,
        command=command,
        read_body=read_body or (lambda _: body()),
        key=key,
        key_help=key_help,
    )


def _parse_caps(words: Sequence[str] | None) -> Caps:
    """Return the caps that were typed as NAME=AMOUNT.

    Raises:
        Misconfigured: A name is not one of a cap, or an amount is not a number.
    """
    return Caps.from_amounts(dict(map(_parse_cap, words or ())))


def _parse_cap(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    if equals and name not in CAP_TYPES:
        raise Misconfigured(text, f"there is no such cap; the caps are: {', '.join(CAP_TYPES)}")
    try:
        return name, float(amount)
    except ValueError:
        expected = "the amount must be a number" if equals else "must be NAME=AMOUNT"
        raise Misconfigured(text, f"{expected}, such as steps=20") from None


def _parse_arguments(text: str) -> object:
    """Return the arguments of a call that were typed as JSON.

    Raises:
        Misconfigured: The text is not JSON.
    """
    try:
        return parse_json(text)
    except NotJson as error:
        problem = f'must be JSON, such as {{"to": "ada"}}: {error.problem}'
        raise Misconfigured("arguments of the call", problem) from error


_OPTIONAL_INSTRUCTION: Final = CommandArgument(
    "text", "an instruction for the agent", metavar="TEXT", nargs="?"
)

FILE_ARGUMENT: Final = CommandArgument(
    "--file", "a file for the agent; may be repeated", metavar="PATH", kind="list"
)


def _read_file_bodies(paths: Sequence[str] | None) -> tuple[FileBody, ...]:
    """Return the files at these paths.

    Raises:
        FileRefused: A file cannot be read.
    """
    return tuple(FileBody.from_file(File.from_path(path)) for path in paths or ())


# ── pause, resume, redirect, message, cancel ─────────────────────────────────

PAUSE: Final = _make_spec(
    c.Pause,
    PauseBody,
    lambda target, body, options: target.run.pause(
        now=body.mode == "now", hold=body.hold, **options
    ),
    route=ControlRoute(
        "/v1/runs/{run}/pause",
        "Pause the run; `If-Match` is not needed, because a stop is never refused as stale.",
        if_match="ignored",
    ),
    command=ControlCommand(
        "control",
        "pause a run: the model stops at once, a tool call finishes first",
        examples=(
            "midrun pause 3f2a",
            "midrun pause 3f2a --now    also stop the running tools",
        ),
        arguments=(CommandArgument("--now", "also stop the running tools", kind="flag"),),
    ),
    read_body=lambda args: PauseBody(mode="now" if args.now else "boundary"),
    key="p",
    key_help="pause, keep running or resume, as the first button says",
)

RESUME: Final = _make_spec(
    c.Resume,
    ResumeBody,
    lambda target, body, options: target.run.resume(
        body.instruction or None,
        caps=body.caps.list_set_caps(),
        files=make_files(body.files),
        **options,
    ),
    route=ControlRoute(
        "/v1/runs/{run}/resume",
        "Resume the run; while it is pausing, withdraw the pause.",
        takes_files=True,
    ),
    command=ControlCommand(
        "control",
        "resume a run, optionally with an instruction",
        examples=(
            "midrun resume 3f2a",
            'midrun resume 3f2a "Only the first three"',
            "midrun resume 3f2a --cap steps=40    after it paused at a cap",
        ),
        arguments=(
            _OPTIONAL_INSTRUCTION,
            CommandArgument(
                "--cap", "raise a cap: steps=20, cost=5", metavar="NAME=AMOUNT", kind="list"
            ),
            FILE_ARGUMENT,
        ),
    ),
    read_body=lambda args: ResumeBody(
        instruction=args.text or "",
        caps=_parse_caps(args.cap),
        files=_read_file_bodies(args.file),
    ),
    key=PAUSE.key,
)

REDIRECT: Final = _make_spec(
    c.Redirect,
    RedirectBody,
    lambda target, body, options: target.run.redirect(
        body.instruction, when=body.when, files=make_files(body.files), **options
    ),
    route=ControlRoute(
        "/v1/runs/{run}/redirect",
        "Redirect the run; a paused run resumes with the instruction.",
        is_queued=True,
        takes_files=True,
    ),
    command=ControlCommand(
        "control",
        "give a run a new instruction; a paused run continues with it",
        examples=(
            'midrun redirect 3f2a "Only vendor A"',
            'midrun redirect 3f2a "Stop that" --now',
        ),
        arguments=(
            CommandArgument("text", "the new instruction", metavar="TEXT"),
            CommandArgument("--now", "at once, not at the next turn", kind="flag"),
            FILE_ARGUMENT,
        ),
    ),
    read_body=lambda args: RedirectBody(
        instruction=args.text,
        when="now" if args.now else "next_step",
        files=_read_file_bodies(args.file),
    ),
    key="r",
    key_help="redirect: Enter at the next turn, Alt+Enter now, Esc discards",
)

SAY: Final = _make_spec(
    c.Say,
    MessageBody,
    lambda target, body, options: target.run.say(
        body.text,
        urgency=body.urgency,
        at=body.at,
        files=make_files(body.files),
        **options,
    ),
    route=ControlRoute(
        "/v1/runs/{run}/messages",
        "Send a message to the run while it works.",
        is_queued=True,
        takes_files=True,
    ),
    command=ControlCommand(
        "control",
        "ask a side question; the run then returns to its task",
        examples=(
            'midrun say 3f2a "How far are you?"',
            'midrun say 3f2a "Thanks" --urgency later',
        ),
        arguments=(
            CommandArgument("text", "the side question", metavar="TEXT"),
            CommandArgument(
                "--urgency",
                "answer now, at the next turn (next, the default), or after the task (later)",
                choices=get_args(Urgency),
                default="next",
            ),
            FILE_ARGUMENT,
        ),
    ),
    read_body=lambda args: MessageBody(
        text=args.text, urgency=args.urgency, files=_read_file_bodies(args.file)
    ),
    key="s",
    key_help="side question: the run answers, then returns to its task",
)

CANCEL: Final = _make_spec(
    c.Cancel,
    CancelBody,
    lambda target, body, options: target.run.cancel(undo=body.undo, **options),
    route=ControlRoute(
        "/v1/runs/{run}/cancel",
        "Cancel the run; as for pause, `If-Match` is not needed.",
        if_match="ignored",
    ),
    command=ControlCommand(
        "control",
        "cancel a run and undo its unfinished work; see also: report",
        examples=(
            "midrun cancel 3f2a",
            'midrun cancel 3f2a --undo-all --reason "wrong vendor"',
        ),
        arguments=(
            CommandArgument("--undo-all", "also undo finished work", kind="flag"),
            CommandArgument("--reason", "the reason, as the journal records it"),
        ),
    ),
    read_body=lambda args: CancelBody(
        undo="all" if args.undo_all else "in_flight", reason=args.reason or ""
    ),
    key="c",
    key_help="cancel: lists what would be undone, and asks first",
)

# ── asks: three controls share one route, and the body names the decision ────

DECISION_ROUTE: Final = ControlRoute(
    "/v1/asks/{ask}",
    "Decide an ask; a second decision is refused and names the first actor.",
    part="ask",
    takes_files=True,
)

ANSWER: Final = _make_spec(
    c.Answer,
    DecisionBody,
    lambda target, body, options: target.run.answer(
        body.value, ask=target.part or None, files=make_files(body.files), **options
    ),
    route=DECISION_ROUTE,
    command=ControlCommand(
        "decide",
        "answer a question; the answer becomes the tool's result",
        examples=("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        arguments=(
            CommandArgument("value", "JSON, or plain text", metavar="VALUE"),
            FILE_ARGUMENT,
        ),
    ),
    read_body=lambda args: DecisionBody(
        decision="answer",
        value=parse_json_or_text(args.value),
        files=_read_file_bodies(args.file),
    ),
    key="a",
    key_help="decide an open ask: approve, decline, edit, answer",
)

APPROVE: Final = _make_spec(
    c.Approve,
    DecisionBody,
    lambda target, body, options: target.run.approve(
        ask=target.part or None, args=body.args, **options
    ),
    route=DECISION_ROUTE,
    command=ControlCommand(
        "decide",
        "approve a call, once",
        examples=("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        arguments=(
            CommandArgument("--args", "make the call with other arguments", metavar="JSON"),
        ),
    ),
    read_body=lambda args: (
        DecisionBody(decision="approve")
        if args.args is None
        else DecisionBody(decision="edit", args=_parse_arguments(args.args))
    ),
    key=ANSWER.key,
)


def _send_decline(
    target: ControlTarget, _: DecisionBody, options: ControlOptions
) -> Awaitable[Receipt]:
    return target.run.decline(
        options.get("reason") or "",
        ask=target.part or None,
        actor=options.get("actor"),
        request_id=options.get("request_id"),
        seen=options.get("seen"),
    )


DECLINE: Final = _make_spec(
    c.Decline,
    DecisionBody,
    _send_decline,
    route=DECISION_ROUTE,
    command=ControlCommand(
        "decide",
        "decline a call or a question",
        examples=('midrun decline 3f2a "not to all customers"',),
        arguments=(
            CommandArgument(
                "reason",
                "the reason; the agent reads it",
                metavar="REASON",
                nargs="?",
                default="",
            ),
        ),
    ),
    read_body=lambda args: DecisionBody(decision="decline", comment=args.reason),
    key=ANSWER.key,
)

DECISIONS: Final[dict[Decision, ControlSpec]] = {
    "answer": ANSWER,
    "approve": APPROVE,
    "edit": APPROVE,
    "decline": DECLINE,
}

# ── more controls ────────────────────────────────────────────────────────────

WITHDRAW: Final = _make_spec(
    c.Withdraw,
    Empty,
    lambda target, _, options: target.run.withdraw(int(target.part), **options),
    route=ControlRoute(
        "/v1/runs/{run}/commands/{command}",
        "Withdraw a pause, redirect or message that has not been applied.",
        method="DELETE",
        part="command",
    ),
    command=ControlCommand(
        "more controls",
        "withdraw a request that has not been applied yet",
        examples=(
            "midrun withdraw 3f2a",
            "midrun withdraw 3f2a 41    the request that `show` lists at 41",
        ),
        arguments=(
            CommandArgument(
                "seq",
                "number of the request in `show` (the newest)",
                metavar="SEQ",
                nargs="?",
                type=int,
            ),
        ),
    ),
    key="w",
    key_help="withdraw the pending redirect or message",
)


def _send_raise_cap(
    target: ControlTarget, body: ChangeBody, options: ControlOptions
) -> Awaitable[Receipt]:
    return target.run.raise_cap(
        actor=options.get("actor"),
        reason=options.get("reason"),
        request_id=options.get("request_id"),
        seen=options.get("seen"),
        **body.caps.list_set_caps(),
    )


RAISE_CAP: Final = _make_spec(
    c.RaiseCap,
    ChangeBody,
    _send_raise_cap,
    route=ControlRoute(
        "/v1/runs/{run}",
        "Raise caps of a run; `If-Match` is required.",
        method="PATCH",
        role="operator",
        if_match="required",
    ),
    command=ControlCommand(
        "more controls",
        "raise a cap of a run; if it paused at the cap, use resume --cap",
        examples=("midrun raise-cap 3f2a steps=40 cost=2.50",),
        arguments=(
            CommandArgument(
                "cap", "the new cap: steps=20, cost=5", metavar="NAME=AMOUNT", nargs="+"
            ),
        ),
    ),
    read_body=lambda args: ChangeBody(caps=_parse_caps(args.cap)),
)

FORCE_PAUSE: Final = _make_spec(
    c.ForcePause,
    Empty,
    lambda target, _, options: target.run.force_pause(**options),
    route=ControlRoute(
        "/v1/runs/{run}/force_pause", "Pause without waiting for calls that do not respond."
    ),
    command=ControlCommand(
        "more controls",
        "stop waiting for calls that do not respond; their outcome is unknown",
        examples=("midrun force-pause 3f2a    if a pause does not complete",),
    ),
)

_FRAME_ARGUMENT: Final = CommandArgument(
    "frame", "id of the topic in `show` (the topmost)", metavar="TOPIC", nargs="?"
)

RESUME_FRAME: Final = _make_spec(
    c.ResumeFrame,
    Empty,
    lambda target, _, options: target.run.resume_frame(target.part, **options),
    route=ControlRoute(
        "/v1/runs/{run}/frames/{frame}/resume",
        "Return to the newest held topic; the path names it.",
        part="frame",
    ),
    command=ControlCommand(
        "more controls",
        "return to the topmost held topic",
        examples=("midrun resume-frame 3f2a",),
        arguments=(_FRAME_ARGUMENT,),
    ),
)

DROP_FRAME: Final = _make_spec(
    c.DropFrame,
    Empty,
    lambda target, _, options: target.run.drop_frame(target.part, **options),
    route=ControlRoute(
        "/v1/runs/{run}/frames/{frame}",
        "Drop the newest held topic; the path names it.",
        method="DELETE",
        part="frame",
    ),
    command=ControlCommand(
        "more controls",
        "drop the topmost held topic",
        examples=("midrun drop-frame 3f2a",),
        arguments=(_FRAME_ARGUMENT,),
    ),
)

RETRY_UNDO: Final = _make_spec(
    c.RetryUndo,
    Empty,
    lambda target, _, options: target.run.retry_undo(**options),
    route=ControlRoute(
        "/v1/runs/{run}/retry_undo",
        "Retry the undo of calls that could not be undone.",
        role="operator",
    ),
    command=ControlCommand(
        "more controls",
        "retry the undos that failed after a cancel",
        examples=(
            "midrun report 3f2a        lists what was not undone",
            "midrun retry-undo 3f2a",
        ),
        as_operator=True,
    ),
    key=PAUSE.key,
)

ACCEPT_RESIDUE: Final = _make_spec(
    c.AcceptResidue,
    Empty,
    lambda target, _, options: target.run.accept_residue(**options),
    route=ControlRoute(
        "/v1/runs/{run}/accept_residue",
        "Accept the effects that could not be undone.",
        role="operator",
    ),
    command=ControlCommand(
        "more controls",
        "accept the effects that could not be undone",
        examples=("midrun accept-residue 3f2a",),
        as_operator=True,
    ),
)

# ── a person in the agent's place ────────────────────────────────────────────

TAKE_OVER: Final = _make_spec(
    c.TakeOver,
    Empty,
    lambda target, _, options: target.run.take_over(**options),
    route=ControlRoute(
        "/v1/runs/{run}/take_over", "Take over from the agent once no call is in flight."
    ),
    command=ControlCommand(
        "take over",
        "act in the agent's place, once no call is in flight",
        examples=("midrun take-over 3f2a",),
    ),
    key="t",
    key_help="take over, and write in the agent's place; p or r hands back",
)

WRITE: Final = _make_spec(
    c.Write,
    WriteBody,
    lambda target, body, options: target.run.write(body.text, **options),
    route=ControlRoute("/v1/runs/{run}/write", "Write as the assistant, after taking over."),
    command=ControlCommand(
        "take over",
        "write a message in the agent's place",
        examples=('midrun write 3f2a "Vendor A is out: they closed in May."',),
        arguments=(CommandArgument("text", "the message of the assistant", metavar="TEXT"),),
    ),
    read_body=lambda args: WriteBody(text=args.text),
    key=TAKE_OVER.key,
)

USE_TOOL: Final = _make_spec(
    c.UseTool,
    UseToolBody,
    lambda target, body, options: target.run.use_tool(body.tool, body.args, **options),
    route=ControlRoute(
        "/v1/runs/{run}/use_tool", "Call one of the agent's tools, after taking over."
    ),
    command=ControlCommand(
        "take over",
        "call one of the agent's tools in its place",
        examples=(
            'midrun use-tool 3f2a search \'{"q": "cats"}\' --url http://127.0.0.1:8700',
            'midrun use-tool 3f2a search \'{"q": "cats"}\' --app app.py    for a store',
        ),
        arguments=(
            CommandArgument("tool", "one of the agent's tools", metavar="TOOL"),
            CommandArgument("args", "its arguments", metavar="JSON", nargs="?", default="{}"),
            CommandArgument("--app", "the app with the agent; not with --url", metavar="APP"),
        ),
    ),
    read_body=lambda args: UseToolBody(tool=args.tool, args=_parse_arguments(args.args)),
)

HAND_BACK: Final = _make_spec(
    c.HandBack,
    HandBackBody,
    lambda target, body, options: target.run.hand_back(body.instruction or None, **options),
    route=ControlRoute("/v1/runs/{run}/hand_back", "Hand the run back to its agent."),
    command=ControlCommand(
        "take over",
        "return the run to its agent, which learns what you did",
        examples=("midrun hand-back 3f2a", 'midrun hand-back 3f2a "Go on with vendor B"'),
        arguments=(_OPTIONAL_INSTRUCTION,),
    ),
    read_body=lambda args: HandBackBody(instruction=args.text or ""),
    key=PAUSE.key,
)

CONTROL_SPECS: Final = (
    PAUSE,
    RESUME,
    REDIRECT,
    SAY,
    CANCEL,
    ANSWER,
    APPROVE,
    DECLINE,
    WITHDRAW,
    RAISE_CAP,
    FORCE_PAUSE,
    RESUME_FRAME,
    DROP_FRAME,
    RETRY_UNDO,
    ACCEPT_RESIDUE,
    TAKE_OVER,
    WRITE,
    USE_TOOL,
    HAND_BACK,
)
"""All controls that people send, in the order in which help lists their commands.

`Halt` and `Lift` are not here. A person halts a scope of many runs with `Midrun.halt`, and the
workers send these controls to each run in it.
"""
