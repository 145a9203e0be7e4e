"""Child runs: calls that are runs with a journal of their own, controlled with their parent."""

from midrun import Agent, Completed, ask_human
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import wait_for_child
from tests.unit.runs.conftest import OpenMidrun


def make_parent(*children: Agent, turns: object) -> Agent:
    """Return an agent whose tools are `children`."""
    tools = [child.as_tool() for child in children]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)  # type: ignore[arg-type]  # checked there


async def test_the_answer_of_the_child_is_the_result_of_the_call(opened: OpenMidrun) -> None:
    """The child has its own journal and row, which names its parent."""
    tools = ControllableTools()
    aide = tools.agent(Use("quick", name="x"), "Found it.", name="aide")
    turns = [
        Use("aide", task="Find x"),
        lambda messages: f"Aide: {messages[-1].uses[0].result}",
    ]
    midrun = await opened(make_parent(aide, turns=turns))
    run = await midrun.start("parent", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Aide: Found it."
    child = await wait_for_child(midrun, run)
    view = await child.view()
    assert (view.phase, view.task, view.agent) == ("completed", "Find x", "aide")
    row = await midrun.store.get_row(RunId(child.id))
    assert row.head.parent == run.id


async def test_a_pause_of_the_parent_pauses_the_child_and_a_resume_continues_both(
    opened: OpenMidrun,
) -> None:
    """The parent becomes *paused* only after its child."""
    tools = ControllableTools()
    aide = tools.agent(Use("slow", name="x"), Use("quick", name="y"), "Found.", name="aide")
    midrun = await opened(make_parent(aide, turns=[Use("aide", task="Find"), "Done."]))
    run = await midrun.start("parent", "go")
    await tools.start("x").wait()
    await run.pause()
    child = await wait_for_child(midrun, run)
    await child.until("pausing")
    assert (await run.view()).phase == "pausing"
    tools.gate("x").set()
    await run.until("paused")
    assert (await child.view()).phase == "paused"
    assert tools.completed == ["x"]
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert tools.completed == ["x", "y"]


async def test_a_cancel_undoes_the_calls_of_the_child_before_those_of_the_parent(
    opened: OpenMidrun,
) -> None:
    """The order is the reverse of the order in which the calls were made, over both runs."""
    tools = ControllableTools()
    aide = tools.agent(
        Use("draft", name="inner"), Use("slow_draft", name="flight"), name="aide"
    )
    model = ScriptedModel([Use("draft", name="outer"), Use("aide", task="Find")])
    parent = Agent("parent", model=model, tools=[*tools.tools(), aide.as_tool()])
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    await tools.start("flight").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert tools.undone == ["flight", "inner", "outer"]
    child = await wait_for_child(midrun, run, "c4")
    assert (await child.view()).phase == "cancelled"


async def test_the_question_of_a_child_can_be_answered_on_its_parent(
    opened: OpenMidrun,
) -> None:
    """The parent opens an ask of kind *child*, and passes the answer on."""
    aide = Agent(
        "aide",
        model=ScriptedModel(
            [
                Use("ask_human", question="Which?"),
                lambda messages: f"They said {messages[-1].uses[0].result}.",
            ]
        ),
        tools=[ask_human],
    )
    turns = [Use("aide", task="Ask"), lambda messages: messages[-1].uses[0].result]
    midrun = await opened(make_parent(aide, turns=turns))
    run = await midrun.start("parent", "go")
    view = await run.until("waiting")
    (ask,) = view.asks
    assert (ask.kind, ask.question) == ("child", "Which?")
    await run.answer("red", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "They said red."


async def test_the_question_of_a_child_can_be_answered_on_the_child(opened: OpenMidrun) -> None:
    """The ask of the parent is then closed, and the parent continues by itself."""
    aide = Agent(
        "aide",
        model=ScriptedModel([Use("ask_human", question="Which?"), "Thanks."]),
        tools=[ask_human],
    )
    midrun = await opened(make_parent(aide, turns=[Use("aide", task="Ask"), "Done."]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await wait_for_child(midrun, run)
    await child.answer("blue")
    assert (await run.until("completed")).output == "Done."


async def test_children_of_one_step_run_in_parallel(opened: OpenMidrun) -> None:
    """The parent waits for all of them."""
    tools = ControllableTools()
    aides = [tools.agent(Use("slow", name=n), f"{n}!", name=n) for n in ("a", "b", "c")]
    turns = [
        [Use(n, task="go") for n in ("a", "b", "c")],
        lambda messages: " ".join(str(use.result) for use in messages[-1].uses),
    ]
    midrun = await opened(make_parent(*aides, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "c"):
        await tools.start(name).wait()
    for name in ("c", "a", "b"):
        tools.gate(name).set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a! b! c!"


async def test_a_cancel_of_the_parent_cancels_its_grandchild(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    inner = tools.agent(Use("slow_draft", name="deep"), name="inner")
    middle = Agent(
        "middle", model=ScriptedModel([Use("inner", task="deeper")]), tools=[inner.as_tool()]
    )
    midrun = await opened(make_parent(middle, turns=[Use("middle", task="deep")]))
    run = await midrun.start("parent", "go")
    await tools.start("deep").wait()
    await run.cancel()
    await run.until("cancelled")
    assert tools.undone == ["deep"]


async def test_a_child_of_a_paused_parent_stays_paused_when_its_question_is_answered(
    opened: OpenMidrun,
) -> None:
    """The child starts no call until the parent is resumed."""
    tools = ControllableTools()
    model = ScriptedModel([Use("ask_human", question="Which?"), Use("quick", name="x"), "Ok."])
    aide = Agent("aide", model=model, tools=[ask_human, *tools.tools()])
    midrun = await opened(make_parent(aide, turns=[Use("aide", task="Ask"), "Done."]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.pause()
    child = await wait_for_child(midrun, run)
    await child.answer("red")
    await child.until("paused")
    assert tools.called == []
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert tools.called == ["x"]
