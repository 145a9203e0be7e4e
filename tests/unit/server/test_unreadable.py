"""A journal that cannot be read: somebody's hand was in it, or a newer midrun wrote it."""

import httpx2
import pytest

from midrun import Agent, Midrun, ask_human
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.server import Tokens, app
from midrun.stores.memory import MemoryStore
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PEOPLE, token_of


@pytest.mark.spoils_journals
@pytest.mark.parametrize("change", [(b"Which", b"Witch"), (b'"v":1', b'"v":9')])
async def test_one_that_cannot_be_read_hides_no_other(change: tuple[bytes, bytes]) -> None:
    """Neither in lists nor among what waits; and whoever may look sees that it is so."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "Done."])
    store = MemoryStore()
    async with Midrun(store, agents=[Agent("asker", model=model, tools=[ask_human])]) as mid:
        bad, good = [await mid.start("asker", "Go.", actor="ann") for _ in range(2)]
        for run in (bad, good):
            await run.until("waiting")
        kept = store._runs[RunId(bad.id)].lines
        kept[:] = [(line.replace(*change), link) for line, link in kept]
        auth = Tokens({token_of(name): actor for name, actor in PEOPLE.items()})
        made = app(mid, auth=auth, allow_hosts=["testserver"])
        transport = httpx2.ASGITransport(app=made)
        for name in ("olga", "vera", "ann", "bob"):
            client = httpx2.AsyncClient(
                transport=transport,
                base_url="http://testserver",
                headers={"Authorization": f"Bearer {token_of(name)}"},
            )
            async with client:
                shown = expect(await client.get("/v1/runs"), 200).json()["items"]
                asked = expect(await client.get("/v1/asks"), 200).json()["items"]
                one = await client.get(f"/v1/runs/{bad.id}")
                if name == "bob":
                    said = {"decision": "answer", "value": "?"}
                    told = [await client.post(f"/v1/asks/{bad.id}-a1", json=said), one]
                    assert [reply.status_code for reply in told] == [404, 404]
                    continue
            looks = {line["run_id"]: line["work"]["sign"]["look"] for line in shown}
            assert looks == {good.id: "waiting", bad.id: "lost"}
            assert [ask["run_id"] for ask in asked] == [good.id]
            assert one.status_code == 500, one.text
