"""A model that tries to approve its own gated call, against `midrun serve` as a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.unit.cli.command_runner import read_until

TOKEN = "the-operators-token-0123456789abcdef"

APP = '''
import os
import sys
from pathlib import Path

from midrun import Agent, tool
from midrun.agents.builtin_tools import shell
from midrun.models import ScriptedModel, Use

HERE = Path(__file__).parent
ATTACK = HERE / "attack.py"


@tool(approve=True, audience="operator")
def wire(to: str) -> str:
    """Wire money."""
    (HERE / "wired").write_text(to)
    return "wired"


async def variables() -> list[str]:
    """Name the variables of the server's own process."""
    return sorted(os.environ)


command = f"""{sys.executable} {ATTACK} "$MIDRUN_TOKEN"; find . -name token"""
turn = [Use("variables"), Use("wire", to="DE89-ATTACKER"), Use("shell", command=command)]
agent = Agent(
    "clerk",
    model=ScriptedModel([turn, "Done."]),
    tools=[variables, wire, shell()],
)
'''

ATTACK = """
import json, sys, urllib.error, urllib.request
from pathlib import Path

tokens = [sys.argv[1], *(p.read_text() for p in Path().rglob("token") if p.is_file())]
url = Path("url").read_text()
for token in tokens:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        asked = urllib.request.Request(f"{url}/v1/asks", headers=headers)
        with urllib.request.urlopen(asked) as reply:
            asks = json.load(reply)["items"]
        for ask in asks:
            path = f"{url}/v1/asks/{ask['ref']}"
            body = json.dumps({"decision": "approve"}).encode()
            changed = urllib.request.Request(path, data=body, headers=headers, method="POST")
            with urllib.request.urlopen(changed) as reply:
                print("approved")
    except (urllib.error.HTTPError, ValueError) as error:
        print(f"refused {getattr(error, 'code', error)}")
"""


@contextmanager
def _serve(folder: Path, **env: str) -> Iterator[str]:
    """Serve the app from its own folder, and return the address that the server prints."""
    (folder / "app.py").write_text(APP)
    (folder / "attack.py").write_text(ATTACK)
    command = [sys.executable, "-m", "midrun", "serve", "app.py", "--port", "0"]
    variables = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state"), **env}
    with subprocess.Popen(  # noqa: S603 - our own command
        command, env=variables, cwd=folder, stdout=subprocess.PIPE, text=True
    ) as served:
        try:
            link = read_until(served, "http://").strip()
            (folder / "url").write_text(link.partition("/#")[0])
            yield link
        finally:
            served.terminate()


def test_a_model_cannot_approve_its_own_call_with_the_servers_token(tmp_path: Path) -> None:
    """The turn asks to wire money, and runs a command that approves it with MIDRUN_TOKEN."""
    folder = tmp_path / "work"
    folder.mkdir()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        _serve(folder, MIDRUN_TOKEN=TOKEN, MIDRUN_KEY="k" * 32, OTHER="x") as url,
        httpx2.Client(base_url=url, headers=headers, timeout=90) as operator,
    ):
        assert "#" not in url  # no sign-in code is printed if a token is configured
        started = operator.post("/v1/runs", json={"agent": "clerk", "input": "Go."}).json()
        where = f"/v1/runs/{started['run_id']}"
        while (view := operator.get(where).json())["phase"] != "waiting":
            assert view["phase"] in {"queued", "running"}, view
        journal = operator.get(f"{where}/export").text
        assert "refused 401" in journal  # the attack has run with the tokens that it found
        assert "approved" not in journal
        assert "/token" not in journal  # there is no token file where tools work
        assert TOKEN not in journal
        assert not (folder / "wired").exists()
        assert "OTHER" in journal  # the async tool sees variables of the server, but ...
        assert "MIDRUN_" not in journal.replace("$MIDRUN_TOKEN", "")
        # With the operator's token, the same request approves the call.
        attack = [sys.executable, str(folder / "attack.py"), TOKEN]
        output = subprocess.check_output(attack, cwd=folder, text=True)  # noqa: S603 - our own
        assert "approved" in output
        while operator.get(where).json()["phase"] != "completed":
            pass
    assert (folder / "wired").read_text() == "DE89-ATTACKER"


def test_a_model_finds_no_token_that_the_server_made_in_its_folder(tmp_path: Path) -> None:
    """Without a configured token one is made, outside of the folder where tools work."""
    folder = tmp_path / "work"
    folder.mkdir()
    with _serve(folder) as link:
        url, _, code = link.partition("/#code=")
        with httpx2.Client(base_url=url, timeout=90) as operator:
            signed = operator.post(
                "/v1/session", json={}, headers={"Authorization": f"Code {code}"}
            )
            assert signed.status_code == 200
        assert not [path for path in folder.rglob("*token*") if path.is_file()]
        (token_file,) = (tmp_path / "state").rglob("token")
        assert token_file.stat().st_mode & 0o777 == 0o600
        assert token_file.parent.stat().st_mode & 0o777 == 0o700
