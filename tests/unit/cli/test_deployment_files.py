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


class ComposeFolder:
    """Runs the commands of the guide in a copy of `deploy/`; this class stands for Docker.

    A service is a process of this machine. Its paths in the container become paths in the
    folder, its ports become free ones, and the service `db` is the Postgres of the tests.
    """

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder = shutil.copytree(DEPLOY, folder / "deploy")
        self.postgres, self.store = postgres, postgres.url()
        self.token = ""
        self.up = False
        self._paths = {"/run/secrets": f"{self.folder}/secrets"}
        for mount in COMPOSE.services["serve"].volumes:
            source, target = mount.split(":")[:2]
            self._paths[target] = str(self.folder / source)
        (self.folder / "users").mkdir()
        settings = self.folder / "midrun.toml"
        settings.write_text(self._move(settings.read_text()))

    def _move(self, text: str) -> str:
        for inside, outside in self._paths.items():
            text = text.replace(inside, outside)
        return text

    def run_line(self, line: str) -> None:
        """Run a line of the guide: `docker compose` here, anything else in a shell."""
        line = re.sub(r"\s+#\s.*$", "", line)
        match shlex.split(line):
            case ["docker", "compose", "build"]:
                pass  # a test of the image does it
            case ["docker", "compose", "run", "--rm", "--no-deps", service, *words]:
                done = self.open_shell(service).run(*words)
                assert done.code == 0, done.err
                self.token = done.out.strip()
            case ["docker", "compose", "exec", "-T", "db", program, *words, "midrun", ">", to]:
                user = words.index("--username")
                assert words[user + 1] == COMPOSE.services["db"].environment["POSTGRES_USER"]
                del words[user : user + 2]  # the address of the store has it
                program = str(self.postgres.programs / program)
                with (self.folder / to).open("wb") as file:
                    subprocess.run([program, *words, self.store], stdout=file, check=True)  # noqa: S603 - our guide
            case ["docker", "compose", "up", "--detach"]:
                self.up = True
            case _:
                shell = ["bash", "-euc", line]
                subprocess.run(shell, cwd=self.folder, check=True)  # noqa: S603 - our guide

    def open_shell(self, service: str) -> ProcessRunner:
        """Return a shell with the environment of a service."""
        variables = dict(
            line.split("=", 1) for line in (self.folder / ".env").read_text().splitlines()
        )
        environment = {
            name: self._move(
                re.sub(r"\$\{(\w+)[^}]*\}", lambda m: variables.get(m[1], ""), value)
            )
            for name, value in COMPOSE.services[service].environment.items()
        }
        password = variables["DB_PASSWORD"]
        assert environment["MIDRUN_STORE"] == f"postgresql://midrun:{password}@db/midrun"
        environment["MIDRUN_STORE"] = self.store
        shell = ProcessRunner(self.folder, **environment, MIDRUN_PORT="0")
        shell.env["MIDRUN_METRICS"] = "0.0.0.0:0"
        del shell.env["MIDRUN_ACTOR"]
        return shell

    def list_words(self, service: str) -> list[str]:
        """Return the command of a service, with the path of its app in the folder."""
        words = COMPOSE.services[service].command
        return [words[0], *(self._move(f"/app/{word}") for word in words[1:])]


