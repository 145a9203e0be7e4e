"""What a server must have before it is one: a credential, and a name where others reach it."""

from pathlib import Path

import pytest

from midrun import Actor, Midrun, Misconfigured
from midrun.runs.token_file import token_folder
from midrun.server import Network, Tokens, app, token_in
from midrun.server import serve as serve_forever
from midrun.server.serve import UvicornServer
from tests.unit.server.conftest import token_of


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    """256 bits, in a file that nobody else on the machine can read."""
    token = token_in(tmp_path / "data")
    path = tmp_path / "data" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(token) >= 43
    assert token_in(tmp_path / "data") == token
    assert token_in(tmp_path / "other") != token


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """It has been read already, for all we know."""
    token_in(tmp_path)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(Misconfigured, match="other users can read it"):
        token_in(tmp_path)


def test_a_token_behind_a_link_is_refused(tmp_path: Path) -> None:
    """Whoever can place a link in the folder must not choose the token."""
    (tmp_path / "chosen").write_text("a" * 43)
    (tmp_path / "token").symlink_to(tmp_path / "chosen")
    with pytest.raises(OSError, match="symbolic"):
        token_in(tmp_path)


async def test_a_token_file_of_an_earlier_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools work in that folder, and may have read it: it is not used any longer."""
    monkeypatch.chdir(tmp_path)
    token_in(tmp_path / ".midrun")
    with pytest.raises(Misconfigured, match=r"tools work in this folder.* Delete it"):
        await serve_forever(Midrun("memory://"), port=0)


def test_a_token_is_kept_outside_of_the_folder_that_tools_work_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the state folder of the user, apart for every working folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, two = token_folder(tmp_path / "one"), token_folder(tmp_path / "two")
    assert one.parent == two.parent == tmp_path / "state" / "midrun"
    assert one != two
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # of no use unless it is absolute
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_folder(tmp_path / "one").parent == tmp_path / ".local" / "state" / "midrun"
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(Misconfigured, match="MIDRUN_TOKEN"):
        token_folder(tmp_path)


def test_a_server_without_credentials_is_not_made() -> None:
    """Neither on loopback nor for a test: there is no such setting."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="token"):
        app(mid)
    with pytest.raises(Misconfigured, match="token"):
        app(mid, token=token_of("me"), auth=Tokens({token_of("me"): Actor(name="ann")}))
    for weak in ("", "short"):
        with pytest.raises(Misconfigured, match="characters"):
            app(mid, token=weak)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])  # noqa: S104 - to be refused
async def test_no_bind_beyond_loopback_without_configured_auth(
    host: str, tmp_path: Path
) -> None:
    """Others could reach it; a token that nobody chose is not a decision to let them."""
    mid = Midrun("memory://")
    with pytest.raises(Misconfigured, match="other machines can reach it"):
        await serve_forever(mid, host=host, folder=tmp_path)
    with pytest.raises(Misconfigured, match="allow_hosts"):
        await serve_forever(mid, host=host, token=token_of("me"))


@pytest.mark.parametrize(
    ("network", "public_url", "warns"),
    [
        (Network(), None, True),
        (Network(), "http://runs.example", True),
        (Network(), "https://runs.example", False),
        (Network(forwarded_allow_ips="10.0.0.1"), None, False),
    ],
)
async def test_plain_http_beyond_loopback_is_warned_of(
    network: Network,
    public_url: str | None,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tokens would cross the network in the clear, unless a proxy speaks https."""
    with pytest.raises(Misconfigured, match="address"):
        await serve_forever(
            Midrun("memory://"),
            host="192.0.2.1",  # no address of this machine: it cannot be bound
            token=token_of("me"),
            allow_hosts=["runs.example"],
            public_url=public_url,
            network=network,
        )
    assert ("--tls-cert" in caplog.text) is warns


async def test_network_settings_that_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    """Before a socket is opened, and before a client meets them."""
    missing = tmp_path / "cert.pem"
    for network, name in (
        (Network(tls_cert=missing), "tls_cert"),
        (Network(tls_key=missing), "tls_key"),
        (Network(root_path="midrun/"), "root_path"),
    ):
        with pytest.raises(Misconfigured, match=name):
            await serve_forever(Midrun("memory://"), folder=tmp_path, network=network)


def test_no_variable_of_the_environment_declares_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Images set it for uvicorn; every client could then claim any address."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    made = app(Midrun("memory://"), token=token_of("me"))
    assert UvicornServer(made).config.forwarded_allow_ips == "127.0.0.1,::1"
    declared = Network(forwarded_allow_ips="10.0.0.1")
    assert UvicornServer(made, declared).config.forwarded_allow_ips == "10.0.0.1"
