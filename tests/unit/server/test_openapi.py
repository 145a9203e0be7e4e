"""The OpenAPI document: it is true, and requests that do not fit it are refused."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
from midrun.server import Limits, app
from midrun.server.openapi import make_openapi
from midrun.server.routes import ENDPOINTS, Endpoint
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import ROOT
from tests.unit.server.conftest import TIMEOUT_S, StartServer, make_token
from tests.unit.server.http_calls import expect_status, make_in_process_client

HEADERS = {
    "Authorization": f"Bearer {make_token('me')}",
    "Content-Type": "application/json",
}

V1_ENDPOINTS = [endpoint for endpoint in ENDPOINTS if endpoint.path.startswith("/v1/")]
"""The endpoints in the OpenAPI document; other protocols have tests of their own."""

ANY_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _list_body_fields(endpoint: Endpoint) -> list[str]:
    body_type = endpoint.body_type
    return [] if body_type is None else list(body_type.__struct_fields__)


@st.composite
def _draw_requests(draw: st.DrawFn) -> tuple[Endpoint, dict[str, str], bytes]:
    """Draw a change whose body has known field names and arbitrary values."""
    endpoint = draw(st.sampled_from([e for e in V1_ENDPOINTS if e.method != "GET"]))
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    path = {
        name: draw(st.sampled_from(["run_1", "cmd_1", "f1", "a1", "x-a1"])) for name in names
    }
    fields = _list_body_fields(endpoint)
    unknown_field = draw(st.text(min_size=9, max_size=12))
    body = draw(st.dictionaries(st.sampled_from([*fields, "other"]), ANY_JSON, max_size=4))
    body[unknown_field] = 1  # no endpoint has this field
    text = msgspec.json.encode(body) if draw(st.booleans()) else draw(st.binary(max_size=40))
    return endpoint, path, text


@given(drawn_request=_draw_requests())
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
def test_an_arbitrary_body_is_refused_and_changes_nothing(
    drawn_request: tuple[Endpoint, dict[str, str], bytes],
) -> None:
    """Every response is below 500, and no entry or halt is stored."""
    endpoint, path_parameters, body = drawn_request

    async def send_request() -> None:
        stage = ControllableTools()
        async with Midrun("memory://", agents=[stage.agent("Done.")], engine=None) as mid:
            limits = Limits(burst=10**6)
            asgi_app = app(
                mid, token=make_token("me"), allow_hosts=["testserver"], limits=limits
            )
            run = await mid.start("actor", "Go.")
            path = endpoint.path.format(**(path_parameters | {"run": run.id}))
            async with make_in_process_client(asgi_app) as client:
                reply = await client.request(
                    endpoint.method, path, content=body, headers=HEADERS
                )
            is_valid = endpoint.body_type is None or body.strip() in {b"", b"{}"}
            assert reply.status_code < 500, reply.text
            if not is_valid:
                assert reply.status_code >= 400, (endpoint.path, body)
                assert (await mid.store.get_row(run.id)).seq == 1
                assert not await mid.store.list_halts()

    anyio.run(send_request)


async def test_every_get_response_matches_its_openapi_schema() -> None:
    stage = ControllableTools()
    openapi = msgspec.json.decode(make_openapi())
    async with Midrun(
        "memory://", agents=[stage.agent(Use("draft", name="x"), "Done.")]
    ) as mid:
        asgi_app = app(mid, token=make_token("me"), allow_hosts=["testserver"])
        run = await mid.start("actor", "Go.")
        await run.until("terminal")
        async with make_in_process_client(asgi_app) as client:
            assert (await client.get("/v1/openapi.json", headers=HEADERS)).json() == openapi
            for endpoint in V1_ENDPOINTS:
                if endpoint.method == "GET" and endpoint.response_type is not None:
                    path = endpoint.path.format(run=run.id, command="cmd_1")
                    reply = await client.get(path, headers=HEADERS)
                    if "{command}" in path or reply.status_code == 404:
                        continue
                    assert reply.status_code == 200, path
                    schema = {**openapi, "$ref": _make_ref(endpoint.response_type)}
                    jsonschema.validate(reply.json(), schema)


def _make_ref(kind: type[msgspec.Struct]) -> str:
    return f"#/components/schemas/{kind.__name__}"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_endpoint_has_a_summary(endpoint: Endpoint) -> None:
    """It is the line of the endpoint in the OpenAPI document."""
    assert endpoint.summary or endpoint.handler.__doc__


async def test_the_openapi_document_has_two_paths(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    short, versioned = [
        await client.get(path) for path in ("/openapi.json", "/v1/openapi.json")
    ]
    assert expect_status(short, 200).json() == expect_status(versioned, 200).json()


# ── generated requests ───────────────────────────────────────────────────────


OPERATOR_HEADERS = {"Authorization": f"Bearer {make_token('olga')}"}

POSITIVE_DATA_CHECK = "positive_data_acceptance"
"""Excluded: a valid request may still be refused because of the state of the run."""

REQUIRED_HEADER_CHECK = "missing_required_header"
"""Excluded: it expects 400, but for a missing If-Match RFC 6585 has 428."""

REFUSAL_STATUSES = [400, 401, 403, 404, 405, 406, 409, 410, 412, 413, 415, 422, 428, 429]
"""Statuses of a refusal; the list of schemathesis has neither 410 nor 412 nor 413."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Give the URL of a server in its own process, and the ids of its runs."""
    command = [sys.executable, "-m", "tests.unit.server.fuzz_target", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:  # noqa: S603 - our own interpreter
        try:
            assert process.stdout is not None
            port, *runs = process.stdout.readline().split()
            yield f"http://127.0.0.1:{port}", runs
        finally:
            process.kill()


def _write_openapi(url: str, runs: list[str], path: Path) -> Path:
    """Write the OpenAPI document of the server, with ids that exist."""
    openapi = httpx2.get(
        f"{url}/v1/openapi.json", headers=OPERATOR_HEADERS, timeout=TIMEOUT_S
    ).json()
    del openapi["paths"]["/v1/events"]  # never ends
    known_ids = {
        "run": [*runs, "run_none"],
        "ask": [f"{run}-a1" for run in runs],
        "command": ["cmd_1", "cmd_5", "cmd_none"],
        "frame": ["f1"],
        "hash": ["0" * 64, "x"],
        "session": ["s1"],
    }
    for operations in openapi["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    parameter["schema"] = {"enum": known_ids[parameter["name"]]}
    path.write_bytes(msgspec.json.encode(openapi))
    path.with_name("schemathesis.toml").write_text(
        f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSAL_STATUSES}\n"
    )
    return path


@pytest.mark.slow
@pytest.mark.once
def test_responses_to_generated_requests_match_the_openapi_document(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    """Every status, type and field is documented, and invalid requests are refused."""
    url, runs = server
    executable = Path(sys.executable).with_name("schemathesis")
    result = subprocess.run(  # noqa: S603 - a tool of this environment
        [
            *(
                str(executable),
                "run",
                str(_write_openapi(url, runs, tmp_path / "openapi.json")),
            ),
            *("--url", url, "--header", f"Authorization: {OPERATOR_HEADERS['Authorization']}"),
            *("--phases", "coverage,fuzzing,stateful", "--max-examples", "2"),
            *("--exclude-checks", f"{POSITIVE_DATA_CHECK},{REQUIRED_HEADER_CHECK}"),
            *("--max-time", "12", "--request-timeout", "30"),
            *("--generation-deterministic", "--no-color", "--warnings", "off"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert "Tested:" in result.stdout
