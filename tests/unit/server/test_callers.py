"""Who gets in, and how far: credentials, roles, and whose run it is."""

import pytest

from midrun import Agent, ask_human, tool
from midrun.core.entries import RunStarted
from midrun.core.values import Actor
from midrun.errors import Misconfigured
from midrun.models import ScriptedModel
from midrun.server import Limits, Tokens, app
from midrun.server.routes import ENDPOINTS
from tests.unit.runs.stage import ControllableTools, Use
from tests.unit.server.calling import expect
from tests.unit.server.conftest import PEOPLE, Serve, listening, token_of
from tests.unit.server.defences import JSON, entries_of, is_guarded, name_of, path_of


async def test_no_route_answers_without_a_credential(
    serve: Serve, stage: ControllableTools
) -> None:
    """Also those that do not exist: what there is, is nobody's business."""
    served = await serve(stage.agent("Done."), limits=Limits(failures=1000))
    for name in (None, "mallory"):
        client = await served.client(name)
        for endpoint in ENDPOINTS:
            reply = await client.request(endpoint.method, path_of(endpoint), headers=JSON)
            assert reply.status_code == 401, name_of(endpoint)
            assert is_guarded(reply)
        for path in ("/v1/openapi.json", "/nowhere", "/v1/"):
            assert (await client.get(path)).status_code == 401
    assert await entries_of(served) == 0


async def test_probes_are_answered_and_told_nothing(
    serve: Serve, stage: ControllableTools
) -> None:
    """A load balancer has no token, and needs to know no more than up or down."""
    served = await serve(stage.agent("Done."))
    client = await served.client(None)
    for path in ("/healthz", "/readyz"):
        for method in ("GET", "HEAD"):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.content) == (204, b"")
    served.app.close()
    assert (await client.get("/readyz")).status_code == 503


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        f"Basic {token_of('olga')}",
        f"Bearer {token_of('olga')}x",
        f"Bearer {token_of('olga')[:-1]}",
        f"Bearer {token_of('olga')},",
        f"Code {token_of('olga')}",
        "Bearer \udcff".encode(errors="surrogateescape").decode("latin-1"),
    ],
)
async def test_a_credential_that_is_nearly_right_is_wrong(
    serve: Serve, stage: ControllableTools, header: str
) -> None:
    """Nothing is trimmed, guessed or compared in part."""
    served = await serve(stage.agent("Done."))
    client = await served.client(None)
    raw = {"Authorization": header.encode("latin-1")}
    assert (await client.get("/v1/runs", headers=raw)).status_code == 401  # type: ignore[arg-type]


async def test_a_role_comes_from_the_credential(serve: Serve, stage: ControllableTools) -> None:
    """Whatever a request says of its sender, it is who the token says."""
    served = await serve(stage.agent("Done."))
    ann = await served.client("ann")
    claims = {"X-Role": "operator", "X-Actor": "olga", "X-Forwarded-User": "olga"}
    body = {"scope": "all", "reason": "x"}
    assert (await ann.post("/v1/halt", json=body, headers=claims)).status_code == 403
    for more in ({"actor": "olga"}, {"role": "operator"}, {"by": "olga"}):
        said = {"agent": "actor", "input": "Go.", **more}
        assert (await ann.post("/v1/runs", json=said)).status_code == 422
    made = await ann.post("/v1/runs", json={"agent": "actor", "input": "Go."}, headers=claims)
    assert made.json()["started_by"] == "ann"


async def test_users_see_their_own_runs_in_every_list(
    serve: Serve, stage: ControllableTools
) -> None:
    """Over pages too: runs of others take no place in them, and are not counted."""
    served = await serve(stage.agent("Done."))
    hers = [await served.mid.start("actor", f"{n}", actor="ann") for n in range(3)]
    for n in range(3):
        await served.mid.start("actor", f"{n}", actor="bob")
    ann, vera = await served.client("ann"), await served.client("vera")
    found: list[str] = []
    cursor = ""
    while True:
        page = (await ann.get("/v1/runs", params={"limit": 2, "cursor": cursor})).json()
        found += [row["run_id"] for row in page["items"]]
        assert page["counts"] == {}
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert sorted(found) == sorted(run.id for run in hers)
    everything = (await vera.get("/v1/runs")).json()
    assert len(everything["items"]) == 6
    assert sum(everything["counts"].values()) == 6