def read_guide(page: str, first: str) -> list[str]:
    """Return the lines of the `sh` block of a guide that begins with the word `first`."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if block.startswith(f"{first} ")]
    return str(block).replace("\\\n", " ").splitlines()


@pytest.mark.slow
def test_the_commands_of_the_guide_for_compose_serve_a_run_that_the_worker_drives(
    tmp_path: Path, postgres: Postgres
) -> None:
    """With its settings file, its app, its environment and a real Postgres."""
    compose = ComposeFolder(tmp_path, postgres)
    for line in read_guide("deploy.md", "mkdir"):
        compose.run_line(line)
    assert compose.up
    for service in ("serve", "worker"):
        assert compose.open_shell(service).run("config", "check", service).code == 0
    shell = compose.open_shell("serve")
    with shell.start(*compose.list_words("serve")) as server:
        url = read_until_address(server).replace("0.0.0.0", "localhost")  # noqa: S104 - its own text
        with compose.open_shell("worker").start(*compose.list_words("worker")) as worker:
            assert start_run(url, compose.token) == "Sorted."
            for line in read_guide("deploy.md", "docker"):
                compose.run_line(line)
            worker.terminate()
        healthcheck = COMPOSE.services["serve"].healthcheck
        assert healthcheck is not None
        port = url.rpartition(":")[2]
        probe = [word.replace("8700", port) for word in healthcheck.test[1:]]
        assert subprocess.run(probe, env=shell.env, check=False).returncode == 0  # noqa: S603 - our file
        server.terminate()
    dump = (compose.folder / "midrun.dump").read_bytes()
    assert dump.startswith(b"PGDMP")
    assert b"midrun_entries" in dump


def start_run(url: str, token: str) -> str:
    """Start a run of `clerk` at a server, and return its output."""
    headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=20"}
    with httpx2.Client(base_url=url, headers=headers, timeout=60) as web:
        run = web.post("/v1/runs", json={"agent": "clerk", "input": "Sort"}).json()
        while True:
            view = web.get(f"/v1/runs/{run['run_id']}?until=terminal").json()
            if view["phase"] == "completed":
                return str(view["output"])


def read_until_address(server: "subprocess.Popen[str]") -> str:
    """Return the address of the page, which has no path; that of the metrics comes first."""
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


class SystemdRoot:
    """Runs the commands of the guide with a folder in place of the root of a machine.

    Scripts stand for the programs that would change the machine: accounts are not made, `pip`
    links the `midrun` of the tests, and `systemctl` starts nothing. The test does that.
    """

    SCRIPTS: Final = {
        "useradd": "",
        "python3": 'mkdir --parents "$3/bin" && cp "$STAND_INS/pip" "$3/bin/pip"',
        "pip": 'ln --symbolic "$MIDRUN" "$(dirname "$0")/midrun"',
        "runuser": 'test "$1 $3" = "--user --" && exec "${@:4}"',
        "systemctl": 'echo "$@" >> "$STAND_INS/units"',
    }

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        shutil.copytree(DEPLOY, folder / "clone" / "deploy")
        self.stand_ins = folder / "stand-ins"
        for path in (self.stand_ins, folder / "etc" / "systemd" / "system"):
            path.mkdir(parents=True)
        for name, text in self.SCRIPTS.items():
            (self.stand_ins / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.stand_ins / name).chmod(0o755)

    def move(self, text: str) -> str:
        """Return a text whose absolute paths are in the folder."""
        return re.sub(r"(?<![\w./])/(opt|etc|var)/", rf"{self.folder}/\1/", text)

    def run(self, lines: list[str]) -> str:
        """Run lines of the guide; return their output."""
        text = re.sub(r"--owner \S+ ", "", "\n".join(lines))
        assert ("PASSWORD" in text) == ("MIDRUN_STORE=" in text)
        text = re.sub(r"postgresql://midrun:PASSWORD@[^\"]*", self.store, text)
        done = subprocess.run(  # noqa: S603 - our guide
            ["bash", "-euc", self.move(text)],  # noqa: S607 - any bash
            cwd=self.folder / "clone",
            env={
                "PATH": f"{self.stand_ins}:{PATH}",
                "STAND_INS": str(self.stand_ins),
                "MIDRUN": str(PROGRAMS / "midrun"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def list_commands(self, unit: str) -> list[list[str]]:
        """Return the commands of an installed unit, in their order."""
        text = self.move((self.folder / "etc/systemd/system" / f"{unit}.service").read_text())
        found = re.findall(r"^ExecStart(?:Pre)?=(.*)$", text, re.MULTILINE)
        return [shlex.split(command) for command in found]

    def read_environment(self, unit: str) -> EnvironmentMap:
        """Return the environment of a unit: that of its file, and free ports."""
        text = self.move((self.folder / "etc/systemd/system" / f"{unit}.service").read_text())
        (file,) = re.findall(r"^EnvironmentFile=(.*)$", text, re.MULTILINE)
        assert Path(file).stat().st_mode & 0o777 == 0o600
        lines = Path(file).read_text().splitlines()
        free = {"MIDRUN_PORT": "0", "MIDRUN_METRICS": "127.0.0.1:0"}
        return {"PATH": PATH, **free, **dict(line.split("=", 1) for line in lines)}


def read_systemd_settings() -> str:
    """Return the settings file that the guide has for systemd."""
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    (found,) = re.findall(r"(?ms)^```text\n(\[serve\].*?)^```", guide)
    return str(found)


@pytest.mark.slow
def test_the_commands_of_the_guide_for_systemd_serve_a_run_that_the_worker_drives(
    tmp_path: Path, postgres: Postgres
) -> None:
    """With its settings file, its units, their environment files and a real Postgres."""
    machine = SystemdRoot(tmp_path, postgres.url())
    machine.run(read_guide("deploy.md", "useradd"))
    settings = machine.move(read_systemd_settings())
    (tmp_path / "etc/midrun/midrun.toml").write_text(settings)
    token = machine.run(read_guide("deploy.md", "runuser")).strip()
    *_, enable = (machine.stand_ins / "units").read_text().splitlines()
    started: list[subprocess.Popen[str]] = []
    for unit in enable.removeprefix("enable --now ").split():
        check, start = machine.list_commands(unit)
        environment = machine.read_environment(unit)
        subprocess.run(check, env=environment, check=True, capture_output=True)  # noqa: S603 - our file
        started.append(
            subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our file
        )
    try:
        assert start_run(read_until_address(started[0]), token) == "Sorted."
    finally:
        for process in started:
            process.terminate()
            process.communicate()
    assert [process.returncode for process in started] == [0, 0]


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


def test_the_guide_makes_the_secrets_that_the_pods_expect() -> None:
    """The first lines of the manifest have the same commands."""
    manifest = (DEPLOY / "kubernetes" / "midrun.yaml").read_text()
    used = set(re.findall(r"secretKeyRef: \{name: (\S+), key: (\w+)\}", manifest))
    used |= {(name, "users.json") for name in re.findall(r"secretName: ([\w-]+)", manifest)}
    assert len(used) == 3
    for text in (manifest, "\n".join(read_guide("kubernetes.md", "docker"))):
        made = re.findall(
            r"kubectl create secret generic (\S+) --from-(?:file|literal)=([\w.]+)", text
        )
        assert set(made) == used
        for command in re.findall(r"(?m)^#?\s*midrun (.*)$", text):
            accept_command(shlex.split(command, comments=True))


def test_the_settings_of_the_config_map_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those for systemd in the guide."""
    config = tmp_path / "midrun.toml"
    for_systemd = read_systemd_settings()
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


def test_ci_builds_the_image_and_runs_the_lines_of_the_guide() -> None:
    """Where a container runtime is available: `make compose` takes the block from the page."""
    workflow = (ROOT / ".github" / "workflows" / "full.yml").read_text()
    assert "run: make image\n" in workflow
    assert "run: make compose\n" in workflow
    makefile = (ROOT / "Makefile").read_text()
    (sed,) = re.findall(r"^\tcd deploy && (sed .*) \| bash -eux$", makefile, re.MULTILINE)
    command = ["bash", "-euc", sed]
    found = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=True)  # noqa: S603 - our file
    assert found.stdout.splitlines() == read_guide("deploy.md", "mkdir")


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
