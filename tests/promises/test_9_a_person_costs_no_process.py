"""A person in the loop costs no process.

A tool may stop the run to ask. The run is then nothing but JSON; whenever and wherever somebody
answers, the answer is the result of the tool, which is not entered again.
"""

import json
from pathlib import Path

import pytest

from midrun import Checkpoint, Completed, ControlRefused, Midrun, NotJson, Paused, is_paused
from midrun.agents.outcome import Outcome
from midrun.core.entries import AskOpened, CallStarted
from midrun.models import Use
from tests.promises.office import office, script, told, written
from tests.promises.processes import elsewhere
from tests.promises.seen import entries, kinds, recorded
from tests.runtime.conftest import Opener
from tests.runtime.stage import Stage


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Give the book that the office writes down in what it does."""
    return str(tmp_path / "book.txt")


def carried(outcome: Outcome) -> Checkpoint:
    """Return the checkpoint of a paused run as it comes back from JSON."""
    assert is_paused(outcome)
    return Checkpoint.from_json(outcome.checkpoint.to_json())


# ── a question ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asking", ["ask_async", "ask_blocking", "ask_thread"])
async def test_the_answer_in_another_process_is_the_result_of_the_tool(
    asking: str, log: str, tmp_path: Path
) -> None:
    """However the tool runs: in the loop, in a process of its own, in a thread."""
    outcome = await office(*script(asking, log)).run("go")
    assert isinstance(outcome, Paused)
    assert (outcome.phase, outcome.reason) == ("waiting", "question")
    (ask,) = outcome.asks
    assert (ask.kind, ask.tool, ask.question) == ("question", asking, "Refund?")
    assert ask.data == {"severity": "high"}
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    said = await elsewhere("resume", asking, log, saved, json.dumps({"amount": 500}), "")
    assert said == {"phase": "completed", "output": f"{asking}: {{'amount': 500}}"}
    assert written(log) == ["asked Refund?"]  # entered once, ever


async def test_both_halves_can_be_other_processes(log: str, tmp_path: Path) -> None:
    """Nothing but the JSON has to survive from the process that asked."""
    first = await elsewhere("run", "ask_blocking", log, "go")
    assert first["phase"] == "waiting"
    saved = tmp_path / "checkpoint.json"
    saved.write_text(first["checkpoint"])
    second = await elsewhere("resume", "ask_blocking", log, saved, '"no"', "")
    assert second["output"] == "ask_blocking: no"
    assert written(log) == ["asked Refund?"]


async def test_a_checkpoint_is_plain_json(log: str) -> None:
    """It survives a database that keeps JSON in its own layout."""
    outcome = await office(*script("ask_async", log)).run("go")
    assert isinstance(outcome, Paused)
    relaid = json.dumps(json.loads(outcome.checkpoint.to_json()), indent=2)
    again = await office(*script("ask_async", log)).resume(Checkpoint.from_json(relaid), True)
    assert isinstance(again, Completed)
    assert again.output == "ask_async: True"


async def test_with_a_store_another_process_answers_and_drives(
    opened: Opener, path: Path, log: str
) -> None:
    """The process that asked may be gone; a waiting run is nobody's."""
    async with Midrun(
        f"sqlite:///{path}", agents=[office(*script("ask_async", log))]
    ) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
        assert (await midrun.store.row(run.id)).holder == ""
    said = await elsewhere("answer", "ask_async", log, path, run.id, '"yes"')
    assert said == {"phase": "completed", "output": "ask_async: yes"}
    assert written(log) == ["asked Refund?"]
    watching = await opened()
    assert (await (await watching.get(run.id)).view()).phase == "completed"


async def test_an_answer_may_be_any_json_also_null_and_false(opened: Opener, log: str) -> None:
    """An answer is data, so an empty one is an answer."""
    for value, shown in (("", ""), (None, "None"), (False, "False"), ([], "[]"), (0, "0")):
        midrun = await opened(office(*script("ask_async", log)))
        run = await midrun.start("office", "go")
        await run.until("waiting")
        await run.answer(value)
        assert (await run.until("completed")).output == f"ask_async: {shown}"