async def test_newer_runs_of_others_do_not_push_a_run_out_of_a_users_lists(
    serve: Serve,
) -> None:
    asking = [Use("ask_human", question="Which?")] * 99
    served = await serve(Agent("actor", model=ScriptedModel(asking), tools=[ask_human]))
    hers = await served.mid.start("actor", "hers", actor="ann")
    for n in range(30):
        await served.mid.start("actor", f"{n}", actor="bob")
    for row in (await served.mid.runs(limit=99)).items:
        await (await served.mid.get(row.run_id)).until("waiting")
    ann = await served.client("ann")
    for path in ("/v1/runs", "/v1/asks"):
        page = expect(await ann.get(path, params={"limit": 1}), 200).json()
        assert [item["run_id"] for item in page["items"]] == [hers.id]
        assert page["next_cursor"] == ""


async def test_a_cursor_does_not_reveal_how_many_runs_others_have(
    serve: Serve, stage: ControllableTools
) -> None:
    served = await serve(stage.agent("Done."))
    *_, newest = [
        await served.mid.start("actor", "Go.", actor=name)
        for name in ("ann", "bob", "bob", "ann")
    ]
    page = (await (await served.client("ann")).get("/v1/runs", params={"limit": 1})).json()
    assert page["next_cursor"] == newest.id


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/asks", "/a2a/actor/tasks"])
async def test_a_cursor_does_not_reveal_that_a_run_of_another_user_exists(
    serve: Serve, stage: ControllableTools, path: str
) -> None:
    """The id of a run follows from its `Idempotency-Key`, which others may guess."""
    served = await serve(stage.agent("Done."))
    runs = [await served.mid.start("actor", "Go.", actor=name) for name in ("ann", "bob")]
    version = {"A2A-Version": "1.0"}
    name = "pageToken" if "a2a" in path else "cursor"
    for caller, known in (("ann", runs[:1]), ("bob", runs[1:]), ("vera", runs)):
        client = await served.client(caller)
        for cursor in (*(run.id for run in runs), "run_of_none"):
            reply = await client.get(path, params={name: cursor}, headers=version)
            is_known = cursor in {run.id for run in known}
            assert reply.status_code == (200 if is_known else 400), (caller, cursor)


async def test_a_thread_is_its_owners_whatever_others_call_theirs(
    serve: Serve, stage: ControllableTools
) -> None:
    """A user is neither told what others said under the same id, nor that they did."""
    served = await serve(stage.agent(*["The password is swordfish."] * 9))
    for name in ("olga", "ann", "olga"):
        run = await served.mid.start("actor", "Tell.", thread="t", actor=PEOPLE[name])
        await run.until("terminal")
    body = {"agent": "actor", "input": "What was said?", "thread_id": "t"}
    told: dict[str, list[str]] = {}
    replies = []
    for name in ("bob", "ann", "olga", "bob"):
        client = await served.client(name)
        replies.append(expect(await client.post("/v1/runs", json=body), 201).json())
        await (await served.mid.get(replies[-1]["run_id"])).until("terminal")
        (record,) = await served.mid.store.read(replies[-1]["run_id"], limit=1)
        assert isinstance(record.entry, RunStarted)
        said = [m.text for m in record.entry.history if m.role == "user"]
        told.setdefault(name, []).append(", ".join(said))
    assert told["bob"] == ["", "What was said?"]
    assert told["ann"] == ["Tell."]
    everything = ["Tell."] * 3 + ["What was said?"] * 2
    assert told["olga"] == [", ".join(everything)], "operators are told of all"
    new = body | {"thread_id": "a new thread"}
    reply = expect(await (await served.client("bob")).post("/v1/runs", json=new), 201).json()
    assert reply.keys() == replies[0].keys(), "one that exists looks like one that does not"


async def test_a_user_is_told_their_own_runs_however_many_others_have(
    serve: Serve, stage: ControllableTools
) -> None:
    """The newest runs of a thread are counted per owner."""
    served = await serve(stage.agent(*["Done."] * 60))
    first = await served.mid.start("actor", "Hers.", thread="t", actor=PEOPLE["ann"])
    await first.until("terminal")
    for _ in range(51):
        await served.mid.start("actor", "His.", thread="t", actor=PEOPLE["bob"])
    body = {"agent": "actor", "input": "Go on.", "thread_id": "t"}
    made = expect(await (await served.client("ann")).post("/v1/runs", json=body), 201).json()
    (record,) = await served.mid.store.read(made["run_id"], limit=1)
    assert isinstance(record.entry, RunStarted)
    assert [message.text for message in record.entry.history] == ["Hers.", "Done."]


