"""A run as its page shows it: to one person, at this moment."""

from midrun import Agent, Midrun, tool
from midrun.core.ids import RunId
from midrun.core.lru import LruDict
from midrun.models import ScriptedModel
from midrun.server.run_views import RunViews
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve


async def test_a_button_that_would_be_refused_is_not_live(
    serve: Serve, stage: ControllableTools
) -> None:
    """Who looks on may press nothing, and is told why."""
    served = await serve(stage.agent(Use("slow", name="work"), "Done."))
    ann, vera = await served.client("ann"), await served.client("vera")
    where = await start_run(ann)
    await stage.start("work").wait()
    hers = expect(await ann.get(f"{where}/seen"), 200).json()
    assert (hers["you"], hers["role"]) == ("ann", "user")
    assert all(offer["enabled"] for offer in hers["controls"].values())
    theirs = expect(await vera.get(f"{where}/seen"), 200).json()
    assert not any(offer["enabled"] for offer in theirs["controls"].values())
    assert theirs["controls"]["pause"]["consequence"].startswith("You may only view")
    stage.gate("work").set()


async def test_it_says_how_long_it_has_worked_up_to_now(
    serve: Serve, stage: ControllableTools
) -> None:
    """The journal has it up to its last entry only; paused, it stands still."""
    served = await serve(stage.agent(Use("slow", name="work"), "Done."))
    client = await served.client()
    where = await start_run(client)
    await stage.start("work").wait()
    first = (await client.get(f"{where}/seen")).json()
    later = (await client.get(f"{where}/seen")).json()
    assert (first["seq"], first["working"], first["lost"]) == (later["seq"], True, False)
    assert later["elapsed"] > first["elapsed"] > (await client.get(where)).json()["elapsed"]
    await client.post(f"{where}/pause", json={"reason": "lunch"})
    stage.gate("work").set()
    await reached(client, where, "paused")
    rests = (await client.get(f"{where}/seen")).json()
    assert not rests["working"]
    assert rests["since_at"] > first["now"]
    assert (await client.get(f"{where}/seen")).json()["elapsed"] == rests["elapsed"]


async def test_whoever_may_decide_is_the_one_it_waits_for(
    serve: Serve, stage: ControllableTools
) -> None:
    """With four eyes, not the one who started the run."""
    guarded = tool(stage._quick, name="guarded", approve=True, four_eyes=True)
    script = ScriptedModel([Use("guarded", name="x"), "Done."])
    served = await serve(Agent("actor", model=script, tools=[guarded]))
    ann, olga = await served.client("ann"), await served.client("olga")
    where = await start_run(ann)
    await reached(ann, where, "waiting")
    hers = (await ann.get(f"{where}/seen")).json()
    assert hers["sign"]["word"] == "Waiting for another person"
    theirs = (await olga.get(f"{where}/seen")).json()
    assert theirs["sign"]["word"] == "Waiting for you"
    assert theirs["asks"][0]["may_decide"]
    ask = theirs["asks"][0]["ref"]
    expect(await olga.post(f"/v1/asks/{ask}", json={"decision": "approve"}), 202)
    await reached(ann, where, "completed")


async def test_turns_come_the_newest_first_page_or_from_where_one_says(
    serve: Serve, stage: ControllableTools
) -> None:
    """Pages join without a gap."""
    turns = [Use("quick", name=f"n{n}") for n in range(50)]
    served = await serve(stage.agent(*turns, "Done."))
    client = await served.client()
    where = await start_run(client)
    await reached(client, where, "completed")
    page = expect(await client.get(f"{where}/turns"), 200).json()
    numbers = [turn["number"] for turn in page["items"]]
    assert numbers == list(range(page["total"] - 39, page["total"] + 1))
    assert page["items"][0]["calls"][0]["result"].endswith("done")
    before = (await client.get(f"{where}/turns?after=0&limit=2")).json()
    assert [turn["kind"] or turn["role"] for turn in before["items"]] == ["task", "assistant"]
    assert expect(await client.get(f"{where}/turns?after=9999"), 200).json()["items"] == []


async def test_cached_states_are_bounded_by_their_bytes() -> None:
    """Megabytes of one caller's runs must not stay in the memory that all callers share."""
    agent = Agent("writer", model=ScriptedModel(["Done."] * 9))
    async with Midrun("memory://", agents=[agent], engine=None) as mid:
        views = RunViews(mid)
        runs = [await mid.start(agent, letter * 1_000_000) for letter in "abc"]
        views._states = LruDict(max_items=9, max_weight=2_500_000)
        for run in runs:
            await views.read_state(RunId(run.id))
        assert 2_000_000 < views._states.weight < 2_500_000
        assert RunId(runs[0].id) not in views._states
        await runs[2].say("d" * 400_000)
        state = await views.read_state(RunId(runs[2].id))  # it grows, and the oldest makes room
        assert state.seq == 2
        assert 1_400_000 < views._states.weight < 2_500_000
