"""An agent of Strands, hosted: the contract of hosts, and what this framework adds."""

import copy
import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydantic import BaseModel
from strands import Agent as StrandsAgent
from strands import ToolContext, tool
from strands.hooks import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookRegistry,
)
from strands.interventions import Confirm, InterventionHandler
from strands.middleware._agent_stream import AgentStreamContext, AgentStreamStage
from strands.models.model import Model
from strands.multiagent import Swarm
from strands.session import FileSessionManager
from strands.types.content import Message

from midrun import Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from midrun.core.ids import CallId
from midrun.core.transcript import CallResult, Turn
from midrun.core.values import Json
from midrun.hosts import HostedAgent
from midrun.ports.environment import Environment
from midrun.ports.model import Model as ModelPort
from midrun.ports.model import Prompt
from tests.support.conditions import draw_no_delay
from tests.support.providers import Answer, Call, Gate, HttpError, Provider, Text
from tests.support.store_choice import get_store_url
from tests.unit.hosts.blocking_strands_tools import read_process_id
from tests.unit.hosts.foreign_agents import make_strands_model
from tests.unit.hosts.suite_provider import HostContract
from tests.unit.models.protocols import FixedTranscript

Reply = str | tuple[str, dict[str, object]]
Script = Callable[[list[str]], Reply]


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_strands_agent"
    framework = "Strands agent"
    package = "strands-agents"


class Bill(BaseModel):  # type: ignore[explicit-any]  # of its base
    """A bill."""

    total: int


class ScriptedStrandsModel(Model):
    """A model that is told the results so far; it answers a text or a call."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.prompts: list[str] = []
        self.choices: list[object] = []

    def update_config(self, **model_config: object) -> None:
        """Change nothing."""

    def get_config(self) -> dict[str, object]:
        return {}

    def structured_output(self, *args: object, **options: object) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401 - of its base
        raise NotImplementedError

    async def stream(  # type: ignore[explicit-any,override]  # events are dicts
        self,
        messages: Sequence[Message],
        tool_specs: object = None,
        system_prompt: str | None = None,
        *,
        tool_choice: object = None,
        **options: object,
    ) -> AsyncIterator[dict[str, Any]]:
        del tool_specs, options
        self.choices.append(tool_choice)
        told = [{"role": m["role"], "content": m["content"]} for m in messages]
        self.prompts.append(f"system: {system_prompt} {json.dumps(told, default=repr)}")
        blocks = [block for message in messages for block in message["content"]]
        results = [
            str(part.get("text", part))
            for block in blocks
            if "toolResult" in block
            for part in block["toolResult"]["content"]
        ]
        answer = self.script(results)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(answer, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer}}}
        else:
            name, args = answer
            use = {"name": name, "toolUseId": f"call-{len(self.prompts)}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(args)}}}}
        yield {"contentBlockStop": {}}
        reason = "end_turn" if isinstance(answer, str) else "tool_use"
        yield {"messageStop": {"stopReason": reason}}


def make_agent(script: Script, *tools: object, **options: object) -> StrandsAgent:
    model = ScriptedStrandsModel(script)
    return StrandsAgent(model, tools=list(tools), **cast("Any", options))  # type: ignore[explicit-any]


def get_model(agent: StrandsAgent) -> ScriptedStrandsModel:
    return cast("ScriptedStrandsModel", agent.model)


async def run_agent(agent: StrandsAgent, task: str = "Go") -> Completed:
    outcome = await host(agent, name="hosted").run(task)
    assert isinstance(outcome, Completed), outcome
    return outcome


# ── context, state, hooks ────────────────────────────────────────────────────


@tool(context=True)
async def visit(place: str, tool_context: ToolContext[StrandsAgent]) -> str:
    """Visit a place."""
    state = tool_context.agent.state
    state.set("visits", [*(state.get("visits") or []), place])
    state.delete("next")
    name = tool_context.invocation_state["customer"]
    return f"{name} was in {place}, {tool_context.tool_use['toolUseId']}"


class Hooks:
    """Counts its hooks, and adds the state to the system prompt."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def register_hooks(self, registry: HookRegistry, **options: object) -> None:
        del options
        registry.add_callback(BeforeInvocationEvent, self.begin)
        registry.add_callback(BeforeModelCallEvent, self.see_model_call)
        registry.add_callback(BeforeToolCallEvent, self.see_tool_call)
        registry.add_callback(AfterToolCallEvent, self.change_result)

    def begin(self, event: BeforeInvocationEvent) -> None:
        event.agent.system_prompt = f"Guide {event.invocation_state['customer']}."

    async def see_model_call(self, event: BeforeModelCallEvent) -> None:
        self.calls.append(f"model {event.agent.state.get()}")

    def see_tool_call(self, event: BeforeToolCallEvent) -> None:
        self.calls.append(f"tool {event.tool_use['toolUseId']}")

    def change_result(self, event: AfterToolCallEvent) -> None:
        event.result["content"].append({"text": "by bus"})