async def test_an_answer_that_is_not_json_is_refused_and_the_ask_stays_open(
    opened: Opener, log: str
) -> None:
    """The path says what to mend; nothing is half applied."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    with pytest.raises(NotJson) as refused:
        await run.answer({"then": [lambda: None]})
    assert "then" in refused.value.path
    assert [ask.kind for ask in (await run.view()).asks] == ["question"]


async def test_ask_human_shows_the_options_and_returns_the_choice(log: str) -> None:
    """The ready-made tool is one like any other."""
    outcome = await office(*script("ask_human", log)).run("go")
    assert isinstance(outcome, Paused)
    (ask,) = outcome.asks
    assert (ask.question, ask.data) == ("Which?", {"options": ["red", "blue"]})
    again = await office(*script("ask_human", log)).resume(carried(outcome), "blue")
    assert isinstance(again, Completed)
    assert again.output == "ask_human: blue"


async def test_the_first_answer_counts_and_the_second_learns_whose_it_was(
    opened: Opener, log: str
) -> None:
    """From whatever process it comes."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(office(asks, told))
    other = await opened()
    run = await midrun.start("office", "go")
    one, two = (await run.until("waiting")).asks
    first = await run.answer("red", ask=one.id, actor="ada")
    with pytest.raises(ControlRefused) as refused:
        await (await other.get(run.id)).answer("blue", ask=one.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("already_answered", "ada")
    assert refused.value.seq == first.seq
    await run.answer("green", ask=two.id)
    assert (await run.until("completed")).output == "ask_async: red; ask_async: green"


async def test_who_answers_after_the_end_still_learns_who_was_first(
    opened: Opener, log: str
) -> None:
    """The run went on and ended meanwhile; that is not what closed the ask."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    (ask,) = (await run.until("waiting")).asks
    first = await run.answer("red", actor="ada")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("blue", ask=ask.id, actor="bob")
    assert refused.value.reason in {"already_answered", "ask_closed"}
    assert (refused.value.by, refused.value.seq) == ("ada", first.seq)


# ── calls beside it ───────────────────────────────────────────────────────────────────────


async def test_calls_beside_the_one_that_asks_are_made_once_and_none_is_dropped(
    log: str, tmp_path: Path
) -> None:
    """Those before it, and those after it in the same step."""
    outcome = await office(*script("siblings", log)).run("go")
    assert isinstance(outcome, Paused)
    assert sorted(written(log)) == ["asked Refund?", "did first", "did last"]
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    said = await elsewhere("resume", "siblings", log, saved, '"ok"', "")
    assert said["output"] == "act: first done; ask_async: ok; act: last done"
    assert len(written(log)) == 3


async def test_the_run_waits_only_when_the_calls_beside_it_have_ended(
    opened: Opener, log: str
) -> None:
    """`waiting` says that nothing is in flight; an answer need not wait for that."""
    stage = Stage()
    asking = next(tool for tool in office().tools.values() if tool.name == "ask_async")
    agent = stage.agent([Use("slow", name="a"), Use("ask_async", log=log, question="?")], told)
    agent = type(agent)("actor", model=agent.model, tools=[*agent.tools.values(), asking])
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await recorded(run, AskOpened)
    view = await run.view()
    assert (view.phase, [call.tool for call in view.in_flight]) == ("running", ["slow"])
    await run.answer("yes")
    assert (await run.view()).phase == "running"  # the next step waits for both
    stage.gate("a").set()
    assert (await run.until("completed")).output == "slow: a done; ask_async: yes"


async def test_two_questions_in_one_step_are_answered_by_name(opened: Opener, log: str) -> None:
    """Which one is meant is never guessed; the run goes on when both are answered."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(office(asks, told))
    run = await midrun.start("office", "go")
    one, two = (await run.until("waiting")).asks
    with pytest.raises(ControlRefused) as refused:
        await run.answer("which?")
    assert refused.value.reason == "several_asks_open"
    receipt = await run.answer("second", ask=two.id)
    assert receipt.phase == "waiting"
    await run.answer("first", ask=one.id)
    assert (await run.until("completed")).output == "ask_async: first; ask_async: second"
    assert sorted(written(log)) == ["asked One?", "asked Two?"]


async def test_a_paused_run_keeps_the_answer_until_it_is_resumed(
    opened: Opener, log: str
) -> None:
    """Answering is not resuming: whoever paused decides when it goes on."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.pause(actor="ada")
    assert (await run.view()).phase == "paused"
    assert (await run.answer("yes")).phase == "paused"
    await run.resume(actor="ada")
    assert (await run.until("completed")).output == "ask_async: yes"


# ── an approval ───────────────────────────────────────────────────────────────────────────


async def test_a_call_that_needs_a_yes_is_made_after_it_and_cites_it(
    opened: Opener, log: str
) -> None:
    """The yes is for these arguments of this call; the start says which yes."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    view = await run.until("waiting")
    (ask,) = view.asks
    assert (ask.kind, ask.tool) == ("approval", "pay")
    assert ask.args == {"log": log, "amount": 100}
    assert written(log) == ["did first"]
    await run.approve(actor="ada")
    assert (await run.until("completed")).output == "pay: paid 100"
    assert written(log) == ["did first", "paid 100 to ada"]
    (opened_,) = await entries(run, AskOpened)
    start = (await entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.ask == ask.id
    assert start.approval.args_hash == opened_.args_hash


async def test_a_declined_call_is_never_made_and_the_agent_is_told_why(
    opened: Opener, log: str
) -> None:
    """By whom, and with the person's own reason."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.decline("too much; ask finance", actor="ada")
    output = (await run.until("completed")).output
    assert "too much; ask finance" in output
    assert "ada" in output
    assert written(log) == ["did first"]


async def test_edited_arguments_are_the_ones_that_it_is_made_with(
    opened: Opener, log: str
) -> None:
    """Exactly those: what is left out of them is not taken from the old ones."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.approve(args={"log": log, "amount": 5, "to": "bob"}, actor="ada")
    assert (await run.until("completed")).output == "pay: paid 5"
    assert written(log) == ["did first", "paid 5 to bob"]
    (opened_,) = await entries(run, AskOpened)
    start = (await entries(run, CallStarted))[-2]
    assert start.approval is not None
    assert start.approval.args_hash != opened_.args_hash


@pytest.mark.parametrize("amount", ["a lot", None, [1]])
async def test_edited_arguments_that_do_not_fit_are_refused_and_the_ask_stays_open(
    amount: object, opened: Opener, log: str
) -> None:
    """A slip of the pen must not use up the decision, nor reach the tool."""
    midrun = await opened(office(*script("pay", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    with pytest.raises(ControlRefused):
        await run.approve(args={"log": log, "amount": amount}, actor="ada")
    view = await run.view()
    assert (view.phase, [ask.kind for ask in view.asks]) == ("waiting", ["approval"])
    await run.approve(args={"log": log, "amount": 7}, actor="ada")
    await run.until("completed")
    assert written(log) == ["did first", "paid 7 to ada"]


async def test_only_the_audience_may_decide(opened: Opener, log: str) -> None:
    """A role is checked against the actor, whichever way they decide."""
    midrun = await opened(office(Use("wire", log=log, amount=9), told))
    run = await midrun.start("office", "go")
    (ask,) = (await run.until("waiting")).asks
    assert ask.audience == "operator"
    for deciding in (run.approve, run.decline):
        with pytest.raises(ControlRefused) as refused:
            await deciding(actor="ada")
        assert refused.value.reason == "not_allowed"
    assert written(log) == []
    await run.approve(actor="operator:olga")
    assert (await run.until("completed")).output == "wire: wired 9"


async def test_four_eyes_are_those_of_somebody_else(opened: Opener, log: str) -> None:
    """Whoever started the run cannot let through what it does, in whatever role."""
    midrun = await opened(office(Use("sign", log=log, name="lease"), told))
    run = await midrun.start("office", "go", actor="ada")
    await run.until("waiting")
    for own in ("ada", "operator:ada"):
        with pytest.raises(ControlRefused) as refused:
            await run.approve(actor=own)
        assert refused.value.reason == "not_allowed"
    assert written(log) == []
    await run.approve(actor="bob")
    await run.until("completed")
    assert written(log) == ["signed lease"]


async def test_an_approval_is_not_a_question_and_a_question_not_an_approval(
    opened: Opener, log: str
) -> None:
    """An answer of "yes" to an approval decides nothing by accident."""
    midrun = await opened(office(*script("pay", log)))
    paying = await midrun.start("office", "go")
    await paying.until("waiting")
    with pytest.raises(ControlRefused) as refused:
        await paying.answer("yes")
    assert refused.value.reason == "not_a_question"
    other = await opened(office(*script("ask_async", log)))
    asking = await other.start("office", "go")
    await asking.until("waiting")
    for deciding in (asking.approve, asking.decline):
        with pytest.raises(ControlRefused) as refused:
            await deciding()
        assert refused.value.reason == "not_an_approval"


async def test_a_yes_given_while_nobody_drives_the_run_stays_valid(
    opened: Opener, path: Path, log: str
) -> None:
    """The process died between the yes and the start: nobody is asked twice."""
    agent = office(*script("pay", log))
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
    desk = await opened()
    assert (await (await desk.get(run.id)).approve(actor="ada")).phase == "queued"
    said = await elsewhere("drive", "pay", log, path, "terminal", "waiting")
    assert said == {"phase": "completed"}
    assert written(log) == ["did first", "paid 100 to ada"]
    assert (await kinds(await desk.get(run.id))).count("AskOpened") == 1


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (True, ["paid 100 to ada"]),
        ({"approved": True}, ["paid 100 to ada"]),
        (False, []),
        ({"approved": False, "reason": "no money"}, []),
        ({"approved": "yes"}, []),  # not a clear yes is no yes
        ("yes", []),
    ],
)
async def test_an_approval_is_decided_through_a_checkpoint_too(
    answer: object, paid: list[str], log: str
) -> None:
    """Without a store the decision comes with the resumption."""
    paused = await office(*script("pay", log)).run("go")
    assert isinstance(paused, Paused)
    assert paused.reason == "approval"
    again = await office(*script("pay", log)).resume(carried(paused), answer)
    assert isinstance(again, Completed)
    assert written(log) == ["did first", *paid]


async def test_edited_arguments_come_through_a_checkpoint_too(log: str) -> None:
    """As they do with a store."""
    paused = await office(*script("pay", log)).run("go")
    edited = {"approved": True, "args": {"log": log, "amount": 1}}
    again = await office(*script("pay", log)).resume(carried(paused), edited)
    assert isinstance(again, Completed)
    assert written(log) == ["did first", "paid 1 to ada"]


# ── what nobody knows ─────────────────────────────────────────────────────────────────────


async def doubtful(opened: Opener, stage: Stage) -> tuple[Midrun, str]:
    """Bring a run to where nobody knows whether a call took effect, and a person is asked."""
    midrun = await opened(stage.agent(Use("slow", name="a"), told))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    return midrun, run.id


@pytest.mark.parametrize(
    ("said", "entered", "heard"),
    [
        ("yes", ["a"], "slow: None"),
        ("no", ["a", "a"], "slow: a done"),
        ("unknown", ["a"], "nobody can say"),
    ],
)
async def test_a_person_says_what_became_of_a_call_that_nobody_knows(
    said: str, entered: list[str], heard: str, opened: Opener
) -> None:
    """Made again only if the person says that it was not made."""
    stage = Stage()
    midrun, run_id = await doubtful(opened, stage)
    run = await midrun.get(run_id)
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.asks[0].tool) == ("unsure", "slow")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("perhaps")
    assert refused.value.reason == "not_an_outcome"
    stage.gate("a").set()
    await run.answer(said, actor="ada")
    assert heard in (await run.until("completed")).output
    assert stage.began == entered


async def test_the_doubt_travels_in_a_checkpoint(opened: Opener) -> None:
    """Another process asks the same question, and takes the same answers."""
    stage = Stage()
    midrun, run_id = await doubtful(opened, stage)
    checkpoint = await (await midrun.get(run_id)).checkpoint()
    agent = stage.agent(Use("slow", name="a"), told)
    outcome = await agent.resume(Checkpoint.from_json(checkpoint.to_json()), True)
    assert isinstance(outcome, Completed)
    assert stage.began == ["a"]
