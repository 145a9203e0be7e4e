"""HEAD: what a GET would say, without saying it."""

from collections.abc import Iterator

import pytest

from midrun.models import Use
from midrun.server import Limits
from midrun.server.routes import ENDPOINTS, Endpoint
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, reached, start_run
from tests.unit.server.conftest import Serve
from tests.unit.server.defences import is_guarded, name_of, path_of

CHANGE = frozenset({"date", "etag"})
"""Headers in which two replies to the same may differ, besides what hangs on the time."""

STREAMS = frozenset({"/v1/events"})


def looks() -> Iterator[Endpoint]:
    """Yield every endpoint that only looks, and ends."""
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.path not in STREAMS:
            yield endpoint


async def test_a_head_is_a_get_without_its_body(serve: Serve, stage: ControllableTools) -> None:
    """On every route: the same status, length and kind, and the same refusals."""
    served = await serve(stage.agent("Done."))
    client, nobody = await served.client(), await served.client(None)
    where = await start_run(client)
    await reached(client, where, "terminal")
    for endpoint in looks():
        path = path_of(endpoint, where.rpartition("/")[2])
        whole, head = await client.get(path), await client.head(path)
        assert head.content == b"", name_of(endpoint)
        assert head.status_code == whole.status_code, name_of(endpoint)
        same = head.headers.keys() - CHANGE
        assert {n: head.headers[n] for n in same} == {n: whole.headers[n] for n in same}
        assert is_guarded(head)
        expect(await nobody.head(path), 401)
    known = {"If-None-Match": (await client.get(where)).headers["etag"]}
    expect(await client.head(where, headers=known), 304)


async def test_what_only_changes_something_has_none(
    serve: Serve, stage: ControllableTools
) -> None:
    """And says what there is instead."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    where = await start_run(client)
    refused = await client.head(f"{where}/cancel")
    assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
    refused = await client.delete("/v1/runs")
    assert (refused.status_code, refused.headers["allow"]) == (
        405,
        "GET, HEAD, OPTIONS, POST",
    )


@pytest.mark.parametrize("path", ["/v1/events", "{where}/events"])
async def test_a_stream_that_is_only_asked_about_is_not_opened(
    serve: Serve, stage: ControllableTools, path: str
) -> None:
    """It would go on for as long as the run, for nobody."""
    served = await serve(stage.agent(Use("slow", name="x"), "."), limits=Limits(streams=1))
    client = await served.client()
    where = await start_run(client)
    await stage.start("x").wait()
    for _ in range(3):  # each would be one more
        head = await client.head(
            path.format(where=where), headers={"Accept": "text/event-stream"}
        )
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        assert head.headers["x-accel-buffering"] == "no"
        assert served.app.streams == 0
