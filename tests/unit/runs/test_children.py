"""Child runs: a call that is a run of its own, controlled with its parent."""

import anyio
import anyio.lowlevel

from midrun import Agent, Completed, Midrun, Run, ask_human
from midrun.core.ids import CallId, RunId, make_child_id
from midrun.models import ScriptedModel, Use
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools


def parent_of(*children: Agent, turns: object) -> Agent:
    """Return an agent whose tools are `children`."""
    tools = [child.as_tool() for child in children]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)  # type: ignore[arg-type]  # checked there


async def child_of(midrun: Midrun, run: Run, call: str = "c2") -> Run:
    """Return the run that a call of `run` started, once it is there."""
    child = make_child_id(RunId(run.id), CallId(call))
    while True:
        try:
            return await midrun.get(child)
        except LookupError:
            await anyio.lowlevel.checkpoint()


async def test_the_answer_of_the_child_is_the_result_of_the_call(opened: Opener) -> None:
    """With a journal of its own, which says whose child it is."""
    stage = ControllableTools()
    aide = stage.agent(Use("quick", name="x"), "Found it.", name="aide")
    turns = [
        Use("aide", task="Find x"),
        lambda messages: f"Aide: {messages[-1].uses[0].result}",
    ]
    midrun = await opened(parent_of(aide, turns=turns))
    run = await midrun.start("parent", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Aide: Found it."
    child = await child_of(midrun, run)
    view = await child.view()
    assert (view.phase, view.task, view.agent) == ("completed", "Find x", "aide")
    row = await midrun.store.get_row(RunId(child.id))
    assert row.head.parent == run.id


async def test_a_pause_of_the_parent_pauses_the_child_and_a_resume_goes_on(
    opened: Opener,
) -> None:
    """The parent is paused only when its child is."""
    stage = ControllableTools()
    aide = stage.agent(Use("slow", name="x"), Use("quick", name="y"), "Found.", name="aide")
    midrun = await opened(parent_of(aide, turns=[Use("aide", task="Find"), "Done."]))
    run = await midrun.start("parent", "go")
    await stage.start("x").wait()
    await run.pause()
    child = await child_of(midrun, run)
    await child.until("pausing")
    assert (await run.view()).phase == "pausing"
    stage.gate("x").set()
    await run.until("paused")
    assert (await child.view()).phase == "paused"
    assert stage.completed == ["x"]
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert stage.completed == ["x", "y"]


async def test_a_cancel_reaches_the_child_first_and_undoes_its_work_before_the_parents(
    opened: Opener,
) -> None:
    """In reverse order over both of them."""
    stage = ControllableTools()
    aide = stage.agent(
        Use("draft", name="inner"), Use("slow_draft", name="flight"), name="aide"
    )
    model = ScriptedModel([Use("draft", name="outer"), Use("aide", task="Find")])
    parent = Agent("parent", model=model, tools=[*stage.tools(), aide.as_tool()])
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    await stage.start("flight").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert stage.undone == ["flight", "inner", "outer"]
    child = await child_of(midrun, run, "c4")
    assert (await child.view()).phase == "cancelled"


async def test_what_a_child_asks_is_asked_on_its_parent_and_answered_there(
    opened: Opener,
) -> None:
    """The answer is passed on, with who gave it."""
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
    midrun = await opened(parent_of(aide, turns=turns))
    run = await midrun.start("parent", "go")
    view = await run.until("waiting")
    (ask,) = view.asks
    assert (ask.kind, ask.question) == ("child", "Which?")
    await run.answer("red", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "They said red."


async def test_what_a_child_asks_may_be_answered_on_the_child(opened: Opener) -> None:
    """Then the parent's ask needs nobody any more, and the parent goes on by itself."""
    aide = Agent(
        "aide",
        model=ScriptedModel([Use("ask_human", question="Which?"), "Thanks."]),
        tools=[ask_human],
    )
    midrun = await opened(parent_of(aide, turns=[Use("aide", task="Ask"), "Done."]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await child_of(midrun, run)
    await child.answer("blue")
    assert (await run.until("completed")).output == "Done."


async def test_children_work_side_by_side(opened: Opener) -> None:
    """Three calls of one step, three runs; the parent waits for all of them."""
    stage = ControllableTools()
    aides = [stage.agent(Use("slow", name=n), f"{n}!", name=n) for n in ("a", "b", "c")]
    turns = [
        [Use(n, task="go") for n in ("a", "b", "c")],
        lambda messages: " ".join(str(use.result) for use in messages[-1].uses),
    ]
    midrun = await opened(parent_of(*aides, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "c"):
        await stage.start(name).wait()
    for name in ("c", "a", "b"):
        stage.gate(name).set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a! b! c!"


async def test_a_grandchild_is_cancelled_with_them_all(opened: Opener) -> None:
    """However deep it goes."""
    stage = ControllableTools()
    inner = stage.agent(Use("slow_draft", name="deep"), name="inner")
    middle = Agent(
        "middle", model=ScriptedModel([Use("inner", task="deeper")]), tools=[inner.as_tool()]
    )
    midrun = await opened(parent_of(middle, turns=[Use("middle", task="deep")]))
    run = await midrun.start("parent", "go")
    await stage.start("deep").wait()
    await run.cancel()
    await run.until("cancelled")
    assert stage.undone == ["deep"]


async def test_a_child_that_is_held_with_its_parent_does_not_go_on_when_it_is_answered(
    opened: Opener,
) -> None:
    """The parent is paused: so is everything of it."""
    stage = ControllableTools()
    model = ScriptedModel([Use("ask_human", question="Which?"), Use("quick", name="x"), "Ok."])
    aide = Agent("aide", model=model, tools=[ask_human, *stage.tools()])
    midrun = await opened(parent_of(aide, turns=[Use("aide", task="Ask"), "Done."]))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.pause()
    child = await child_of(midrun, run)
    await child.answer("red")
    await child.until("paused")
    assert stage.called == []
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert stage.called == ["x"]
