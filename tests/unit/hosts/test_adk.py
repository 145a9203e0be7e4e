"""An agent of Google ADK, hosted: the contract of hosts, and what this framework adds."""

import json
import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps import App
from google.adk.artifacts import FileArtifactService
from google.adk.code_executors import UnsafeLocalCodeExecutor
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.google_search_tool import google_search
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from midrun import Completed, Failed, File, Midrun, Misconfigured, Paused, host, traits
from midrun.core.values import Json
from midrun.hosts import HostedAgent
from midrun.hosts.adk import AdkContext
from midrun.ports.environment import Environment
from tests.support.conditions import draw_no_delay
from tests.support.providers import Answer, Call, EarlyEnd, Gate, HttpError, Provider, Text
from tests.support.store_choice import get_store_url
from tests.unit.hosts.blocking_tools import get_process_id
from tests.unit.hosts.foreign_agents import make_gemini_model
from tests.unit.hosts.suite_provider import HostContract

Reply = str | tuple[str, dict[str, object]]
Script = Callable[[list[str]], Reply]


class TestContract(HostContract):
    agent_factory = "tests.unit.hosts.foreign_agents:make_adk_agent"
    framework = "Google ADK agent"
    package = "google-adk"


class Bill(BaseModel):  # type: ignore[explicit-any]  # of its base
    """A bill."""

    total: int


class ScriptedLlm(BaseLlm):  # type: ignore[explicit-any]  # of its base
    """A model that is told the results so far; it answers a text or a call."""

    script: Script
    prompts: list[str] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT002 - of its base
    ) -> AsyncGenerator[LlmResponse]:
        del stream
        told = [c.model_dump(mode="json", exclude_none=True) for c in llm_request.contents]
        system = llm_request.config.system_instruction
        self.prompts.append(f"system: {system} {json.dumps(told)}")
        responses = [
            part.function_response
            for content in llm_request.contents
            for part in content.parts or []
            if part.function_response
        ]
        results = [str(next(iter((each.response or {}).values()), "")) for each in responses]
        answer = self.script(results)
        if isinstance(answer, str):
            part = types.Part(text=answer)
        else:
            id_ = f"call-{len(self.prompts)}"
            call = types.FunctionCall(id=id_, name=answer[0], args=answer[1])
            part = types.Part(function_call=call)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def make_agent(script: Script, *tools: object, **options: object) -> LlmAgent:
    model = ScriptedLlm(model="scripted", script=script)
    given = {"name": "clerk", "model": model, "tools": list(tools), **options}
    return LlmAgent(**cast("Any", given))  # type: ignore[explicit-any]


def get_prompts(agent: LlmAgent) -> list[str]:
    return cast("ScriptedLlm", agent.model).prompts


async def run_agent(agent: LlmAgent) -> Completed:
    outcome = await host(agent).run("Go")
    assert isinstance(outcome, Completed), outcome
    return outcome


# ── state, callbacks, artifacts ──────────────────────────────────────────────


async def visit(place: str, tool_context: ToolContext) -> str:
    """Visit a place."""
    visits = [*tool_context.state.get("visits", []), place]
    tool_context.state["visits"] = visits
    tool_context.state["temp:now"] = place
    return f"{tool_context.state['customer']} was in {place}, {tool_context.function_call_id}"


