"""Files over HTTP: the headers that keep a browser safe, and the bounds on uploads."""

from base64 import b64encode

import httpx2
import pytest

from midrun import File
from midrun.server import Limits
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import StartServer
from tests.unit.server.http_calls import expect_status

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


async def start_with_file(client: httpx2.AsyncClient, file: File) -> tuple[str, str]:
    """Start a run whose task has `file`; return the path of the run and of the file."""
    sent = {"name": file.name, "media_type": file.media_type}
    sent["data"] = b64encode(file.data).decode()
    body = {"agent": "actor", "input": "Look.", "files": [sent]}
    created = expect_status(await client.post("/v1/runs", json=body), 201)
    path = created.headers["location"]
    return path, f"{path}/files/{file.ref.hash}"


@pytest.mark.parametrize(
    ("media_type", "disposition"),
    [
        ("image/png", "inline"),
        ("text/plain", "inline"),
        ("application/json", "inline"),
        ("text/html", "attachment"),
        ("image/svg+xml", "attachment"),
        ("application/xhtml+xml", "attachment"),
        ("application/pdf", "attachment"),
        ("application/octet-stream", "attachment"),
    ],
)
async def test_a_file_cannot_run_in_the_origin_of_the_server(
    serve: StartServer, stage: ControllableTools, media_type: str, disposition: str
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    file = File('a "b"\\ä.x', media_type, b"<script>alert(1)</script>")
    _, path = await start_with_file(client, file)
    reply = expect_status(await client.get(path), 200)
    assert reply.content == file.data
    assert reply.headers["content-type"].partition(";")[0] == media_type
    assert reply.headers["content-disposition"] == (
        f"{disposition}; filename=\"a _b___.x\"; filename*=UTF-8''a%20%22b%22%5C%C3%A4.x"
    )
    assert reply.headers["content-security-policy"].startswith("default-src 'none'; sandbox")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "private, max-age=31536000, immutable"
    again = await client.get(path, headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_a_file_is_shown_to_those_who_see_its_run_only(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    owner = await server.client("ann")
    file = File("a.png", "image/png", PNG)
    run_path, path = await start_with_file(owner, file)
    expect_status(await owner.get(path), 200)
    other = await server.client("bob")
    for refused in (path, f"{run_path}/artifacts", f"/v1/runs/run_none/files/{file.ref.hash}"):
        reply = expect_status(await other.get(refused), 404)
        assert reply.json()["type"].endswith("run-not-found")
    reply = expect_status(await owner.get(f"{run_path}/files/{'0' * 64}"), 404)
    assert reply.json()["type"].endswith("file-missing")


async def test_an_upload_has_a_bound_of_its_own_and_bad_files_are_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."), limits=Limits(body=2_000, upload=60_000))
    client = await server.client()
    await start_with_file(client, File("a.png", "image/png", bytes(40_000)))
    with pytest.raises(AssertionError, match="at most 60000 bytes"):
        await start_with_file(client, File("a.png", "image/png", bytes(60_000)))
    good = {"name": "a.png", "media_type": "image/png", "data": "AAAA"}
    for wrong in (
        {"data": "not base64!"},
        {"media_type": "image\r\nX-Injected: 1"},
        {"name": ""},
        {"name": "a\nb"},
        {"path": "/etc/passwd"},
    ):
        body = {"agent": "actor", "input": "Look.", "files": [good | wrong]}
        expect_status(await client.post("/v1/runs", json=body), 422)
    body = {"agent": "actor", "input": "Look.", "files": [good] * 21}
    expect_status(await client.post("/v1/runs", json=body), 422)