async def test_hooks_context_and_state_are_those_of_the_agent() -> None:
    """Another process has the state, too: it is in the checkpoint."""
    hooks = Hooks()
    places = ["Rome", "Oslo"]

    def script(results: list[str]) -> Reply:
        count = len(results) // 2
        return ("visit", {"place": places[count]}) if count < 2 else results[-2]

    agent = make_agent(script, visit, hooks=[hooks], state={"next": "Rome"})
    tools = {"visit": traits(approve=True)}

    def host_guide() -> HostedAgent:
        return host(agent, name="guide", context=lambda: {"customer": "ada"}, tools=tools)

    first = await host_guide().run("Show me two places")
    assert isinstance(first, Paused)
    second = await host_guide().resume(first.checkpoint, answer=True)
    assert isinstance(second, Paused)
    outcome = await host_guide().resume(second.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    assert outcome.output == "ada was in Oslo, call-2"
    assert hooks.calls == [
        "model {'next': 'Rome'}",
        "tool call-1",
        "model {'visits': ['Rome']}",
        "tool call-2",
        "model {'visits': ['Rome', 'Oslo']}",
    ]
    prompts = get_model(agent).prompts
    assert all(prompt.startswith("system: Guide ada.") for prompt in prompts)
    assert "by bus" in prompts[-1]
    assert (agent.messages, agent.state.get()) == ([], {"next": "Rome"})  # untouched


async def test_concurrent_runs_of_one_agent_do_not_mix() -> None:
    """Strands locks an agent and keeps its messages; each call has a copy."""
    arrived = 0
    both = anyio.Event()

    @tool(context=True)
    async def meet(name: str, tool_context: ToolContext[StrandsAgent]) -> str:
        """Wait for the other run."""
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            both.set()
        await both.wait()
        tool_context.agent.state.set("name", name)
        return f"met {name} after {len(tool_context.agent.messages)} messages"

    tasks = ["ada", "bob"]

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("meet", {"name": tasks.pop(0)})

    agent = make_agent(script, meet)
    hosted = host(agent, name="host")
    async with Midrun("memory://", agents=[hosted]) as midrun:
        runs = [await midrun.start(hosted, f"Meet {n}") for n in (1, 2)]
        outputs = {(await run.until("completed")).output for run in runs}
    assert outputs == {"met ada after 2 messages", "met bob after 2 messages"}
    for prompt in get_model(agent).prompts:
        assert ("Meet 1" in prompt) != ("Meet 2" in prompt)


async def test_state_survives_a_pause_in_mid_stream(store_path: Path) -> None:
    """The interrupted reply stores no state; that of the tools is applied again."""
    gate = Gate(after=1)
    call = Call("visit", '{"place": "Rome"}')
    answers = Answer(call), Answer(Text("Half", "way"), fault=gate), Answer(Text("Done"))
    hooks = Hooks()
    async with Provider(*answers) as provider:
        agent = StrandsAgent(make_strands_model(provider.url), tools=[visit], hooks=[hooks])
        hosted = host(agent, name="guide", context=lambda: {"customer": "ada"})
        async with Midrun(get_store_url(store_path), agents=[hosted]) as midrun:
            run = await midrun.start(hosted, "Show me Rome")
            await gate.wait_until_reached()
            await run.pause()
            await run.until("paused")
            await run.resume()
            await run.until("completed")
    assert hooks.calls[-1] == "model {'visits': ['Rome']}"


async def test_a_hook_may_answer_end_or_continue_the_turn() -> None:
    """`cancel` of a model call, `end_turn` after tools, and `resume` after the answer."""

    def deny(event: BeforeModelCallEvent) -> None:
        event.cancel = "not today"

    assert (await run_agent(make_agent(lambda _: "", hooks=[deny]))).output == "not today"

    @tool
    async def look_up(number: int) -> str:
        """Look up a number."""
        return f"number {number}"

    def end(event: AfterToolsEvent) -> None:
        event.end_turn = "that is all"

    agent = make_agent(lambda _: ("look_up", {"number": 7}), look_up, hooks=[end])
    assert (await run_agent(agent)).output == "that is all"
    assert len(get_model(agent).prompts) == 1

    def go_on(event: AfterInvocationEvent) -> None:
        is_first = "Once more" not in get_model(agent).prompts[-1]
        event.resume = "Once more" if is_first else None

    agent = make_agent(lambda _: f"answer {len(get_model(agent).prompts)}", hooks=[go_on])
    assert (await run_agent(agent)).output == "answer 2"


async def test_a_hook_cannot_repeat_a_tool_inside_of_one_call() -> None:
    """The journal would have one call for two executions, also of a once-only tool."""
    charged = []

    @tool
    async def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        return f"charged {amount}"

    def retry_once(event: AfterToolCallEvent) -> None:
        event.retry = len(charged) < 2

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("charge", {"amount": 7})

    outcome = await run_agent(make_agent(script, charge, hooks=[retry_once]))
    assert (outcome.output, charged) == ("charged 7", [7])


async def test_the_state_of_a_journaled_reply_is_not_changed() -> None:
    """A call reads the journal of the live run; a replay must find the same."""
    changes: Json = {"set": {"visits": ["Rome"]}, "deleted": ["next"]}
    result: Json = {"strands_result": [{"text": "Rome"}], "state": changes}
    use = CallResult(call=CallId("c2"), tool="visit", args={"place": "Rome"}, result=result)
    asking = {"toolUse": {"name": "visit", "input": {}, "toolUseId": "call-1"}}
    opaque: Json = {"content": [cast("Json", asking)], "state": {"next": "Rome"}}
    reply = Turn(role="assistant", text="", uses=(use,), opaque=opaque)
    before = copy.deepcopy(reply)
    hooks = Hooks()
    agent = make_agent(lambda _: "Done", visit, hooks=[hooks])
    hosted = host(agent, name="guide", context=lambda: {"customer": "ada"})
    transcript = FixedTranscript(Turn(role="user", text="Go"), reply)
    prompt = Prompt(instructions="", transcript=transcript)
    async with cast("ModelPort", hosted.model).stream(prompt) as pieces:
        assert [piece async for piece in pieces]
    assert hooks.calls == ["model {'visits': ['Rome']}"]
    assert reply == before


async def test_the_last_key_that_a_hook_deletes_stays_deleted() -> None:
    """An empty state is stored with the reply, too."""
    states = []

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    def delete_next(event: BeforeModelCallEvent) -> None:
        states.append(event.agent.state.get())
        event.agent.state.delete("next")

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("look", {})

    await run_agent(make_agent(script, look, hooks=[delete_next], state={"next": "Rome"}))
    assert states == [{"next": "Rome"}, {}]


# ── structured output ────────────────────────────────────────────────────────


async def test_a_structured_output_is_the_value_after_a_retry() -> None:
    def script(results: list[str]) -> Reply:
        return "Bill", {"total": 42 if results else "many"}

    agent = make_agent(script, structured_output_model=Bill)
    outcome = await run_agent(agent)
    assert (outcome.value, outcome.output) == ({"total": 42}, '{"total":42}')
    assert "Field 'total'" in get_model(agent).prompts[1]


@pytest.mark.parametrize("forced", [("Bill", {"total": 7}), '{"total": 7}'])
async def test_a_text_is_followed_by_a_request_for_the_output(forced: Reply) -> None:
    """Each request is a journaled call; the second one forces the output tool."""
    replies = iter(["It is 7.", forced])
    agent = make_agent(lambda _: next(replies), structured_output_model=Bill)
    outcome = await run_agent(agent)
    assert outcome.value == {"total": 7}
    model = get_model(agent)
    assert model.choices == [None, {"tool": {"name": "Bill"}}]
    assert "format the previous response" in model.prompts[1]


async def test_an_output_that_is_not_given_fails_the_run() -> None:
    agent = make_agent(lambda _: "It is 7.", structured_output_model=Bill)
    outcome = await host(agent, name="biller").run("Bill")
    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_output"
    assert len(get_model(agent).prompts) == 2


# ── tools ────────────────────────────────────────────────────────────────────


async def test_a_blocking_tool_runs_in_a_process_that_can_be_killed() -> None:
    """Unless a hook must see the call: then it runs in a thread, which cannot be stopped."""
    script = lambda results: results[-1] if results else ("read_process_id", {})  # noqa: E731 - short
    assert int((await run_agent(make_agent(script, read_process_id))).output) != os.getpid()

    def see(event: BeforeToolCallEvent) -> None:
        del event

    watched = make_agent(script, read_process_id, hooks=[see])
    assert host(watched, name="a").tools["read_process_id"].traits.unstoppable
    assert int((await run_agent(watched)).output) == os.getpid()


async def test_an_error_of_a_tool_is_told_to_the_model() -> None:
    @tool
    async def divide(number: int) -> str:
        """Divide by a number."""
        raise ArithmeticError(f"cannot divide by {number}")

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("divide", {"number": 0})

    assert "cannot divide by 0" in (await run_agent(make_agent(script, divide))).output


async def test_an_image_that_a_tool_returns_is_journaled_and_given_back() -> None:
    @tool
    async def draw() -> dict[str, object]:
        """Draw a cat."""
        image = {"image": {"format": "png", "source": {"bytes": b"pixels"}}}
        return {"status": "success", "content": [{"text": "a cat"}, image]}

    agent = make_agent(lambda results: "seen" if results else ("draw", {}), draw)
    await run_agent(agent)
    assert "b'pixels'" in get_model(agent).prompts[-1]


@pytest.mark.parametrize("delegate", [False, True])
async def test_an_agent_that_is_a_tool_is_a_child_run(delegate: bool) -> None:
    """With `delegate`, its answer is that of the run: the model is not asked again."""

    @tool
    async def measure(what: str) -> str:
        """Measure something."""
        return f"{what}: 3 m"

    scribe = make_agent(
        lambda results: results[-1] if results else ("measure", {"what": "the wall"}),
        measure,
        name="surveyor",
        description="Measures walls.",
    )

    def script(results: list[str]) -> Reply:
        return f"I know: {results[-1]}" if results else ("surveyor", {"input": "Measure"})

    agent = make_agent(script, scribe.as_tool(delegate=delegate))
    hosted = host(agent, name="boss", tools={"measure": traits(approve=True)})
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "How long is the wall?")
        (ask,) = (await run.until("waiting")).asks
        assert ask.kind == "child"
        await run.approve(ask=ask.id)
        answer = "the wall: 3 m"
        output = (await run.until("completed")).output
        assert output == (answer if delegate else f"I know: {answer}")
        children = [v for v in (await midrun.runs()).items if v.parent]
        assert [(v.agent, v.output) for v in children] == [("boss.surveyor", answer)]