async def test_who_is_asked_may_answer_and_sees_no_more(serve: Serve) -> None:
    """An ask can be addressed to somebody whose run it is not."""

    @tool(approve=True, audience="user:bob")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    model = ScriptedModel([Use("pay", amount=3), "Done."])
    served = await serve(Agent("payer", model=model, tools=[pay]))
    run = await served.mid.start("payer", "Pay.", actor="ann")
    await run.until("waiting")
    ann, bob, vera = [await served.client(name) for name in ("ann", "bob", "vera")]
    (shown,) = (await ann.get("/v1/asks")).json()["items"]
    assert shown["may_decide"] is False
    yes = {"decision": "approve"}
    path = f"/v1/approvals/{shown['ref']}"
    assert (await ann.post(path, json=yes)).status_code == 403
    assert (await vera.post(path, json=yes)).status_code == 403
    (asked,) = (await bob.get("/v1/approvals")).json()["items"]
    assert (asked["may_decide"], asked["args"]) == (True, {"amount": 3})
    assert (await bob.get(f"/v1/runs/{run.id}")).status_code == 404
    decided = await bob.post(path, json=yes)
    assert (decided.status_code, set(decided.json())) == (202, {"receipt"})
    assert (await run.until("terminal")).phase == "completed"
    # A list gave bob this cursor while the ask was open: he may still go on from it.
    expect(await bob.get("/v1/asks", params={"cursor": run.id}), 200)


async def test_a_latch_is_told_to_those_whom_it_concerns(
    serve: Serve, stage: ControllableTools
) -> None:
    """Its scope names runs of others, and its reason may say what those are about."""
    served = await serve(stage.agent(Use("slow", name="x"), "Done."), stage.agent(name="other"))
    labels = ["hers"]
    run = await served.mid.start("actor", "Hers.", actor="ann", labels=labels)
    await stage.start("x").wait()
    for scope in (f"run:{run.id}", "label:hers", "agent:actor", "agent:other", "all"):
        kind = scope.partition(":")[0] if "other" not in scope else "other"
        await served.mid.halt(kind, scope=scope, actor="operator:olga")
    told: dict[str, list[str]] = {}
    for name in ("ann", "bob", "vera", "olga"):
        shown = (await (await served.client(name)).get("/v1/halts")).json()["items"]
        told[name] = [latch["reason"] for latch in shown]
    assert told["olga"] == told["vera"] == ["run", "label", "agent", "other", "all"]
    assert told["ann"] == ["run", "label", "agent", "all"]
    assert told["bob"] == ["all"]


async def test_nobody_signs_in_as_the_owner_of_runs_without_an_actor(
    serve: Serve, stage: ControllableTools
) -> None:
    """Such runs are recorded under the name `user`, which an account could have."""
    namesake = Actor(name="user", role="user")
    with pytest.raises(Misconfigured, match="another name"):
        Tokens({token_of("user"): namesake})
    served = await serve(stage.agent("Done."))
    await served.mid.start("actor", "A run without an owner.")
    with pytest.raises(Misconfigured, match="another name"):
        served.app.code(namesake)

    async def auth(token: str) -> Actor | None:
        return namesake if token == token_of("user") else None

    async with listening(app(served.mid, auth=auth)) as port:
        client = await served.client("user")
        reply = await client.get(f"http://127.0.0.1:{port}/v1/runs")
        assert "another name" in expect(reply, 403).json()["detail"]


async def test_a_user_without_a_name_is_refused(serve: Serve, stage: ControllableTools) -> None:
    """To the store, an empty owner means the runs of all owners."""
    nameless = Actor(name="", role="user")
    with pytest.raises(Misconfigured, match="has no name"):
        Tokens({token_of("nameless"): nameless})
    served = await serve(stage.agent("Done."))
    await served.mid.start("actor", "Ann's.", actor="ann")

    async def auth(token: str) -> Actor | None:
        return nameless if token == token_of("nameless") else None

    async with listening(app(served.mid, auth=auth)) as port:
        client = await served.client("nameless")
        for path in ("/v1/runs", "/v1/asks", "/v1/events"):
            reply = await client.get(f"http://127.0.0.1:{port}{path}")
            assert "has no name" in expect(reply, 403).json()["detail"]
