"""Specifications of the controls: one `ControlSpec` for each control that people can send.

All interfaces are made from `CONTROL_SPECS`. The server takes routes, bodies, roles and
preconditions from it, and `RemoteRun` the requests that it sends. The command line takes its
commands with their help and arguments, and so do the shell completions. The terminal takes its
keys. To follow one control, for example a pause: `PAUSE` names `PauseBody`, and
`PauseBody.send` calls `Run.pause`, which builds the control `Pause` of `midrun.core`.

Whether a run accepts a control is decided in `midrun.core`, never here.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from midrun.codec.strict_json import parse_json, parse_json_or_text
from midrun.core import controls as c
from midrun.core.stops import CAP_TYPES
from midrun.core.transitions import get_input_name
from midrun.core.values import Role, Urgency
from midrun.errors import Misconfigured
from midrun.runs.control_bodies import (
    AcceptResidueBody,
    CancelBody,
    Caps,
    ChangeBody,
    ControlBody,
    DecisionBody,
    DropFrameBody,
    ForcePauseBody,
    HandBackBody,
    MessageBody,
    PauseBody,
    RedirectBody,
    ResumeBody,
    ResumeFrameBody,
    RetryUndoBody,
    TakeOverBody,
    UseToolBody,
    WithdrawBody,
    WriteBody,
)

RunPart: TypeAlias = Literal["", "ask", "frame", "command"]
"""The part of a run that a control is about, as its parameter in the path is called."""

CommandGroup: TypeAlias = Literal["control", "decide", "more controls", "take over"]
"""A title in the help of the command line."""


class ControlRoute(Struct, frozen=True):
    """The HTTP request that sends a control.

    `if_match` says whether the header with the caller's revision is needed. A pause and a
    cancel ignore it, because a request to stop is never outdated. `is_queued` marks texts that
    wait for a step boundary: `Limits.pending` bounds their number.
    """

    path: str
    summary: str  # in the OpenAPI document
    method: Literal["POST", "PATCH", "DELETE"] = "POST"
    role: Role = "user"  # the least role that may send it
    if_match: Literal["ignored", "optional", "required"] = "optional"
    part: RunPart = ""
    is_queued: bool = False

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
    is_number: bool = False


class ControlCommand(Struct, frozen=True):
    """The command that sends a control.

    The command line adds the argument RUN or ASK, and the options that all commands have.
    """

    group: CommandGroup
    summary: str  # one line of help; lower case, no period
    examples: tuple[str, ...]
    arguments: tuple[CommandArgument, ...] = ()
    read_body: Callable[[Namespace], ControlBody] | None = None  # None: a body without fields
    as_operator: bool = False  # the core accepts the control from operators only


class ControlSpec(Struct, frozen=True):
    """One control, as people send it: by HTTP, by a command, by a key in the terminal.

    Several controls may share a key. The spec of one of them has its line in the help; the
    action of a key is in `midrun.tui.controller`.
    """

    control: type[c.Control]
    body: type[ControlBody]
    route: ControlRoute
    command: ControlCommand
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

    def read_body(self, args: Namespace) -> ControlBody:
        """Make the body from the parsed arguments of the command."""
        read = self.command.read_body
        return self.body() if read is None else read(args)


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


_OPTIONAL_INSTRUCTION: Final = CommandArgument(
    "text", "an instruction for the agent", metavar="TEXT", nargs="?"
)

# ── pause, resume, redirect, message, cancel ─────────────────────────────────

PAUSE: Final = ControlSpec(
    c.Pause,
    PauseBody,
    route=ControlRoute(
        "/v1/runs/{run}/pause",
        "Pause the run; `If-Match` is not needed, because a stop is never refused as stale.",
        if_match="ignored",
    ),
    command=ControlCommand(
        "control",
        "pause a run at its next step; nothing is lost",
        examples=(
            "midrun pause 3f2a",
            "midrun pause 3f2a --now    also stop the running tools",
        ),
        arguments=(CommandArgument("--now", "also stop the running tools", kind="flag"),),
        read_body=lambda args: PauseBody(mode="now" if args.now else "boundary"),
    ),
    key="p",
    key_help="pause, keep running or resume, as the first button says",
)

RESUME: Final = ControlSpec(
    c.Resume,
    ResumeBody,
    route=ControlRoute(
        "/v1/runs/{run}/resume", "Resume the run; while it is pausing, withdraw the pause."
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
        ),
        read_body=lambda args: ResumeBody(
            instruction=args.text or "", caps=_parse_caps(args.cap)
        ),
    ),
    key=PAUSE.key,
)

REDIRECT: Final = ControlSpec(
    c.Redirect,
    RedirectBody,
    route=ControlRoute(
        "/v1/runs/{run}/redirect",
        "Redirect the run; a paused run resumes with the instruction.",
        is_queued=True,
    ),
    command=ControlCommand(
        "control",
        "give a run a new instruction; finished work is kept",
        examples=(
            'midrun redirect 3f2a "Only vendor A"',
            'midrun redirect 3f2a "Stop that" --now',
        ),
        arguments=(
            CommandArgument("text", "the new instruction", metavar="TEXT"),
            CommandArgument("--now", "at once, not at the next step", kind="flag"),
        ),
        read_body=lambda args: RedirectBody(
            instruction=args.text, when="now" if args.now else "next_step"
        ),
    ),
    key="r",
    key_help="redirect: Enter at the next step, Alt+Enter now, Esc discards",
)

SAY: Final = ControlSpec(
    c.Say,
    MessageBody,
    route=ControlRoute(
        "/v1/runs/{run}/messages", "Send a message to the run while it works.", is_queued=True
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
                "--urgency", "when the agent answers", choices=get_args(Urgency), default="next"
            ),
        ),
        read_body=lambda args: MessageBody(text=args.text, urgency=args.urgency),
    ),
    key="s",
    key_help="side question: the run answers, then returns to its task",
)

CANCEL: Final = ControlSpec(
    c.Cancel,
    CancelBody,
    route=ControlRoute(
        "/v1/runs/{run}/cancel",
        "Cancel the run; as for pause, `If-Match` is not needed.",
        if_match="ignored",
    ),
    command=ControlCommand(
        "control",
        "cancel a run, undo its unfinished work, and report the result",
        examples=(
            "midrun cancel 3f2a",
            'midrun cancel 3f2a --undo-all --reason "wrong vendor"',
        ),
        arguments=(
            CommandArgument("--undo-all", "also undo finished work", kind="flag"),
            CommandArgument("--reason", "the reason, as the journal records it"),
        ),
        read_body=lambda args: CancelBody(
            undo="all" if args.undo_all else "in_flight", reason=args.reason or ""
        ),
    ),
    key="c",
    key_help="cancel: lists what would be undone, and asks first",
)

# ── asks: three controls share one route, and the body names the decision ────

DECISION_ROUTE: Final = ControlRoute(
    "/v1/asks/{ask}",
    "Decide an ask; a second decision is refused and names the first actor.",
    part="ask",
)

ANSWER: Final = ControlSpec(
    c.Answer,
    DecisionBody,
    route=DECISION_ROUTE,
    command=ControlCommand(
        "decide",
        "answer a question; the answer becomes the tool's result",
        examples=("midrun answer 3f2a blue", "midrun answer run_3f2a-a2 '{\"amount\": 40}'"),
        arguments=(CommandArgument("value", "JSON, or plain text", metavar="VALUE"),),
        read_body=lambda args: DecisionBody(
            decision="answer", value=parse_json_or_text(args.value)
        ),
    ),
    key="a",
    key_help="decide an open ask: approve, decline, edit, answer",
)

APPROVE: Final = ControlSpec(
    c.Approve,
    DecisionBody,
    route=DECISION_ROUTE,
    command=ControlCommand(
        "decide",
        "approve a call, once",
        examples=("midrun approve 3f2a", 'midrun approve run_3f2a-a1 --args \'{"to": "ada"}\''),
        arguments=(
            CommandArgument("--args", "make the call with other arguments", metavar="JSON"),
        ),
        read_body=lambda args: (
            DecisionBody(decision="approve")
            if args.args is None
            else DecisionBody(decision="edit", args=parse_json(args.args))
        ),
    ),
    key=ANSWER.key,
)

DECLINE: Final = ControlSpec(
    c.Decline,
    DecisionBody,
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
        read_body=lambda args: DecisionBody(decision="decline", comment=args.reason),
    ),
    key=ANSWER.key,
)

# ── more controls ────────────────────────────────────────────────────────────

WITHDRAW: Final = ControlSpec(
    c.Withdraw,
    WithdrawBody,
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
                is_number=True,
            ),
        ),
    ),
    key="w",
    key_help="withdraw the pending redirect or message",
)

RAISE_CAP: Final = ControlSpec(
    c.RaiseCap,
    ChangeBody,
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
        read_body=lambda args: ChangeBody(caps=_parse_caps(args.cap)),
    ),
)

FORCE_PAUSE: Final = ControlSpec(
    c.ForcePause,
    ForcePauseBody,
    route=ControlRoute(
        "/v1/runs/{run}/force_pause", "Pause without waiting for calls that do not respond."
    ),
    command=ControlCommand(
        "more controls",
        "pause without calls that do not respond; their outcome is unknown",
        examples=("midrun force-pause 3f2a    if a pause does not complete",),
    ),
)

_FRAME_ARGUMENT: Final = CommandArgument(
    "frame", "id of the topic in `show` (the topmost)", metavar="FRAME", nargs="?"
)

RESUME_FRAME: Final = ControlSpec(
    c.ResumeFrame,
    ResumeFrameBody,
    route=ControlRoute(
        "/v1/runs/{run}/frames/{frame}/resume",
        "Return to the newest held thought; the path names it.",
        part="frame",
    ),
    command=ControlCommand(
        "more controls",
        "return to the topmost held topic",
        examples=("midrun resume-frame 3f2a",),
        arguments=(_FRAME_ARGUMENT,),
    ),
)

DROP_FRAME: Final = ControlSpec(
    c.DropFrame,
    DropFrameBody,
    route=ControlRoute(
        "/v1/runs/{run}/frames/{frame}",
        "Drop the newest held thought; the path names it.",
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

RETRY_UNDO: Final = ControlSpec(
    c.RetryUndo,
    RetryUndoBody,
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

ACCEPT_RESIDUE: Final = ControlSpec(
    c.AcceptResidue,
    AcceptResidueBody,
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

TAKE_OVER: Final = ControlSpec(
    c.TakeOver,
    TakeOverBody,
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

WRITE: Final = ControlSpec(
    c.Write,
    WriteBody,
    route=ControlRoute("/v1/runs/{run}/write", "Write as the assistant, after taking over."),
    command=ControlCommand(
        "take over",
        "write a message in the agent's place",
        examples=('midrun write 3f2a "Vendor A is out: they closed in May."',),
        arguments=(CommandArgument("text", "the message of the assistant", metavar="TEXT"),),
        read_body=lambda args: WriteBody(text=args.text),
    ),
    key=TAKE_OVER.key,
)

USE_TOOL: Final = ControlSpec(
    c.UseTool,
    UseToolBody,
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
        read_body=lambda args: UseToolBody(tool=args.tool, args=parse_json(args.args)),
    ),
)

HAND_BACK: Final = ControlSpec(
    c.HandBack,
    HandBackBody,
    route=ControlRoute("/v1/runs/{run}/hand_back", "Hand the run back to its agent."),
    command=ControlCommand(
        "take over",
        "return the run to its agent, which learns what you did",
        examples=("midrun hand-back 3f2a", 'midrun hand-back 3f2a "Go on with vendor B"'),
        arguments=(_OPTIONAL_INSTRUCTION,),
        read_body=lambda args: HandBackBody(instruction=args.text or ""),
    ),
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
