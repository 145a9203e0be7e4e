"""The description of the address space, and requests made from it that nobody thought of."""

import re

import anyio
import httpx2
import jsonschema  # type: ignore[import-untyped]  # it has no types
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midrun import Midrun
from midrun.core.values import Json
from midrun.models import Use
from midrun.server import App, Limits, app
from midrun.server.openapi import make_openapi
from midrun.server.routes import ENDPOINTS, Endpoint
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import token_of

HEADERS = {
    "Authorization": f"Bearer {token_of('me')}",
    "Content-Type": "application/json",
}

NATIVE = [endpoint for endpoint in ENDPOINTS if endpoint.path.startswith("/v1/")]
"""Those that the description is of; other protocols have their own, and their own tests."""

ANY_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _fields(endpoint: Endpoint) -> list[str]:
    takes = endpoint.body_type
    return [] if takes is None else list(takes.__struct_fields__)


@st.composite
def _requests(draw: st.DrawFn) -> tuple[Endpoint, dict[str, str], bytes]:
    """Draw a change with a body that has the right names, and anything under them."""
    endpoint = draw(st.sampled_from([e for e in NATIVE if e.method != "GET"]))
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    path = {
        name: draw(st.sampled_from(["run_1", "cmd_1", "f1", "a1", "x-a1"])) for name in names
    }
    fields = _fields(endpoint)
    wrong = draw(st.text(min_size=9, max_size=12))
    body = draw(st.dictionaries(st.sampled_from([*fields, "other"]), ANY_JSON, max_size=4))
    body[wrong] = 1  # whatever else it says, this is nobody's field
    text = msgspec.json.encode(body) if draw(st.booleans()) else draw(st.binary(max_size=40))
    return endpoint, path, text


@given(asked=_requests())
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
def test_a_body_that_nobody_thought_of_is_refused_and_changes_nothing(
    asked: tuple[Endpoint, dict[str, str], bytes],
) -> None:
    """Never a 500, never an entry: a refusal in words, whatever was sent."""
    endpoint, path, body = asked

    async def ask() -> None:
        stage = ControllableTools()
        async with Midrun("memory://", agents=[stage.agent("Done.")], engine=None) as mid:
            limits = Limits(burst=10**6)
            made = app(mid, token=token_of("me"), allow_hosts=["testserver"], limits=limits)
            run = await mid.start("actor", "Go.")
            at = endpoint.path.format(**(path | {"run": run.id}))
            async with _inside(made) as client:
                reply = await client.request(endpoint.method, at, content=body, headers=HEADERS)
            known = endpoint.body_type is None or body.strip() in {b"", b"{}"}
            assert reply.status_code < 500, reply.text
            if not known:
                assert reply.status_code >= 400, (endpoint.path, body)
                assert (await mid.store.get_row(run.id)).seq == 1
                assert not await mid.store.list_halts()

    anyio.run(ask)


def _inside(made: App) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=made)
    return httpx2.AsyncClient(transport=transport, base_url="http://testserver")


async def test_every_reply_is_what_the_description_says() -> None:
    """An example of each view, held against its schema: no field missing, none unheard of."""
    stage = ControllableTools()
    described = msgspec.json.decode(make_openapi())
    async with Midrun(
        "memory://", agents=[stage.agent(Use("draft", name="x"), "Done.")]
    ) as mid:
        made = app(mid, token=token_of("me"), allow_hosts=["testserver"])
        run = await mid.start("actor", "Go.")
        await run.until("terminal")
        async with _inside(made) as client:
            assert (await client.get("/v1/openapi.json", headers=HEADERS)).json() == described
            for endpoint in NATIVE:
                if endpoint.method == "GET" and endpoint.response_type is not None:
                    at = endpoint.path.format(run=run.id, command="cmd_1")
                    reply = await client.get(at, headers=HEADERS)
                    if "{command}" in at or reply.status_code == 404:
                        continue
                    assert reply.status_code == 200, at
                    wanted = {**described, "$ref": _ref(endpoint.response_type)}
                    jsonschema.validate(reply.json(), wanted)


def _ref(kind: type[msgspec.Struct]) -> str:
    return f"#/components/schemas/{kind.__name__}"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_route_says_what_it_is_for(endpoint: Endpoint) -> None:
    """The description is read by people, too."""
    assert endpoint.handler.__doc__
