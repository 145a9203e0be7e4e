"""Generate docs/hosts.md: each framework that can be hosted, and the promises that it keeps.

.venv/bin/python -m tools.host_table

Runs the contract suite (`midrun.testing.host_suite`) of every host. Hosts are the subclasses of
`HostSuite` in the tests, promises are declared by the tests of the suite.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias
from xml.etree import ElementTree as ET

from midrun.testing.host_suite import HostSuite

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "hosts.md"

Results: TypeAlias = Mapping[tuple[str, str], str]
"""A cell of the table, by promise and by host: "yes", "no", or the reason why not."""

INTRODUCTION: Final = """# Hosts and promises

Which promises hold for an agent of another framework, which `midrun.host(agent)` hosts
unchanged? The table shows it. Each cell is the result of a test of one contract suite,
`midrun.testing.host_suite`: with a model server on a real socket that sees closed connections,
and with processes that are killed. `python -m tools.host_table` runs the suites and writes this
page; a test compares its rows, columns and versions with the suites.
"""

END: Final = """CI runs the same suites with SQLite and with Postgres.

Guides: [Pydantic AI](guides/host-pydantic-ai.md), [LangChain](guides/host-langchain.md),
[LangGraph](guides/host-langgraph.md), [OpenAI Agents SDK](guides/host-openai-agents.md),
[Strands](guides/host-strands.md), [Google ADK](guides/host-adk.md),
[a plain function](guides/host-a-function.md), [a process](guides/host-a-process.md). Each has
the limits of its framework.
"""


def find_hosts() -> list[type[HostSuite]]:
    """Return the suites of all hosts, in the order of their headings."""
    for file in sorted((ROOT / "tests" / "unit" / "hosts").glob("test_*.py")):
        import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    return sorted(_list_subclasses(HostSuite), key=get_heading)


def _list_subclasses(suite: type[HostSuite]) -> Iterator[type[HostSuite]]:
    for host in suite.__subclasses__():
        if hasattr(host, "agent_factory"):
            yield host
        yield from _list_subclasses(host)


def get_heading(host: type[HostSuite]) -> str:
    """Return the framework of a host with the version that it was tested with."""
    own = host.__module__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    package = host.package if host.framework else _guess_package(own)
    # A framework may have several suites: `TestContract`, `TestContractOfChat`.
    part = host.__qualname__.removeprefix("TestContract").removeprefix("Of").lower()
    own = f"{own}, {part}" if part else own
    return f"{host.framework or own}{f' ({package} {version(package)})' if package else ''}"


def _guess_package(name: str) -> str:
    """Return the installed package with this name, or with it as a part of its name; or ""."""
    names = {each.name.lower().replace("_", "-") for each in distributions()}
    parts = sorted((one for one in names if name in one.split("-")), key=len)
    return name if name in names else next(iter(parts), "")


def list_promises() -> dict[str, str]:
    """Return the promise of each test of the suite, by the name of the test."""
    return {
        name: test.promise
        for name, test in vars(HostSuite).items()
        if name.startswith("test_") and hasattr(test, "promise")
    }


def make_page(hosts: Sequence[type[HostSuite]], results: Results) -> str:
    """Return the page with these results."""
    headings = [get_heading(host) for host in hosts]
    rows = [["promise", *headings], ["---"] * (len(headings) + 1)]
    rows += [
        [promise, *(results.get((promise, heading), "not run") for heading in headings)]
        for promise in list_promises().values()
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{INTRODUCTION}\n{table}\n\n{END}"


def read_results(text: str) -> Results:
    """Return the results that a page has."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if re.match(r"\| (?!---)", line)
    ]
    headings = rows[0][1:]
    return {
        (row[0], heading): cell
        for row in rows[1:]
        for heading, cell in zip(headings, row[1:], strict=True)
    }


def run_suites(hosts: Sequence[type[HostSuite]]) -> tuple[int, Results]:
    """Run the suites in a process of their own; return its exit code and the results."""
    files = [f"{host.__module__.replace('.', '/')}.py::{host.__qualname__}" for host in hosts]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n0", f"--junitxml={report}", *files]
        done = subprocess.run(command, cwd=ROOT, check=False)
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - our own report
    promises = list_promises()
    headings = {f"{host.__module__}.{host.__qualname__}": get_heading(host) for host in hosts}
    results = {
        (promises[case.get("name", "")], headings[case.get("classname", "")]): _read_case(case)
        for case in cases
        if case.get("name") in promises
    }
    return done.returncode, results


def _read_case(case: ET.Element) -> str:
    skipped = case.find("skipped")
    if skipped is not None:
        return f"no: {skipped.get('message', '')}"
    has_failed = case.find("failure") is not None or case.find("error") is not None
    return "no" if has_failed else "yes"


def main() -> int:
    """Run the suites, and write the page; return 1 if a test fails."""
    hosts = find_hosts()
    code, results = run_suites(hosts)
    PAGE.write_text(make_page(hosts, results))
    return code


if __name__ == "__main__":
    sys.exit(main())
