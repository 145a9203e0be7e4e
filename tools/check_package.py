"""Build the wheel, install it with each extra into an empty environment, and use it.

    .venv/bin/python -m tools.check_package [--python PATH] [EXTRA …]

`--python` names the interpreter of the environments, for example the one that
`tools/find-python 3.13` finds. Default: the interpreter that runs this script.

The wheel is built twice, from the source tree and from the source distribution; both must have
the same bytes. Versions are constrained to those of requirements/dev.txt. A module that needs a
package of the development environment, and does not declare it, fails here.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools.package_readme import RELATIVE_LINK

ROOT: Final = Path(__file__).parent.parent
INSTALLS_MAX_CONCURRENT: Final = 2

USES: Final = {
    "": "import midrun; midrun.Midrun; midrun.Agent; import midrun.cli.main",
    "a2a": "import midrun.server.a2a.handler",
    "adk": "import midrun.hosts.adk",
    "anthropic": "from midrun.models.registry import model_of; model_of('anthropic:claude-x')",
    "pydantic-ai": "import midrun.hosts.pydantic_ai",
    "client": "from midrun import connect; connect('http://127.0.0.1:1', token='x' * 16)",
    "google": "from midrun.models.registry import model_of; model_of('google:gemini-x')",
    "langchain": "import midrun.hosts.langchain",
    "mcp": "from midrun.mcp import mcp_tools",
    "oidc": "from midrun.server.oidc import oidc; oidc('https://id.example', audience='a')",
    "openai": "from midrun.models.registry import model_of; model_of('openai:gpt-x')",
    "openai-agents": "import midrun.hosts.openai_agents",
    "encryption": "import midrun.stores.encryption as e; e.PayloadCipher([e.make_key()])",
    "otel": "import midrun.followers.otel_metrics, midrun.followers.spans",
    "metrics": "import midrun.followers.prometheus",
    "postgres": "import midrun.stores.postgres",
    "process": "import midrun.hosts.gateway, midrun.hosts.upstream_client",
    "server": "from midrun.server import app, serve; import midrun.demo",
    "strands": "import midrun.hosts.strands",
    "temporal": "import midrun.workers.temporal",
    "tui": "import midrun.tui",
}
"""Extra → a program that uses it. No other extra is installed when it runs."""

UNPINNED: Final = {"strands": ("mcp==",)}
"""Extra → pins that it contradicts; see requirements/overrides.in."""

KEYS: Final = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "none")
SHIPPED: Final = ("midrun/py.typed", "midrun/server/static/midrun.js")


def main(argv: list[str]) -> int:
    """Check the named extras, or all; return the exit code."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"", *declared["optional-dependencies"]}
    if missing := extras ^ set(USES):
        sys.exit(f"*** Extras differ between pyproject.toml and USES: {sorted(missing)}")
    parser = argparse.ArgumentParser(prog="python -m tools.check_package")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("extras", nargs="*")
    args = parser.parse_args(argv)
    chosen = args.extras or sorted(extras)
    with (
        TemporaryDirectory(prefix="midrun-package-") as name,
        ThreadPoolExecutor(INSTALLS_MAX_CONCURRENT) as pool,
    ):
        folder = Path(name)
        wheel, pins = build_wheel(folder), write_constraints(folder)
        check_reproducible(folder, wheel)
        check_readme(wheel)
        find = partial(find_problem, folder, wheel, pins, args.python)
        problems = dict(zip(chosen, pool.map(find, chosen), strict=True))
    for extra, text in problems.items():
        print(f"  midrun[{extra}]  {text or 'works'}")
    return int(any(problems.values()))


def build_wheel(folder: Path) -> Path:
    """Build the wheel and check its list of files."""
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "-w", str(folder), str(ROOT))  # fmt: skip
    (wheel,) = folder.glob("midrun-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    if missing := [name for name in SHIPPED if name not in names]:
        sys.exit(f"*** Files are missing in the wheel: {missing}")
    if strays := [name for name in names if not name.startswith(("midrun/", "midrun-"))]:
        sys.exit(f"*** The wheel contains files of other packages: {strays}")
    return wheel


def check_reproducible(folder: Path, wheel: Path) -> None:
    """Build the wheel from the source distribution, and compare it with `wheel`."""
    made = folder / "from-sdist"
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(made), cwd=ROOT)
    (archive,) = made.glob("midrun-*.tar.gz")
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "-w", str(made), str(archive))  # fmt: skip
    (again,) = made.glob("midrun-*.whl")
    if again.read_bytes() != wheel.read_bytes():
        sys.exit("*** The wheel from the source distribution differs from that of the tree.")


def write_constraints(folder: Path) -> Path:
    """Write the pins without their hashes to a file of constraints."""
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
    pins = folder / "pins.txt"
    pinned = (
        line.removesuffix("\\").strip() for line in lines if "==" in line and line[0] != " "
    )
    pins.write_text("\n".join(pinned))
    return pins


def check_readme(wheel: Path) -> None:
    """Check that the README of the wheel has no relative link: an index shows it alone."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
    if "raw/v" not in text or RELATIVE_LINK.search(text):
        sys.exit("*** The README of the wheel has relative links, or no picture.")


def find_problem(folder: Path, wheel: Path, pins: Path, interpreter: str, extra: str) -> str:
    """Install the wheel with only `extra`, use it, and return the failure or ""."""
    home = folder / f"env-{extra or 'alone'}"
    name = f"{wheel}[{extra}]" if extra else str(wheel)
    python = home / "bin" / "python"
    if contradicted := UNPINNED.get(extra):
        kept = [p for p in pins.read_text().splitlines() if not p.startswith(contradicted)]
        pins = folder / f"pins-{extra}.txt"
        pins.write_text("\n".join(kept))
    try:
        _run(interpreter, "-m", "venv", "--without-pip", str(home))
        _run(*_installer(python), "-q", "-c", str(pins), name)
        _run(str(python), "-W", "error::SyntaxWarning", "-c", USES[extra])
        _run(str(python), "-m", "midrun", "--version")
        _run(str(home / "bin" / "midrun"), "--help")
        if extra == "server":
            check_demo(home)
    except subprocess.CalledProcessError as error:
        return f"FAILED: {error.stderr.strip().splitlines()[-1:] or error.cmd}"
    return ""


def check_demo(home: Path) -> None:
    """Start the demo from the installed wheel, as `pipx run` does, and open its page."""
    command = [str(home / "bin" / "midrun"), "demo", "--json", "--no-browser", "--port", "0"]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=home, env=env
    ) as demo:
        try:
            assert demo.stdout is not None
            url = json.loads(demo.stdout.readline())["url"].partition("#")[0]
            with urllib.request.urlopen(url) as page:  # noqa: S310 - our own server
                if b"<!doctype html>" not in page.read():
                    raise subprocess.CalledProcessError(1, command, stderr="no page")
        finally:
            demo.terminate()


def _installer(python: Path) -> list[str]:
    """Return the install command for `python`: uv if `make setup` installed it, else pip."""
    uv = ROOT / ".venv-pins" / "bin" / "uv"
    if uv.exists():
        return [str(uv), "pip", "install", "--no-config", "--python", str(python)]
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]


def _run(*command: str, cwd: Path = Path(ROOT.anchor)) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd, env=env | KEYS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