# ── errors and refusals ──────────────────────────────────────────────────────


async def test_the_worker_retries_and_not_the_framework() -> None:
    """Each attempt is one request; arguments that are not JSON are refused."""
    bad = Answer(Call("look", '{"n": '))
    answers = HttpError(429), HttpError(500), bad, Answer(Text("Hello"))
    looked = []

    @tool
    async def look(n: int = 1) -> str:
        """Look."""
        looked.append(n)
        return "seen"

    async with Provider(*answers) as provider:
        hosted = host(StrandsAgent(make_strands_model(provider.url), tools=[look]), name="a")
        environment = Environment(random_unit=draw_no_delay)
        async with Midrun("memory://", agents=[hosted], outside=environment) as midrun:
            run = await midrun.start(hosted, "Greet")
            assert (await run.until("completed")).output == "Hello"
        assert len(provider.exchanges) == 4
        assert "not acceptable JSON" in json.dumps(provider.exchanges[3].body)
    assert looked == []


@tool(context=True)
async def choose_seat(  # type: ignore[explicit-any]  # of the decorator
    row: int, tool_context: ToolContext
) -> str:
    """Choose a seat in a row."""
    tool_context.agent.state.set("rows", [*(tool_context.agent.state.get("rows") or []), row])
    seat = tool_context.interrupt("seat", reason={"message": "Which seat?", "row": row})
    return f"seat {row}{seat}"


