"""The files in `deploy/`: they can be parsed, are locked down, and their commands work.

The image is not built here: `make image` does that where a container runtime is available. A
test runs the commands of the Dockerfile in a plain folder instead.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeAlias

import httpx2
import msgspec
import pytest

from midrun.cli.parser import build_parser
from midrun.testing.postgres import Postgres
from tests.support.paths import ROOT
from tests.unit.cli.command_runner import CommandRunner, ProcessRunner, read_until

DEPLOY: Final = ROOT / "deploy"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
EnvironmentMap: TypeAlias = dict[str, str]

SERVE_UID: Final = "10001"
WORKER_UID: Final = "10002"


class HealthCheck(msgspec.Struct):
    test: list[str]


class ComposeService(msgspec.Struct):
    image: str
    command: list[str] = []
    user: str = ""
    read_only: bool = False
    cap_drop: list[str] = []
    security_opt: list[str] = []
    environment: EnvironmentMap = {}
    volumes: list[str] = []
    configs: list[dict[str, str]] = []
    healthcheck: HealthCheck | None = None


class ConfigText(msgspec.Struct):
    content: str


class Compose(msgspec.Struct):
    services: dict[str, ComposeService]
    configs: dict[str, ConfigText]
    volumes: dict[str, None]


COMPOSE: Final = msgspec.yaml.decode((DEPLOY / "compose.yaml").read_bytes(), type=Compose)


def accept_command(words: list[str]) -> None:
    build_parser().parse_args(words)


PROGRAMS: Final = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "command",
    [
        ("hadolint", "Dockerfile"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"),
        ("kubernetes-validate", "--strict", "kubernetes/midrun.yaml"),
    ],
    ids=lambda command: command[0],
)
def test_the_linter_of_each_format_accepts_the_file(command: tuple[str, ...]) -> None:
    """The linter of Dockerfiles, the schema of compose, and the schemas of Kubernetes."""
    words = [str(PROGRAMS / command[0]), *command[1:]]
    linted = subprocess.run(words, cwd=DEPLOY, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    assert linted.returncode == 0, linted.stdout + linted.stderr


# ── compose ──────────────────────────────────────────────────────────────────


def test_containers_are_read_only_without_rights_and_under_two_accounts() -> None:
    """Tools run in the container of the worker, which has no access to the users."""
    serve, worker = COMPOSE.services["serve"], COMPOSE.services["worker"]
    for each in (serve, worker):
        accept_command(each.command)
        assert each.read_only
        assert each.cap_drop == ["ALL"]
        assert each.security_opt == ["no-new-privileges:true"]
    assert serve.user == f"{SERVE_UID}:{SERVE_UID}"
    assert worker.user == f"{WORKER_UID}:{WORKER_UID}"
    assert "users:/var/lib/midrun" in serve.volumes
    assert not [each for each in worker.volumes if "users" in each]
    assert "MIDRUN_TOKEN" not in worker.environment


def test_every_mounted_file_exists_and_every_config_is_valid() -> None:
    for service in COMPOSE.services.values():
        for volume in service.volumes:
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), volume
            else:
                assert source in COMPOSE.volumes, volume
        for config in service.configs:
            msgspec.yaml.decode(COMPOSE.configs[config["source"]].content)


@pytest.mark.slow
def test_the_commands_of_compose_serve_a_run_that_the_worker_drives(
    tmp_path: Path, postgres: Postgres
) -> None:
    """With the same settings file, the same app and a real Postgres, in a plain folder."""
    (tmp_path / "metrics_token").write_text("the-token-of-prometheus")
    serve, worker = COMPOSE.services["serve"], COMPOSE.services["worker"]
    shutil.copy(DEPLOY / "app.py", tmp_path)
    shell = ProcessRunner(
        tmp_path,
        MIDRUN_CONFIG=str(DEPLOY / "midrun.toml"),
        MIDRUN_STORE=postgres.url(),
        MIDRUN_USERS_FILE=str(tmp_path / "users.json"),
        MIDRUN_METRICS_TOKEN_FILE=str(tmp_path / "metrics_token"),
        MIDRUN_METRICS="0.0.0.0:0",
        MIDRUN_PORT="0",
    )
    del shell.env["MIDRUN_ACTOR"]
    checked = shell.run("config", "check", "serve")
    assert "Cannot read it" in checked.err  # there is no user yet
    token = shell.run("users", "add", "ada", "--role", "operator").out.strip()
    for service in ("serve", "worker"):
        assert shell.run("config", "check", service).code == 0
    app = [str(tmp_path / word) if word == "app.py" else word for word in serve.command]
    with shell.start(*app) as server:
        # The first address is that of the metrics.
        port = re.sub(r".*:(\d+)$", r"\1", read_until_address(server))
        url = f"http://localhost:{port}"
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}) as web:
            run = web.post("/v1/runs", json={"agent": "clerk", "input": "Sort"}).json()
            words = [str(tmp_path / w) if w == "app.py" else w for w in worker.command]
            with shell.start(*words) as worker_process:
                path = f"/v1/runs/{run['run_id']}?until=terminal"
                while True:
                    view = web.get(path, headers={"Prefer": "wait=20"}, timeout=60).json()
                    if view["phase"] == "completed":
                        break
                worker_process.terminate()
        assert serve.healthcheck is not None
        probe = [word.replace("8700", port) for word in serve.healthcheck.test[1:]]
        assert subprocess.run(probe, env=shell.env, check=False).returncode == 0  # noqa: S603 - our file
        server.terminate()
    assert view["output"] == "Sorted."


def read_until_address(server: "subprocess.Popen[str]") -> str:
    """Return the address of the page, which has no path."""
    while (line := read_until(server, "http://").strip()).endswith("/metrics"):
        pass
    return line


# ── systemd ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_commands_of_a_unit_exist_and_its_account_is_its_own(unit: Path) -> None:
    text = unit.read_text()
    commands = re.findall(
        r"^ExecStart(?:Pre)?=/opt/midrun/bin/midrun (.*)$", text, re.MULTILINE
    )
    assert len(commands) == 2
    for command in commands:
        accept_command(shlex.split(command))
    assert f"User={unit.stem}\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_each_unit(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "midrun"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/midrun/bin/midrun", str(program)))
    command = ["systemd-analyze", "verify", str(copy)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed
    assert unit.name not in checked.stderr
    assert checked.returncode == 0, checked.stderr


# ── Kubernetes ───────────────────────────────────────────────────────────────


class SecurityContext(msgspec.Struct, rename="camel"):
    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: dict[str, list[str]]


class Container(msgspec.Struct, rename="camel"):
    args: list[str]
    env: list[dict[str, object]]
    security_context: SecurityContext
    volume_mounts: list[dict[str, str]]
    ports: list[dict[str, str | int]]
    liveness_probe: dict[str, dict[str, str]] | None = None
    readiness_probe: dict[str, object] | None = None


class PodSecurity(msgspec.Struct, rename="camel"):
    run_as_non_root: bool
    run_as_user: int


class PodSpec(msgspec.Struct, rename="camel"):
    containers: list[Container]
    volumes: list[dict[str, object]]
    security_context: PodSecurity
    enable_service_links: bool
    automount_service_account_token: bool
    termination_grace_period_seconds: int


class PodTemplate(msgspec.Struct):
    spec: PodSpec


class DeploymentSpec(msgspec.Struct):
    template: PodTemplate


class Deployment(msgspec.Struct):
    spec: DeploymentSpec


class Manifest(msgspec.Struct):
    kind: str
    data: EnvironmentMap = {}


MANIFESTS: Final = (DEPLOY / "kubernetes" / "midrun.yaml").read_text().split("\n---\n")


def read_config_map() -> EnvironmentMap:
    (found,) = [
        each.data
        for text in MANIFESTS
        if (each := msgspec.yaml.decode(text, type=Manifest)).kind == "ConfigMap"
    ]
    return found


def test_pods_are_locked_down_and_their_commands_exist() -> None:
    pods = [
        msgspec.yaml.decode(text, type=Deployment).spec.template.spec
        for text in MANIFESTS
        if "kind: Deployment" in text
    ]
    assert [pod.security_context.run_as_user for pod in pods] == [
        int(SERVE_UID),
        int(WORKER_UID),
    ]
    for pod in pods:
        (container,) = pod.containers
        accept_command(container.args)
        assert {"name": "metrics", "containerPort": 9464} in container.ports
        assert pod.security_context.run_as_non_root
        assert not pod.enable_service_links
        assert not pod.automount_service_account_token
        assert pod.termination_grace_period_seconds > 30
        assert container.security_context == SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities={"drop": ["ALL"]},
        )
        volumes = {each["name"] for each in pod.volumes}
        assert {mount["name"] for mount in container.volume_mounts} == volumes
    assert pods[0].containers[0].liveness_probe is not None
    assert pods[0].containers[0].readiness_probe is not None


def test_the_settings_of_the_config_map_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those for systemd in the guide."""
    config = tmp_path / "midrun.toml"
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    (for_systemd,) = re.findall(r"(?ms)^```text\n(\[serve\].*?)^```", guide)
    midrun = CommandRunner(capsys)
    users = str(tmp_path / "users.json")
    assert midrun("users", "add", "ada", "--users-file", users).code == 0
    for text in (read_config_map()["midrun.toml"], for_systemd):
        config.write_text(text)
        for service in ("serve", "worker"):
            monkeypatch.setenv("MIDRUN_USERS_FILE", users)  # a command removes it
            monkeypatch.setenv("MIDRUN_METRICS_TOKEN", "the-token-of-prometheus")
            shown = midrun("config", "check", service, "--config", str(config))
            assert shown.code == 0, shown.err


