"""Settings from options, the environment and a file, and `midrun config check`."""

from argparse import Namespace
from pathlib import Path

import httpx2
import pytest

from midrun.cli.parser import build_parser
from midrun.cli.settings import resolve_settings
from midrun.errors import Misconfigured
from midrun.server import UsersFile
from tests.unit.cli.command_runner import (
    APP,
    CommandRunner,
    ProcessRunner,
    read_until,
)

FILE = """\
store = "sqlite:///from-file.db"
limit = ["all=50"]
spans = true
drain = 2

[serve]
port = 9000
allow_host = ["file.example", "other.example"]

[worker]
limit = ["all=7"]
"""


def resolve(*words: str) -> Namespace:
    args = build_parser().parse_args(words)
    resolve_settings(args)
    return args


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "midrun.toml"
    path.write_text(FILE)
    return path


def test_an_option_precedes_the_environment_which_precedes_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first source that has a setting decides; a list is replaced, not extended."""
    command = ("serve", "app.py", "--config", str(file))
    args = resolve(*command)
    assert (args.port, args.drain, args.spans, args.host) == (9000, 2.0, True, "127.0.0.1")
    assert args.allow_host == ["file.example", "other.example"]
    monkeypatch.setenv("MIDRUN_PORT", "9100")
    monkeypatch.setenv("MIDRUN_SPANS", "off")
    monkeypatch.setenv("MIDRUN_ALLOW_HOST", "env.example, more.example")
    args = resolve(*command, "--allow-host", "typed.example")
    assert (args.port, args.spans, args.allow_host) == (9100, False, ["typed.example"])
    monkeypatch.setenv("MIDRUN_PORT", "9100")
    monkeypatch.setenv("MIDRUN_ALLOW_HOST", "env.example, more.example")
    args = resolve(*command, "--port", "8700")  # typed, although it is the default
    assert (args.port, args.allow_host) == (8700, ["env.example", "more.example"])


def test_a_table_of_the_file_is_for_one_command(file: Path) -> None:
    assert resolve("serve", "app.py", "--config", str(file)).limit == ["all=50"]
    worker = resolve("worker", "app.py", "--config", str(file))
    assert worker.limit == ["all=7"]
    assert not hasattr(worker, "port")


def test_other_commands_take_only_their_store_or_server_from_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--limit` of `ls` is another option. The address of the nearer source decides."""
    monkeypatch.setenv("MIDRUN_CONFIG", str(file))
    args = resolve("ls")
    assert (args.store, args.url, args.limit) == ("sqlite:///from-file.db", None, 50)
    monkeypatch.setenv("MIDRUN_CONFIG", str(file))
    monkeypatch.setenv("MIDRUN_URL", "http://127.0.0.1:1")
    assert resolve("ls").url == "http://127.0.0.1:1"
    file.write_text('url = "http://127.0.0.1:2"\n')
    monkeypatch.setenv("MIDRUN_CONFIG", str(file))
    monkeypatch.setenv("MIDRUN_STORE", "sqlite:///from-environment.db")
    assert resolve("ls").url is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", r"prot: is not a setting; did you mean port\?"),
        ("[serve]\nalow_host = []", r"\[serve\] alow_host: .* did you mean allow_host\?"),
        ("[worker]\nport = 1", r"\[worker\] port: is not a setting"),
        ("serve = 1", r"serve must be a table"),
        ('port = "many"', r"port must be of type int, got 'many'"),
        ("port = true", r"port must be a string or a number"),
        ('allow_host = "a"', r"allow_host must be a list of strings"),
        ('spans = "yes"', r"spans must be true or false"),
        ('engine = "fast"', r"engine must be one of local, temporal, none"),
        ('token = "the-secret-token-1"', r"token must not be in this file.* token_file"),
        ("port = ", r"is not valid TOML"),
    ],
)
def test_a_faulty_file_is_refused_with_its_key(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    with pytest.raises(Misconfigured, match=problem) as raised:
        resolve("serve", "app.py", "--config", str(file))
    assert "the-secret-token-1" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"), [("MIDRUN_PORT", "tcp://10.0.0.1:80"), ("MIDRUN_SPANS", "maybe")]
)
def test_a_faulty_variable_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets MIDRUN_PORT to such a value beside a service named midrun."""
    monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured, match=name):
        resolve("serve", "app.py")


def test_a_secret_comes_from_a_variable_or_from_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers mount secrets as files."""
    secret, config = tmp_path / "secret", tmp_path / "midrun.toml"
    secret.write_text("from-the-file\n")
    config.write_text(f'chain_key_file = "{secret}"\n')
    monkeypatch.setenv("MIDRUN_KEY_FILE", str(secret))
    monkeypatch.setenv("MIDRUN_TOKEN", "from-the-environment")
    args = resolve("serve", "app.py", "--config", str(config))
    assert args.keys == {
        "key": b"from-the-file",
        "chain_key": b"from-the-file",
        "encryption_keys": (),
    }
    assert args.token == "from-the-environment"
    monkeypatch.setenv("MIDRUN_KEY_FILE", str(secret))
    monkeypatch.setenv("MIDRUN_KEY", "another")
    with pytest.raises(Misconfigured, match="MIDRUN_KEY and MIDRUN_KEY_FILE"):
        resolve("ls")