@pytest.mark.parametrize(
    ("decide", "result"),
    [({"answer": "yes"}, "seat 3B"), ({"declined": True}, "CONFIRMATION_FAILED: Is 3 fine?")],
)
async def test_an_interrupt_of_a_tool_call_is_a_question_of_the_run(
    decide: Mapping[str, object], result: str
) -> None:
    """The hook asks first, then the tool. Answers and the state reach the later attempts."""

    class Confirmation(InterventionHandler):
        name = "confirmation"

        async def before_tool_call(
            self, event: BeforeToolCallEvent, **options: object
        ) -> Confirm:
            del options
            return Confirm(prompt=f"Is {event.tool_use['input']['row']} fine?")

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("choose_seat", {"row": 3})

    async def read_state(event: AfterToolCallEvent) -> None:
        rows.append(event.agent.state.get("rows"))

    rows: list[object] = []
    agent = make_agent(script, choose_seat, interventions=[Confirmation()], hooks=[read_state])
    hosted = host(agent, name="clerk")
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Book")
        view = await run.until("waiting")
        assert [ask.question for ask in view.asks] == ["Is 3 fine?"]
        if "declined" in decide:
            await run.decline()
        else:
            await run.answer("yes")
            view = await run.until("waiting")
            assert [ask.question for ask in view.asks] == ["Which seat?"]
            await run.answer("B")
        assert result in (await run.until("completed")).output
    assert rows[-1] == (None if "declined" in decide else [3, 3])