class Callbacks:
    """Counts its callbacks, and changes the state and the results."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def before_agent(self, callback_context: CallbackContext) -> None:
        self.calls.append("before_agent")
        callback_context.state["visits"] = ["start"]

    async def after_agent(self, callback_context: CallbackContext) -> None:
        self.calls.append(f"after_agent {callback_context.state['visits']}")

    def before_model(self, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        del llm_request
        self.calls.append(f"before_model {callback_context.state['visits']}")

    def after_tool(
        self,
        tool: BaseTool,
        args: dict[str, object],
        tool_context: ToolContext,
        tool_response: object,
    ) -> dict[str, object]:
        del args, tool_context
        return {"result": f"{tool.name}: {tool_response}"}

    def add_to(self, script: Script, *tools: object, **options: object) -> LlmAgent:
        return make_agent(
            script,
            *tools,
            before_agent_callback=self.before_agent,
            after_agent_callback=self.after_agent,
            before_model_callback=self.before_model,
            after_tool_callback=self.after_tool,
            **options,
        )


async def test_callbacks_context_and_state_are_those_of_the_agent() -> None:
    """Another process has the state, too: it is in the checkpoint."""
    callbacks = Callbacks()
    places = ["Rome", "Oslo"]

    def script(results: list[str]) -> Reply:
        return ("visit", {"place": places[len(results)]}) if len(results) < 2 else results[-1]

    agent = callbacks.add_to(script, visit, instruction="Guide {customer}.")

    def host_guide() -> HostedAgent:
        tools = {"visit": traits(approve=True)}
        return host(agent, context=lambda: {"customer": "ada"}, tools=tools)

    first = await host_guide().run("Show me two places")
    assert isinstance(first, Paused)
    second = await host_guide().resume(first.checkpoint, answer=True)
    assert isinstance(second, Paused)
    outcome = await host_guide().resume(second.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    assert outcome.output == "visit: ada was in Oslo, call-2"
    assert callbacks.calls == [
        "before_agent",
        "before_model ['start']",
        "before_model ['start', 'Rome']",
        "before_model ['start', 'Rome', 'Oslo']",
        "after_agent ['start', 'Rome', 'Oslo']",
    ]
    assert all("Guide ada." in prompt for prompt in get_prompts(agent))


async def test_state_survives_a_pause_in_mid_stream(store_path: Path) -> None:
    """The interrupted reply stores no state; that of the tools is applied again."""
    gate = Gate(after=1)
    call = Call("visit", '{"place": "Rome"}')
    answers = Answer(call), Answer(Text("Half", "way"), fault=gate), Answer(Text("Done"))
    async with Provider(*answers) as provider:
        agent = LlmAgent(
            name="guide",
            model=make_gemini_model(provider.url),
            instruction="Seen: {visits?}",
            tools=[visit],
        )
        hosted = host(agent, context=lambda: {"customer": "ada"})
        async with Midrun(get_store_url(store_path), agents=[hosted]) as midrun:
            run = await midrun.start(hosted, "Show me Rome")
            await gate.wait_until_reached()
            await run.pause()
            await run.until("paused")
            await run.resume()
            await run.until("completed")
        assert "Seen: ['Rome']" in json.dumps(provider.exchanges[2].body)


async def test_a_callback_may_answer_and_a_plugin_of_the_app_sees_each_call() -> None:
    def deny(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse:
        del callback_context, llm_request
        content = types.Content(role="model", parts=[types.Part(text="not today")])
        return LlmResponse(content=content)

    denied = make_agent(lambda _: "", before_model_callback=deny)
    assert (await run_agent(denied)).output == "not today"
    seen = []

    class Watcher(BasePlugin):
        async def before_tool_callback(
            self, *, tool: BaseTool, tool_args: dict[str, object], tool_context: ToolContext
        ) -> None:
            seen.append((tool.name, tool_args, tool_context.function_call_id))

    agent = make_agent(
        lambda results: results[-1] if results else ("get_process_id", {}), get_process_id
    )
    app = App(name="watched", root_agent=agent, plugins=[Watcher("watcher")])
    outcome = await host(app).run("Go")
    assert isinstance(outcome, Completed)
    assert seen == [("get_process_id", {}, "call-1")]
    assert int(outcome.output) == os.getpid()  # in a thread: the plugin must see it


async def test_a_toolset_lists_its_tools_for_each_call() -> None:
    """It remembers them for an invocation, and all runs share it."""

    async def look() -> str:
        """Look."""
        return "seen"

    async def pay() -> str:
        """Pay."""
        return "paid"

    class Toolset(BaseToolset):
        def __init__(self) -> None:
            super().__init__()
            self.invocations: list[str] = []

        async def get_tools(
            self, readonly_context: ReadonlyContext | None = None
        ) -> list[BaseTool]:
            assert readonly_context is not None
            self.invocations.append(readonly_context.invocation_id)
            return [FunctionTool(pay if readonly_context.state["may_pay"] else look)]

    toolset, wanted = Toolset(), ["look", "pay"]

    def script(results: list[str]) -> Reply:
        return results[-1] if results else (wanted.pop(0), {})

    agent = make_agent(script, toolset)
    for may_pay, output in ((False, "seen"), (True, "paid")):
        outcome = await host(agent, context=lambda may=may_pay: {"may_pay": may}).run("Go")
        assert isinstance(outcome, Completed)
        assert outcome.output == output
    assert len(set(toolset.invocations)) == len(toolset.invocations) == 6


async def test_artifacts_are_kept_by_the_service_of_the_context(tmp_path: Path) -> None:
    """Without a service the call fails: memory of the process would not survive it."""

    async def save(tool_context: ToolContext) -> str:
        """Save a file."""
        part = types.Part.from_bytes(data=b"pixels", mime_type="image/png")
        return f"version {await tool_context.save_artifact('cat.png', part)}"

    agent = make_agent(lambda results: results[-1] if results else ("save", {}), save)
    assert "Artifact service" in (await run_agent(agent)).output
    service = FileArtifactService(str(tmp_path))
    hosted = host(agent, context=lambda: AdkContext(artifact_service=service))
    outcome = await hosted.run("Go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "version 0"


# ── output ───────────────────────────────────────────────────────────────────


async def test_an_output_of_a_schema_is_the_value() -> None:
    agent = make_agent(lambda _: '{"total": 7}', output_schema=Bill, output_key="bill")
    outcome = await run_agent(agent)
    assert (outcome.value, outcome.output) == ({"total": 7}, '{"total": 7}')
    failed = await host(make_agent(lambda _: "seven", output_schema=Bill)).run("Go")
    assert isinstance(failed, Failed)
    assert failed.code == "bad_output"


async def test_an_output_beside_tools_is_the_value_after_a_retry() -> None:
    """ADK gives the model a tool for its output; a wrong one is a refused call."""

    def script(results: list[str]) -> Reply:
        return "set_model_response", {"total": 42 if results else "many"}

    agent = make_agent(script, visit, output_schema=Bill)
    outcome = await run_agent(agent)
    assert outcome.value == {"total": 42}
    assert "Validation Error" in get_prompts(agent)[1]


# ── tools ────────────────────────────────────────────────────────────────────


async def test_a_blocking_function_runs_in_a_process_that_can_be_killed() -> None:
    script = lambda results: results[-1] if results else ("get_process_id", {})  # noqa: E731 - short
    agent = make_agent(script, get_process_id)
    assert int((await run_agent(agent)).output) != os.getpid()

    def block(tool_context: ToolContext) -> str:
        """Block."""
        return str(tool_context)

    assert host(make_agent(script, block)).tools["block"].traits.unstoppable


async def test_an_error_of_a_tool_is_told_to_the_model() -> None:
    async def divide(number: int) -> str:
        """Divide by a number."""
        raise ArithmeticError(f"cannot divide by {number}")

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("divide", {"number": 0})

    assert "cannot divide by 0" in (await run_agent(make_agent(script, divide))).output


async def test_a_confirmation_that_a_tool_requires_is_an_approval() -> None:
    async def pay(amount: int) -> dict[str, object]:
        """Pay."""
        return {"paid": amount}

    def script(results: list[str]) -> Reply:
        return f"paid {results[-1]}" if results else ("pay", {"amount": 900})

    for limit, is_asked in ((1000, False), (100, True)):
        needs = lambda amount, limit=limit: amount > limit  # noqa: E731 - short
        hosted = host(make_agent(script, FunctionTool(pay, require_confirmation=needs)))
        outcome = await hosted.run("Pay")
        if is_asked:
            assert isinstance(outcome, Paused)
            outcome = await hosted.resume(outcome.checkpoint, answer=True)
        assert isinstance(outcome, Completed)
        assert outcome.output == "paid 900"


async def test_a_transfer_is_a_call_and_the_other_agent_goes_on() -> None:
    """Both have a tool `price`; that of the agent which is asked is called."""

    async def price_of_cats() -> str:
        """Return the price."""
        return "a cat is 42"

    async def price_of_dogs() -> str:
        """Return the price."""
        return "a dog is 43"

    greeted = []

    def greet(callback_context: CallbackContext) -> None:
        greeted.append(callback_context.agent_name)

    price_of_cats.__name__ = price_of_dogs.__name__ = "price"
    seller = make_agent(
        lambda results: results[-1] if results else ("price", {}),
        price_of_dogs,
        name="dog_seller",
        description="Sells dogs.",
        before_agent_callback=greet,
    )
    agent = make_agent(
        lambda _: ("transfer_to_agent", {"agent_name": "dog_seller"}),
        price_of_cats,
        sub_agents=[seller],
    )
    hosted = host(agent, tools={"price": traits(approve=True)})
    paused = await hosted.run("A dog, please")
    assert isinstance(paused, Paused)
    outcome = await host(agent, tools={"price": traits(approve=True)}).resume(
        paused.checkpoint, answer=True
    )
    assert isinstance(outcome, Completed)
    assert outcome.output == "a dog is 43"
    assert (len(get_prompts(agent)), len(get_prompts(seller))) == (1, 2)
    assert greeted == ["dog_seller"]


@pytest.mark.parametrize("is_direct", [False, True])
async def test_an_agent_tool_is_a_child_run(is_direct: bool) -> None:
    """With `skip_summarization`, its answer is that of the run."""

    async def measure(what: str) -> str:
        """Measure something."""
        return f"{what}: 3 m"

    def measure_wall(results: list[str]) -> Reply:
        return results[-1] if results else ("measure", {"what": "the wall"})

    inner = make_agent(measure_wall, measure, name="surveyor", description="Measures walls.")

    def script(results: list[str]) -> Reply:
        return f"I know: {results[-1]}" if results else ("surveyor", {"request": "Measure"})

    agent = make_agent(script, AgentTool(inner, skip_summarization=is_direct))
    hosted = host(agent, name="boss", tools={"measure": traits(approve=True)})
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "How long is the wall?")
        (ask,) = (await run.until("waiting")).asks
        await run.approve(ask=ask.id)
        answer = "the wall: 3 m"
        output = (await run.until("completed")).output
        assert output == (answer if is_direct else f"I know: {answer}")
        children = [v for v in (await midrun.runs()).items if v.parent]
        assert [(v.agent, v.output) for v in children] == [("boss.surveyor", answer)]


def test_a_tool_of_the_provider_is_listed_as_ungated() -> None:
    agent = LlmAgent(name="searcher", model="gemini-3.5-flash", tools=[google_search])
    hosted = host(agent)
    assert (hosted.ungated_tools, hosted.tools) == (("google_search",), {})


# ── errors and refusals ──────────────────────────────────────────────────────


async def test_the_worker_retries_and_not_the_framework() -> None:
    """Each attempt is one request; a reply that breaks off is one, too."""
    answers = (
        HttpError(503, kind="UNAVAILABLE"),
        Answer(Text("Hel", "lo"), fault=EarlyEnd(after=1)),
        Answer(Text("Hello")),
    )
    async with Provider(*answers) as provider:
        hosted = host(LlmAgent(name="greeter", model=make_gemini_model(provider.url)))
        environment = Environment(random_unit=draw_no_delay)
        async with Midrun("memory://", agents=[hosted], outside=environment) as midrun:
            run = await midrun.start(hosted, "Greet")
            assert (await run.until("completed")).output == "Hello"
        assert len(provider.exchanges) == 3


async def ask_for_seat(row: int, tool_context: ToolContext) -> str:
    """Book a seat."""
    found = tool_context.tool_confirmation
    if found is None:
        tool_context.state["row"] = row
        tool_context.request_confirmation(hint="Is it fine?", payload={"seat": "A"})
        return "not yet"
    return f"{found.confirmed} {found.payload} {tool_context.state['row']}"


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("yes", "True yes 3"),
        ({"payload": {"seat": "B"}}, "True {'seat': 'B'} 3"),
        ("no", "False no 3"),
        (None, "False False 3"),
    ],
)
async def test_a_request_for_confirmation_is_a_question_of_the_run(
    answer: Json, result: str
) -> None:
    """None: the person declines. The change of the state before the question is kept."""

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("ask_for_seat", {"row": 3})

    hosted = host(make_agent(script, ask_for_seat))
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Book")
        (ask,) = (await run.until("waiting")).asks
        assert ask.question == "Is it fine?"
        assert ask.data == {"options": ["yes", "no"], "payload": {"seat": "A"}}
        await (run.decline() if answer is None else run.answer(answer))
        assert (await run.until("completed")).output == result


async def test_a_tool_that_asks_sees_an_approval_of_midrun_as_its_confirmation() -> None:
    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("ask_for_seat", {"row": 3})

    declared = {"ask_for_seat": traits(approve=True)}
    hosted = host(make_agent(script, ask_for_seat), context=lambda: {"row": 3}, tools=declared)
    paused = await hosted.run("Go")
    assert isinstance(paused, Paused)
    outcome = await hosted.resume(paused.checkpoint, answer=True)
    assert isinstance(outcome, Completed)
    assert outcome.output == "True None 3"


async def test_the_result_of_a_long_running_tool_is_the_answer_of_a_person() -> None:
    def open_ticket(title: str, tool_context: ToolContext) -> dict[str, str]:
        """Open a ticket."""
        tool_context.state["title"] = title
        opened.append(title)
        return {"status": "pending", "ticket": "T1"}

    def script(results: list[str]) -> Reply:
        return results[-1] if results else ("open_ticket", {"title": "leak"})

    opened: list[str] = []
    agent = make_agent(script, LongRunningFunctionTool(open_ticket), instruction="{title?}")
    hosted = host(agent)
    async with Midrun("memory://", agents=[hosted]) as midrun:
        run = await midrun.start(hosted, "Go")
        (ask,) = (await run.until("waiting")).asks
        assert ask.data == {"status": {"status": "pending", "ticket": "T1"}}
        await run.answer({"status": "approved"})
        assert (await run.until("completed")).output == "approved"
    assert opened == ["leak"]
    assert "leak" in get_prompts(agent)[1].partition("[")[0]


async def test_the_model_gets_the_image_of_a_message() -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
    async with Provider(Answer(Text("A cat."))) as provider:
        agent = host(LlmAgent(name="viewer", model=make_gemini_model(provider.url)))
        async with Midrun("memory://", agents=[agent]) as midrun:
            files = [File("cat.png", "image/png", image), File("a.txt", "text/plain", b"Meow")]
            run = await midrun.start(agent, "What is it?", files=files)
            assert (await run.until("completed")).output == "A cat."
        body = str(provider.exchanges[0].body)
    assert b64encode(image).decode() in body
    assert "Meow" in body


class OtherAgent(BaseAgent):  # type: ignore[explicit-any]  # of its base
    """An agent with a loop of its own."""


def make_workflow() -> BaseAgent:
    return OtherAgent(name="flow", sub_agents=[make_agent(lambda _: "", name="a")])


def make_typed_tool() -> object:
    return AgentTool(make_agent(lambda _: "", name="typed", input_schema=Bill))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (make_workflow, "only LlmAgent and App are hosted"),
        (
            lambda: make_agent(lambda _: "", sub_agents=[make_workflow()]),
            "only LlmAgent and App are hosted",
        ),
        (
            lambda: make_agent(lambda _: "", AgentTool(make_workflow())),
            "only LlmAgent and App are hosted",
        ),
        (lambda: make_agent(lambda _: "", make_typed_tool()), "with an input_schema"),
        (lambda: make_agent(lambda _: "", mode="task"), "in the mode task"),
        (
            lambda: make_agent(lambda _: "", code_executor=UnsafeLocalCodeExecutor()),
            "Cannot host the code executor",
        ),
    ],
)
def test_a_part_of_another_loop_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(Misconfigured, match=problem):
        host(make())


async def test_a_wrong_declaration_is_refused() -> None:
    with pytest.raises(Misconfigured, match="must name tools"):
        host(make_agent(lambda _: ""), tools={"pay": traits()})
    outcome = await host(make_agent(lambda _: ""), context=lambda: "ada").run("Go")
    assert isinstance(outcome, Failed)
    assert "AdkContext" in outcome.error
