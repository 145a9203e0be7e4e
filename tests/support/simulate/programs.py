"""The agents of the schedules: their tools, their scripts, and a scripted model.

The next reply of the model follows from the messages alone, so it survives every restart.
"""

from random import Random
from typing import Final, Literal

from msgspec import Struct

from midrun.core.entries import RunStarted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.stops import (
    Custom,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
    TextMention,
)
from midrun.core.values import Effect, Message, PlanItem, Reply, RequestedCall, Traits

Behaviour = Literal["plain", "asks", "long", "hangs", "fails", "plans", "child"]

READ, SAFE, ONCE = Effect.READ, Effect.IDEMPOTENT, Effect.ONCE


class Tool(Struct, frozen=True, kw_only=True):
    """A tool: its traits and its behaviour."""

    traits: Traits
    behaviour: Behaviour = "plain"


TOOLS: Final[dict[str, Tool]] = {
    "look": Tool(traits=Traits(effect=READ)),
    "fetch": Tool(traits=Traits(effect=SAFE)),
    "file": Tool(traits=Traits(effect=SAFE, undo=True)),
    "send": Tool(traits=Traits(effect=ONCE)),
    "draft": Tool(traits=Traits(effect=ONCE, undo=True)),
    "order": Tool(traits=Traits(effect=ONCE, undo=True, check=True)),
    "stamp": Tool(traits=Traits(effect=ONCE, undo=True, undo_unknown=False)),
    "lock": Tool(traits=Traits(effect=ONCE, release=True)),
    "lease": Tool(traits=Traits(effect=SAFE, undo=True, release=True)),
    "mail": Tool(traits=Traits(effect=ONCE, approve="queue")),
    "pay": Tool(traits=Traits(effect=ONCE, undo=True, approve="block", audience="operator")),
    "sign": Tool(traits=Traits(effect=SAFE, approve="block", four_eyes=True, ask_ttl=25_000)),
    "seal": Tool(traits=Traits(effect=SAFE, approve="block", four_eyes=True)),
    "grant": Tool(traits=Traits(effect=SAFE, undo=True, approve="block", ask_ttl=20_000)),
    "ask": Tool(traits=Traits(effect=READ), behaviour="asks"),
    "reserve": Tool(traits=Traits(effect=ONCE, release=True), behaviour="asks"),
    "index": Tool(traits=Traits(effect=SAFE), behaviour="long"),
    "crawl": Tool(traits=Traits(effect=ONCE, undo=True), behaviour="long"),
    "stuck": Tool(traits=Traits(effect=ONCE, undo=True), behaviour="hangs"),
    "flaky": Tool(traits=Traits(effect=SAFE, undo=True), behaviour="fails"),
    "plan": Tool(traits=Traits(effect=READ), behaviour="plans"),
    "child": Tool(traits=Traits(undo=True), behaviour="child"),  # its undo ends the child
    "note": Tool(traits=Traits(effect=ONCE, undo=True, approve="queue", ask_ttl=30_000)),
    "search": Tool(traits=Traits(effect=SAFE)),
    "none": Tool(traits=Traits()),
}


class Program(Struct, frozen=True, kw_only=True):
    """The script of an agent: for each step, the tools that its model calls."""

    turns: tuple[tuple[str, ...], ...]
    stop: Stop | None = None
    hosted: bool = False
    frame_depth: int = 2
    frame_ttl: int = 86_400_000_000
    history: int = 0
    window: int = 0
    side_tools: tuple[str, ...] = ()
    killer: str = ""  # a tool, or "model": its calls kill their process
    unsure_tool: str = ""  # a tool whose calls end as unknown, without an effect
    invalid_outputs: int = 0  # answers that are not valid, before the one that is
    output_retries: int = 0
    max_parallel: int = 0
    asks_again: bool = False  # its flaky tool asks the model to try again when it fails


