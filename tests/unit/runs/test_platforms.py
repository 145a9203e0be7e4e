"""Other platforms than Linux: their facilities, and what works on Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

from midrun import Agent, Midrun, Misconfigured
from midrun.driver.holder_socket import HolderSocket, is_holder_gone
from midrun.models import ScriptedModel
from midrun.ports import platform
from midrun.ports.platform import LINUX, MACOS, WINDOWS, choose_boot_clock, detect_platform
from midrun.stores.sqlite.relay import get_relay_folder
from tests.support.paths import ROOT

MACOS_TEMPORARY_FOLDER = "/private/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
MACOS_SOCKET_PATH_MAX_BYTES = 103
"""`sun_path` has 104 bytes there, the last of which is zero."""

AS_ON_WINDOWS = """
import os, socket, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
for name in ("fork", "geteuid", "getuid", "killpg", "setsid", "mkfifo"):
    delattr(os, name)
del socket.AF_UNIX
import midrun.ports.platform as platform
platform.CURRENT = platform.WINDOWS
import midrun
from midrun.models import ScriptedModel
agent = midrun.Agent("clerk", model=ScriptedModel(["Done."]))
remote = midrun.connect("http://127.0.0.1:1")
try:
    midrun.Midrun("memory://", agents=[agent])
except midrun.Misconfigured as error:
    print(error)
"""


def test_each_platform_is_known_by_name() -> None:
    assert [detect_platform(each) for each in ("linux", "darwin", "win32")] == [
        LINUX,
        MACOS,
        WINDOWS,
    ]
    other = detect_platform("freebsd14")
    assert (other.name, other.can_drive_runs, other.has_pidfd) == ("freebsd14", True, False)


def test_without_abstract_sockets_no_holder_is_declared_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leases end by the clock. A holder of a Linux host is not judged there either."""
    with HolderSocket("worker_1") as on_linux:
        monkeypatch.setattr(platform, "CURRENT", MACOS)
        assert not is_holder_gone(on_linux.holder_name)
    with HolderSocket("worker_2") as holder:
        assert (holder.holder_name, holder.fd) == ("worker_2", None)
    assert not is_holder_gone("worker_2")


def test_the_clock_of_leases_goes_on_without_a_boot_clock() -> None:
    read_clock = choose_boot_clock(MACOS)
    first = read_clock()
    assert first <= read_clock()


def test_the_path_of_a_socket_fits_into_the_folder_of_macos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its folder for temporary files has a long path already."""
    monkeypatch.setattr("tempfile.tempdir", MACOS_TEMPORARY_FOLDER)
    for database in ("/data/runs.db", "/".join(["", *["folder"] * 30, "runs.db"])):
        path = get_relay_folder(Path(database)) / "12345678.sock"
        assert len(str(path)) <= MACOS_SOCKET_PATH_MAX_BYTES, path


def test_windows_can_declare_agents_and_connect_and_is_refused_the_rest_by_name() -> None:
    """Nothing that a client imports needs a module or a function of Unix."""
    command = [sys.executable, "-c", AS_ON_WINDOWS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    assert (done.returncode, done.stderr) == (0, "")
    assert "Cannot drive or store runs on Windows" in done.stdout
    assert "midrun.connect(url)" in done.stdout


def test_a_store_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "CURRENT", WINDOWS)
    agent = Agent("clerk", model=ScriptedModel([]))
    with pytest.raises(Misconfigured, match="Use WSL 2"):
        Midrun("memory://", agents=[agent])
