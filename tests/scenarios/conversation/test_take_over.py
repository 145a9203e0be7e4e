"""Take-over and hand-back: a person is the assistant for a while, by the same door."""

from collections.abc import Awaitable

import pytest

from midrun import Actor, Agent, Completed, ControlRefused, Paused, Receipt, Run
from midrun.core.entries import CallProposed, HandedBack, PersonWrote, TakenOver
from midrun.core.transcript import Transcript, Turn
from midrun.models import Use
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating
from tests.scenarios.promises.seen import entries, recorded, turns
from tests.scenarios.promises.speaker import Line, Speaker
from tests.unit.runs.conftest import Opener

OLGA = Actor(name="olga", role="operator")


async def refused(control: Awaitable[Receipt]) -> ControlRefused:
    """Return how a control was refused."""
    with pytest.raises(ControlRefused) as caught:
        await control
    return caught.value


async def at_the_wheel(opened: Opener, shop: Workshop, *rest: object) -> Run:
    """Bring a run to where ada is at its wheel, after one call of its own."""
    agent = shop.agent(Use("slow", name="own"), *rest)
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("own").wait()
    assert not (await run.take_over(actor="ada")).applied
    shop.gate("own").set()
    await run.until("paused")
    return run


async def test_the_whole_cycle(opened: Opener) -> None:
    """Taken over while a call finishes, written, a tool used by hand, handed back."""
    shop = Workshop()
    heard: list[Turn] = []

    def listens(messages: Transcript) -> str:
        heard.extend(messages)
        return "Thanks, Ada."

    run = await at_the_wheel(opened, shop, listens)
    view = await run.view()
    assert (view.phase, view.reason, shop.completed) == ("paused", "taken_over", ["own"])
    await run.write("Let me do this one.", actor="ada")
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await shop.start("by hand").wait()
    back = await run.until("paused")
    assert back.reason == "taken_over"
    await run.write("It is done.", actor="ada")
    await run.hand_back(actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Thanks, Ada."
    assert shop.completed == ["own", "by hand"]
    written = [(t.role, t.by, t.text) for t in heard if t.kind == "person" and t.text]
    assert written == [
        ("assistant", "ada", "Let me do this one."),
        ("assistant", "ada", "It is done."),
    ]


async def test_the_model_is_told_what_the_person_made_and_what_came_of_it(
    opened: Opener,
) -> None:
    """Otherwise it does it again: the call and its result are part of the conversation."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Thanks.")
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await shop.start("by hand").wait()
    await run.until("paused")
    await run.hand_back(actor="ada")
    await run.until("completed")
    made = [made for turn in await turns(run) for made in turn.uses]
    assert [(m.args, m.result) for m in made] == [
        ({"name": "own"}, "own done"),
        ({"name": "by hand"}, "by hand done"),
    ]


async def test_it_is_handed_back_with_an_instruction(opened: Opener) -> None:
    """The instruction is the person's, and the newest thing that the model hears."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, lambda messages: messages[-1].text)
    await run.hand_back("Now the other half", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Now the other half"
    said = [t for t in await turns(run) if t.kind == "instruction"]
    assert [(t.role, t.by) for t in said] == [("user", "ada")]


async def test_others_are_refused_by_name_until_it_is_handed_back(opened: Opener) -> None:
    """Nobody takes the wheel from somebody, or drives past them."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    for control in (
        run.resume(actor="bob"),
        run.redirect("Elsewhere", actor="bob"),
        run.take_over(actor="bob"),
    ):
        problem = await refused(control)
        assert (problem.reason, problem.by) == ("taken_over", "ada")
    for control in (
        run.write("Me too", actor="bob"),
        run.use_tool("quick", {"name": "bob's"}, actor="bob"),
        run.hand_back(actor="bob"),
    ):
        problem = await refused(control)
        assert (problem.reason, problem.by) == ("not_taken_over", "ada")
    assert shop.called == ["own"]
    assert not await entries(run, PersonWrote)


async def test_an_operator_may_hand_back_in_the_persons_place(opened: Opener) -> None:
    """A person who left does not hold the run for ever."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    await run.hand_back(actor=OLGA)
    assert isinstance(await run.result(), Completed)
    (handed,) = await entries(run, HandedBack)
    assert (handed.by, handed.role) == ("olga", "operator")


async def test_an_operator_may_take_the_wheel_from_a_person(opened: Opener) -> None:
    """Then it is the operator's, and the person is refused by name."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    await run.take_over(actor=OLGA)
    problem = await refused(run.write("Still me", actor="ada"))
    assert (problem.reason, problem.by) == ("not_taken_over", "olga")
    await run.write("It is me.", actor=OLGA)
    await run.hand_back(actor=OLGA)
    await run.until("completed")
    assert [taken.by for taken in await entries(run, TakenOver)] == ["ada", "olga"]


async def test_writing_is_refused_before_the_wheel_is_free(opened: Opener) -> None:
    """While a call of the agent's still finishes, the person is not at the wheel yet."""
    shop = Workshop()
    agent = shop.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("own").wait()
    await run.take_over(actor="ada")
    assert (await refused(run.write("Hello", actor="ada"))).reason == "is_pausing"
    shop.gate("own").set()
    await run.until("paused")
    await run.write("Hello", actor="ada")
    await run.hand_back(actor="ada")
    await run.until("completed")


async def test_nobody_writes_into_a_run_that_nobody_took_over(opened: Opener) -> None:
    """A pause is not a take-over."""
    shop = Workshop()
    agent = shop.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("own").wait()
    await run.pause(actor="ada")
    shop.gate("own").set()
    await run.until("paused")
    problems = [
        await refused(run.write("Hello", actor="ada")),
        await refused(run.use_tool("quick", {"name": "x"}, actor="ada")),
        await refused(run.hand_back(actor="ada")),
    ]
    assert {problem.reason for problem in problems} == {"not_taken_over"}


async def test_a_tool_used_by_hand_needs_its_approval_too(opened: Opener) -> None:
    """The same door: the person at the wheel does not outrank the audience."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    await run.use_tool("wire", {"name": "x"}, actor="ada")
    while not (view := await run.until("paused")).asks:
        pass
    assert (view.reason, shop.called) == ("taken_over", ["own"])
    assert (await refused(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=OLGA)
    await shop.start("x").wait()
    assert (await run.until("paused")).reason == "taken_over"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert shop.completed == ["own", "x"]


async def test_a_tool_used_by_hand_that_is_declined_is_never_made(opened: Opener) -> None:
    """And the wheel stays where it was."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    await run.use_tool("pay", {"name": "x"}, actor="ada")
    while not (await run.until("paused")).asks:
        pass
    await run.decline("no", actor="bob")
    assert (await run.until("paused")).reason == "taken_over"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert shop.completed == ["own"]


@pytest.mark.parametrize(("tool", "args"), [("quick", {"nme": "x"}), ("quack", {"name": "x"})])
async def test_a_tool_that_cannot_be_used_like_this_is_refused_at_once(
    opened: Opener, tool: str, args: dict[str, str]
) -> None:
    """The person hears of the slip, as they do of edited arguments that do not fit."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    problem = await refused(run.use_tool(tool, args, actor="ada"))
    assert problem.detail
    assert not await entries(run, CallProposed)
    assert (await run.view()).phase == "paused"


async def test_a_call_made_by_hand_can_be_undone_with_the_rest(opened: Opener) -> None:
    """Who wanted it made does not matter to the cancel."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop)
    await run.use_tool("draft", {"name": "by hand"}, actor="ada")
    await shop.start("by hand").wait()
    await run.until("paused")
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["by hand"]


async def test_the_same_request_uses_a_tool_once(opened: Opener) -> None:
    """A repeat after a lost reply is the same wish."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    for _ in range(2):
        await run.use_tool("quick", {"name": "x"}, actor="ada", request_id="once")
        await shop.start("x").wait()
        await run.until("paused")
    assert shop.completed == ["own", "x"]


async def test_taking_over_closes_the_models_stream_and_keeps_what_it_said(
    opened: Opener,
) -> None:
    """The person sees the half sentence, and goes on from there."""
    model = Speaker(Line("Half a", " sentence.", gate="middle"), "Whole.")
    shop = Workshop()
    agent = Agent("actor", model=model, tools=shop.tools())
    run = await (await opened(agent)).start("actor", "go")
    await model.reached("middle").wait()
    await run.take_over(actor="ada")
    await run.until("paused")
    assert model.closed == ["middle"]
    assert [(t.text, t.interrupted) for t in await turns(run) if t.role == "assistant"] == [
        ("Half a", True)
    ]
    await run.write(" sentence, by me.", actor="ada")
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert [t.by for t in model.heard[1] if t.kind == "person"] == ["ada"]


async def test_a_run_that_waits_is_taken_over_and_its_ask_stays_open(opened: Opener) -> None:
    """The ask outlives the person at the wheel."""
    shop = Workshop()
    agent = shop.agent(Use("ask_human", question="Which?"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    await run.take_over(actor="ada")
    await run.write("I know this one.", actor="ada")
    assert len((await run.view()).asks) == 1
    await run.hand_back(actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "question"
    await run.answer("red")
    assert isinstance(await run.result(), Completed)


async def test_a_failed_run_is_mended_at_the_wheel(opened: Opener) -> None:
    """The person does by hand what the model could not."""
    shop = Workshop()
    agent = shop.agent(Use("quick", name="own"))  # its script ends here: the model fails
    run = await (await opened(agent)).start("actor", "go")
    await run.until("failed")
    await run.take_over(actor="ada")
    assert (await run.view()).phase == "paused"
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await shop.start("by hand").wait()
    await run.until("paused")
    assert shop.completed == ["own", "by hand"]


async def test_a_child_by_hand_is_a_child(opened: Opener) -> None:
    """An agent as a tool goes through the same door, and is paused with its parent."""
    shop = Workshop()
    aide = shop.agent(Use("quick", name="inner"), "Found.", name="aide")
    turns_ = [Use("slow", name="own"), "Done."]
    midrun = await opened(delegating(aide, turns=turns_, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("own").wait()
    await run.take_over(actor="ada")
    shop.gate("own").set()
    await run.until("paused")
    await run.use_tool("aide", {"task": "Find"}, actor="ada")
    child = await child_of(midrun, run, "c3")
    await child.until("completed")
    await run.until("paused")
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert shop.completed == ["own", "inner"]


async def test_a_message_for_a_run_at_the_wheel_waits_for_the_hand_back(opened: Opener) -> None:
    """It is for the agent: nothing is lost, and nobody answers in between."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Tuesday.", "Done.")
    await run.say("What day is it?", actor="bob")
    assert (await run.view()).pending[0].text == "What day is it?"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert "What day is it?" in [t.text for t in await turns(run)]


async def test_a_cancel_reaches_a_run_at_the_wheel(opened: Opener) -> None:
    """Anybody may still stop everything."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop)
    await run.use_tool("slow_draft", {"name": "by hand"}, actor="ada")
    await shop.start("by hand").wait()
    await run.cancel(actor="bob")
    await run.until("cancelled")
    assert shop.undone == ["by hand"]
    assert shop.stopped == ["by hand"]


async def test_another_process_may_sit_at_the_wheel(opened: Opener) -> None:
    """Take-over, words and hand-back come from a process that drives nothing."""
    shop = Workshop()
    agent = shop.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("own").wait()
    elsewhere = await (await opened()).get(run.id)
    await elsewhere.take_over(actor="ada")
    shop.gate("own").set()
    await elsewhere.until("paused")
    await elsewhere.write("From afar.", actor="ada")
    await elsewhere.hand_back(actor="ada")
    await recorded(run, HandedBack)
    await run.until("completed")
    assert [wrote.text for wrote in await entries(run, PersonWrote)] == ["From afar."]


async def test_a_tool_used_from_a_process_without_the_agent_is_still_gated(
    opened: Opener,
) -> None:
    """A desk that does not know the tools cannot make a call look harmless."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Done.")
    elsewhere = await (await opened()).get(run.id)
    try:
        await elsewhere.use_tool("wire", {"name": "x"}, actor="ada")
    except ControlRefused:
        return  # who does not know the tools need not let anybody use them
    while not (view := await run.until("paused")).asks:
        assert shop.called == ["own"], "made without anybody's yes"
    assert view.asks[0].audience == "operator"
    assert shop.called == ["own"]


async def test_a_queued_review_of_a_call_by_hand_outlives_the_hand_back(
    opened: Opener,
) -> None:
    """Proposed at the wheel, approved when the agent is back: made once, told once."""
    shop = Workshop()
    run = await at_the_wheel(opened, shop, "Waiting.", "Done.")
    await run.use_tool("post", {"name": "x"}, actor="ada")
    while not (await run.until("paused")).asks:
        pass
    await run.hand_back(actor="ada")
    await run.until("waiting")
    assert shop.called == ["own"]
    await run.approve(actor="bob")
    await run.until("completed")
    assert shop.completed == ["own", "x"]