def test_config_check_prints_each_value_with_its_source_and_no_secret(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDRUN_TOKEN", "a-very-secret-token")
    monkeypatch.setenv("MIDRUN_STORE", "postgresql://midrun:pass@word@db/runs?password=other")
    monkeypatch.setenv("MIDRUN_WEBHOOK", "https://hooks.example/a-secret-path")
    monkeypatch.setenv("MIDRUN_WEBHOOK_SECRET", "the-secret-of-the-webhook")
    midrun = CommandRunner(capsys)
    shown = midrun("config", "check", "--config", str(file), "--host", "0.0.0.0", "--json")  # noqa: S104 - not opened
    rows = {each["setting"]: each for each in shown.values if "setting" in each}
    assert rows["host"]["source"] == "--host"
    assert rows["port"] == {
        "setting": "port",
        "value": "9000",
        "source": f"{file} [serve] port",
    }
    assert rows["store"]["value"] == "postgresql://midrun:***@db/runs?password=***"
    assert rows["token"] == {"setting": "token", "value": "(hidden)", "source": "MIDRUN_TOKEN"}
    assert rows["versions"]["source"] == "default"
    assert shown.code == 0
    for secret in ("a-very-secret-token", "pass@word", "other&", "a-secret-path"):
        assert secret not in shown.out + shown.err
    people = midrun("config", "check", "worker", "--config", str(file))
    assert "The settings of midrun worker are valid." in people.out
    assert "allow_host" not in people.out


@pytest.mark.parametrize(
    ("words", "variable", "problem"),
    [
        (("--host", "0.0.0.0"), "", "other machines can reach it"),  # noqa: S104 - to be refused
        (("--tls-cert", "none.pem"), "", "Cannot load none.pem"),
        (("--limit", "all"), "", "must be SCOPE=N"),
        (("--quota", "user.spend=1"), "", "must be user.NAME=N"),
        (("--port", "99999"), "", "must be from 0 to 65535"),
        (("--store", "mysql://db/runs"), "", "must be memory://, sqlite:///"),
        (("--drain", "-3"), "", "must be 0 or more seconds"),
        (("--forwarded-allow-ips", "300.1.1.1"), "", "must be addresses such as"),
        (("--webhook", "hooks"), "", "must begin with https://"),
        (("--metrics", "0.0.0.0:9464"), "", "other machines can reach it"),
        (("--temporal-address", "temporal"), "", "must be HOST:PORT"),
        (("--retention", "all=90"), "", "such as 90d, got '90'"),
        ((), "MIDRUN_CHAIN_KEY", "must have at least"),
        ((), "MIDRUN_SESSION_KEY", "MIDRUN_SESSION_KEY must have at least 32 bytes"),
        (("--users-file", "users.json"), "MIDRUN_TOKEN", "cannot be combined with a token"),
        (("--public-url", "https://runs.example/x"), "", "must be an origin"),
        ((), "MIDRUN_ALOW_HOST", "did you mean MIDRUN_ALLOW_HOST?"),
    ],
)
def test_config_check_refuses_what_serve_would_refuse(
    words: tuple[str, ...],
    variable: str,
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a variable with the prefix that is no setting."""
    if variable:
        monkeypatch.setenv(variable, "x")
    UsersFile(Path("users.json")).add("ada", "operator")
    shown = CommandRunner(capsys)("config", "check", *words)
    assert shown.code == 2
    assert problem in shown.err
    assert "versions" in shown.out  # the values are printed first


def test_a_server_starts_from_a_file_alone(tmp_path: Path) -> None:
    """As in a container: no option but the file, and the token in a file of its own."""
    (tmp_path / "token").write_text("the-token-of-the-operator")
    config = tmp_path / "midrun.toml"
    config.write_text(
        f'token_file = "{tmp_path}/token"\nstore = "sqlite:///{tmp_path}/runs.db"\n'
        '[serve]\nport = 0\nengine = "none"\n'
    )
    shell = ProcessRunner(tmp_path, MIDRUN_CONFIG=str(config))
    del shell.env["MIDRUN_STORE"]
    with shell.start("serve", f"{APP}:all_agents") as server:
        try:
            url = read_until(server, "http://").strip()
            headers = {"Authorization": "Bearer the-token-of-the-operator"}
            assert httpx2.get(f"{url}/v1/session", headers=headers).json()["role"] == "operator"
        finally:
            server.terminate()
    assert (tmp_path / "runs.db").exists()