PROGRAMS: Final[dict[str, Program]] = {
    "clerk": Program(turns=(("file", "draft"), ("ask",), ("send",)), side_tools=("look",)),
    "writer": Program(turns=(("draft",), ("file", "order"), ("stamp",))),
    "buyer": Program(turns=(("look", "pay"), ("order",))),
    "mailer": Program(turns=(("mail", "draft"), ("fetch",))),
    "grantor": Program(turns=(("grant", "file"), ("grant",))),
    "notary": Program(turns=(("sign", "mail"), ("mail",))),
    "registry": Program(turns=(("look",), ("seal",), ("seal", "file"))),
    "locker": Program(turns=(("lock", "lease"), ("draft",))),
    "asker": Program(turns=(("ask", "ask"), ("reserve",)), side_tools=("ask",)),
    "crawler": Program(
        turns=(("index", "draft"), ("crawl",)), side_tools=("file",), frame_ttl=25_000
    ),
    "stubborn": Program(turns=(("stuck", "file"), ("look",))),
    "unlucky": Program(turns=(("flaky", "lease"), ("none", "flaky"))),
    "planner": Program(turns=(("plan", "look"), ("draft",), ("fetch",)), frame_ttl=15_000),
    "family": Program(turns=(("child", "draft"), ("child",))),
    "clan": Program(turns=(("draft", "child", "child"), ("file",)), side_tools=("child",)),
    "guild": Program(
        turns=(("child", "mail"), ("draft",)), side_tools=("ask",), history=20, window=5
    ),
    "reviewed": Program(turns=(("note", "note"), ("file",), ("mail",)), side_tools=("look",)),
    "digest": Program(
        turns=(("plan", "look"), ("file",), ("draft",)),
        history=20,
        window=5,
        frame_ttl=25_000,
        side_tools=("look",),
    ),
    "counted": Program(turns=(("file",), ("draft",), ("fetch",)), stop=MaxSteps(2)),
    "thrifty": Program(turns=(("search", "search"), ("search", "draft")), stop=MaxTokens(38)),
    "hasty": Program(turns=(("look",), ("file",)), stop=MaxTime(seconds=0.05)),
    "bounded": Program(turns=(("file", "look"), ("fetch",)), stop=MaxToolCalls(2)),
    "circling": Program(turns=(("fetch",), ("fetch",), ("file",)), stop=Repeats(2)),
    "chatty": Program(
        turns=(("file",), ("draft",)), stop=TextMention("main:1", then="complete")
    ),
    "judged": Program(turns=(("file",), ("draft",)), stop=Custom("judge") | MaxSteps(9)),
    "condensed": Program(turns=(("look",), ("file",)), history=36, window=5),
    "costly": Program(turns=(("file",), ("draft",)), stop=MaxCost(usd=0.0025)),
    "picky": Program(turns=(("file",), ("fetch",)), stop=MaxSteps(1) & ~TextMention("never")),
    "guest": Program(turns=(("file", "draft"), ("ask",), ("send",)), hosted=True),
    "visitor": Program(turns=(("order", "mail"), ("lock",)), hosted=True),
}
"""Scripts by name; the name "" stands for a random one."""

PROGRAM_NAMES: Final = (*PROGRAMS, "", "", "", "")

KILLER_PROGRAMS: Final[dict[str, Program]] = {
    "miner": Program(turns=(("look", "draft"), ("file",)), killer="look"),
    "filer": Program(turns=(("file", "look"), ("file",)), killer="file", side_tools=("look",)),
    "dizzy": Program(turns=(("draft",), ("look",)), killer="model"),
    "payer": Program(turns=(("order",), ("look",)), killer="order"),
    "pledger": Program(turns=(("order", "look"), ("file",)), unsure_tool="order"),
}
"""Scripts with a call that kills its process or ends as unknown."""


RULE_PROGRAMS: Final[dict[str, Program]] = {
    "typed": Program(
        turns=(("file", "draft"), ("look",)),
        invalid_outputs=2,
        output_retries=1,
        side_tools=("look",),
    ),
    "serial": Program(
        turns=(("draft", "ask", "look", "file"), ("child", "order", "mail")),
        max_parallel=1,
        side_tools=("look",),
    ),
    "paired": Program(
        turns=(("pay", "draft", "look", "file"), ("index", "send")), max_parallel=2
    ),
    "retried": Program(
        turns=(("flaky", "flaky", "look"),) + (("flaky",),) * 5, asks_again=True
    ),
}
"""Scripts of agents with rules of their own, such as a typed output."""