async def test_an_interrupt_before_a_model_call_is_refused_with_the_remedy() -> None:
    def ask(context: AgentStreamContext) -> AgentStreamContext:
        context.interrupt("approve", reason="is it fine?")
        return context

    agent = make_agent(lambda _: "")
    agent.add_middleware(AgentStreamStage.Input, ask)
    outcome = await host(agent, name="a").run("Go")
    assert isinstance(outcome, Failed)
    assert "traits(approve=True)" in outcome.error


async def test_the_model_gets_the_image_of_a_message() -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
    async with Provider(Answer(Text("A cat."))) as provider:
        agent = host(StrandsAgent(make_strands_model(provider.url)), name="viewer")
        async with Midrun("memory://", agents=[agent]) as midrun:
            files = [File("cat.png", "image/png", image), File("a.txt", "text/plain", b"Meow")]
            run = await midrun.start(agent, "What is it?", files=files)
            assert (await run.until("completed")).output == "A cat."
        body = str(provider.exchanges[0].body)
    assert b64encode(image).decode() in body
    assert "Meow" in body


def make_session(tmp_path: Path) -> Mapping[str, object]:
    return {"session_manager": FileSessionManager("s", storage_dir=str(tmp_path))}


@pytest.mark.parametrize(
    ("make_options", "problem"),
    [
        (make_session, "Cannot host a session manager"),
        (lambda _: {"context_manager": "auto"}, "Cannot host a context manager"),
        (lambda _: {"background_tasks": True}, "Cannot host background tasks"),
    ],
)
def test_a_part_with_a_history_of_its_own_is_refused(
    make_options: Callable[[Path], Mapping[str, object]], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        host(make_agent(lambda _: "", **make_options(tmp_path)), name="a")


def test_a_wrong_declaration_is_refused() -> None:
    inner = make_agent(lambda _: "", name="inner")
    with pytest.raises(Misconfigured, match="without a name"):
        host(make_agent(lambda _: ""))
    with pytest.raises(Misconfigured, match="only agents are hosted"):
        host(Swarm([inner]), name="a")
    with pytest.raises(Misconfigured, match="must name tools"):
        host(inner, tools={"pay": traits()})
    with pytest.raises(Misconfigured, match="preserve_context"):
        host(make_agent(lambda _: "", inner.as_tool(preserve_context=True)), name="a")


async def test_a_context_that_is_no_dict_fails_the_run() -> None:
    hosted = host(make_agent(lambda _: ""), name="a", context=lambda: "ada")
    outcome = await hosted.run("Go")
    assert isinstance(outcome, Failed)
    assert "invocation_state" in outcome.error
