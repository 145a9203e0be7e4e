"""Whose turn it is: lists and pages say the same, and to each person what is so for them."""

from midrun import Agent, tool
from midrun.models import ScriptedModel, Use
from tests.unit.server.conftest import Serve


async def test_what_waits_is_told_to_each_as_theirs_or_somebody_elses(serve: Serve) -> None:
    """On the list, which remembers what it read, as on the page of the run."""

    @tool(approve=True, audience="operator")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    model = ScriptedModel([Use("pay", amount=3), "Done."])
    served = await serve(Agent("payer", model=model, tools=[pay]))
    run = await served.mid.start("payer", "Pay.", actor="ann")
    await run.until("waiting")
    words: dict[str, list[str]] = {}
    yours: dict[str, bool] = {}
    note = (await run.view()).sign.note
    for name in ("olga", "ann", "vera"):
        client = await served.client(name)
        (line,) = (await client.get("/v1/runs")).json()["items"]
        seen = (await client.get(f"/v1/runs/{run.id}/seen")).json()
        yours[name] = line["work"]["yours"]
        words[name] = [line["work"]["sign"]["word"], seen["sign"]["word"], seen["sign"]["said"]]
    you, other = "Waiting for you", "Waiting for another person"
    assert words == {
        "olga": [you, you, f"{you}: {note}"],
        "ann": [other, other, f"{other}: {note}"],
        "vera": [other, other, f"{other}: {note}"],
    }
    assert yours == {"olga": True, "ann": False, "vera": False}