def get_program(name: str, rng: Random) -> Program:
    """Return the script of that name, or a random one for ""."""
    if name:
        return {**PROGRAMS, **KILLER_PROGRAMS, **RULE_PROGRAMS}[name]
    turns = tuple(
        tuple(rng.choice(list(TOOLS)) for _ in range(rng.randint(1, 3)))
        for _ in range(rng.randint(1, 3))
    )
    return Program(
        turns=turns,
        frame_depth=rng.randint(1, 3),
        hosted=rng.random() < 0.1,
        side_tools=rng.choice(((), (), ("look",), ("draft",))),
        stop=rng.choice((None, None, None, MaxSteps(2), MaxTokens(45), MaxToolCalls(3))),
    )


def make_run_started(program: Program) -> RunStarted:
    """Return the first entry of a run of this program."""
    history = tuple(Message(role="user", text=f"before {n}") for n in range(program.history))
    return RunStarted(
        agent="clerk",
        task="Sort the mail",
        by="ann",
        labels=("red",),
        stop=program.stop,
        hosted=program.hosted,
        history=history,
        frame_depth=program.frame_depth,
        frame_ttl=program.frame_ttl,
        undo_attempts=3,
        model_attempts=3,
        window=program.window,
        output_retries=program.output_retries,
        max_parallel=program.max_parallel,
    )


def make_use(tool: str, position: str = "") -> RequestedCall:
    """Return a use of `tool`; `position` is its position in the code of a hosted agent."""
    return RequestedCall(
        tool=tool,
        args={"of": tool},
        kind="child" if tool == "child" else "tool",
        traits=TOOLS[tool].traits,
        refused="no such tool" if tool == "none" else "",
        position=position,
    )


def make_reply(program: Program, state: State) -> Reply:
    """Return the next reply of the model."""
    if state.frames:
        return _make_side_reply(program, state)
    played = sum(
        message.role == "assistant" and message.text.startswith("main:")
        for message in state.messages
    )
    if played >= len(program.turns):
        # A text that is no valid output is followed by a message with the problem.
        refused = sum(message.kind == "output" for message in state.messages)
        if refused < program.invalid_outputs:
            return Reply(text="so it is", invalid_output="not valid")
        return Reply(text="main:end", prompt_tokens=program.window * 2)
    uses = tuple(make_use(tool) for tool in program.turns[played])
    return Reply(text=f"main:{played}", uses=uses, prompt_tokens=program.window * 2)


def _make_side_reply(program: Program, state: State) -> Reply:
    """Answer a side question, after a call of each of the program's side tools."""
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.kind in {"held", "back"}:
            break
        if message.role == "assistant" and not message.interrupted:
            return Reply(text="aside")
    return Reply(text="aside", uses=tuple(make_use(tool) for tool in program.side_tools))


def propose_uses(program: Program, state: State) -> tuple[RequestedCall, ...]:
    """Return the next calls of a hosted agent; none when it has finished."""
    known = {call.use.position for call in state.calls}
    for number, turn in enumerate(program.turns):
        places = [f"{number}.{n}" for n in range(len(turn))]
        if not known.issuperset(places):
            return tuple(
                make_use(tool, position=place)
                for tool, place in zip(turn, places, strict=True)
                if place not in known
            )
    return ()


def make_plan_items(done: int) -> tuple[PlanItem, ...]:
    """Return three plan items, of which `done` are done."""
    return tuple(
        PlanItem(text=f"item {n}", state="done" if n < done else "queued") for n in range(3)
    )


def add_milliseconds(now: Micros, milliseconds: int) -> Micros:
    """Return the time `milliseconds` after `now`."""
    return Micros(now + milliseconds * 1000)