# ── the image ────────────────────────────────────────────────────────────────


def test_the_image_starts_without_root_and_takes_only_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert [line for line in lines if line.startswith("USER")] == [
        f"USER {SERVE_UID}:{SERVE_UID}"
    ]
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), line
    extras = re.search(r"'\.\[([a-z,]+)\]'", text)
    assert extras is not None
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert f"\n{extra} = [" in declared
    assert "ENTRYPOINT" in text
    accept_command(["serve", "app.py"])


def test_the_image_has_the_tested_versions() -> None:
    """The command of the image turns the pins into constraints for pip."""
    text = (DEPLOY / "Dockerfile").read_text()
    found = re.search(r"sed --quiet '(.*)' requirements/dev.txt", text)
    assert found is not None
    command = ["sed", "--quiet", found[1], str(ROOT / "requirements" / "dev.txt")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our file
    pins = made.splitlines()
    assert len(pins) > 100
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", pin) for pin in pins)
    assert any(pin.startswith("starlette==") for pin in pins)


class DockerStep(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    text: str


def read_steps() -> list[DockerStep]:
    """Return the instructions of the Dockerfile, each on one line."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [DockerStep(*line.split(maxsplit=1)) for line in lines]


class PlainRoot:
    """Runs the steps of a Dockerfile with a folder in place of the root of an image.

    Absolute paths of the commands are moved into the folder. The packages are not downloaded:
    pip installs Midrun alone, and the environment of the tests provides its dependencies. The
    accounts are not created; the number of the account is used as it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": PATH}
        self.work = folder
        self.user = 0
        self.account: int | None = None  # None: that of the tests
        self.python = self._link_python()
        self.words: dict[str, list[str]] = {}

    def _link_python(self) -> Path:
        """Return a link `python` to an interpreter that the account of the image may run.

        That of the tests may be in the home of root. Then the one of the system is used, if it
        has the same version. Without root, or without such an interpreter, the program runs
        under the account of the tests.
        """
        account = int(SERVE_UID)
        version = f"/usr/bin/python3.{sys.version_info.minor}"
        chosen = sys.executable
        for program in (sys.executable, version) if os.geteuid() == 0 else ():
            try:
                command = [program, "-c", "import venv"]
                subprocess.run(command, check=True, user=account, group=account)  # noqa: S603 - fixed
            except (OSError, subprocess.CalledProcessError):
                continue
            chosen, self.account = program, account
            break
        link = self.folder / "tmp" / "bin" / "python"
        link.parent.mkdir(parents=True)
        link.symlink_to(chosen)
        return link

    def run_step(self, step: DockerStep) -> None:
        """Carry out one instruction."""
        match step.name:
            case "WORKDIR":
                self.work = self.move(step.text)
                self.work.mkdir(parents=True, exist_ok=True)
            case "COPY":
                self._copy(step.text.split())
            case "RUN":
                self._run_commands(step.text)
            case "ENV":
                for word in step.text.split():
                    name, _, value = word.partition("=")
                    self.environment[name] = value.replace("/opt/", f"{self.folder}/opt/")
            case "USER":
                self.user = int(step.text.partition(":")[0])
            case "ENTRYPOINT" | "CMD":
                self.words[step.name] = json.loads(step.text)
            case "ARG" | "FROM" | "EXPOSE":
                pass  # Python is that of the tests
            case _:
                raise AssertionError(f"the test does not know {step}")

    def move(self, path: str) -> Path:
        """Return the place of an absolute path in the folder."""
        return self.folder / path.lstrip("/")

    def _copy(self, words: list[str]) -> None:
        if words[0].startswith("--from="):
            assert words[1] == words[2]  # it is there: there is one root for all stages
            return
        *sources, target = words
        for source in sources:
            place = self.work / target
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, place, ignore=ignored)
            else:
                place = place / Path(source).name if target.endswith("/") else place
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)

    def _run_commands(self, text: str) -> None:
        commands = [each.strip() for each in text.split("&&")]
        moved = [
            re.sub(r"(?<![\w./:])/(tmp|opt|var)/", f"{self.folder}/\\1/", each)
            for each in commands
            if not each.startswith("useradd")
        ]
        for command in moved:
            if os.geteuid() != 0 and "--owner" in command:
                continue  # only root may give a folder to another account
            offline = "install --no-index --no-deps --no-build-isolation"
            shell = ["sh", "-euc", re.sub(r"pip install\b", f"pip {offline}", command)]
            environment = self.environment | {"PATH": f"{self.python.parent}:{PATH}"}
            environment["PYTHONPATH"] = sysconfig.get_path("purelib")  # the build tool
            done = subprocess.run(  # noqa: S603 - our file
                shell,
                cwd=self.work,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"


PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.slow
@pytest.mark.once
def test_the_steps_of_the_image_make_a_program_that_needs_no_root_and_no_writes() -> None:
    """In a plain folder, as there is no container runtime here; see `PlainRoot`."""
    with TemporaryDirectory(prefix="image-", dir="/tmp") as folder:
        root = PlainRoot(Path(folder))
        for name in ("opt", "var/lib"):
            (root.folder / name).mkdir(parents=True)
        for step in read_steps():
            root.run_step(step)
        (packages,) = (root.folder / "opt" / "midrun" / "lib").glob("python*/site-packages")
        (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
        shutil.copy(DEPLOY / "app.py", root.work)
        shutil.rmtree(root.move("/src"))  # the second stage has nothing of the first one
        state = root.move("/var/lib/midrun")
        if os.geteuid() == 0:
            assert (state.stat().st_uid, state.stat().st_mode & 0o777) == (root.user, 0o700)
        else:
            state.mkdir()
        run_as_image(root, state)


def run_as_image(root: PlainRoot, state: Path) -> None:
    """Start the command of the image under its account; the tree must not change."""
    assert root.user == int(SERVE_UID)
    root.folder.chmod(0o755)
    for path in sorted(root.folder.rglob("*"), reverse=True):
        if path != state and not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222 | 0o444)
    if not root.account:
        state.chmod(0o777)
    before = list_tree(root.folder)
    home = {"HOME": str(state), "XDG_STATE_HOME": str(state)}
    environment = root.environment | home | {"MIDRUN_STORE": f"sqlite:///{state}/runs.db"}
    (program,) = root.words["ENTRYPOINT"]
    found = shutil.which(program, path=environment["PATH"])
    assert found == str(root.folder / "opt" / "midrun" / "bin" / "midrun")
    command = [found, *root.words["CMD"], "--port", "0", "--json"]
    with subprocess.Popen(  # noqa: S603 - our file
        command,
        cwd=root.work,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        user=root.account,
        group=root.account,
    ) as server:
        try:
            url = json.loads(read_until(server, "http://"))["url"].partition("/#")[0]
            assert httpx2.get(f"{url}/readyz").status_code == 204
        finally:
            server.terminate()
    assert list_tree(root.folder) == before
    assert (state / "runs.db").stat().st_uid == (root.account or os.geteuid())


def list_tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, apart from the folder for state."""
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if "var/lib/midrun" not in str(path)
    }
