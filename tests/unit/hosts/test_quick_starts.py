"""The quick-start agent of each framework, unmodified, gets every control."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from midrun import Cancelled, Midrun
from midrun.testing.host_suite import wait_for_text
from tests.support.paths import ROOT
from tests.support.providers import Answer, Call, Gate, Provider, Text
from tests.support.store_choice import get_store_url
from tests.unit.hosts.quick_start_cases import QUICK_STARTS, host_quick_start

HALF = "The first half"
WORDS = "Only one sentence."


@contextmanager
def kill_at_end(*arguments: str) -> Iterator[None]:
    """Run a worker in another process; kill it with SIGKILL at the end."""
    command = [sys.executable, "-m", "tests.unit.hosts.quick_start_cases", *arguments]
    with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603 - a module of the tests
        try:
            yield
        finally:
            process.kill()


def point_to_provider(monkeypatch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """Let the SDKs of all providers find the fake one, in this process and in others."""
    home.mkdir()
    variables = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GOOGLE_API_KEY": "none",
        "CLAUDE_TEST_HOME": str(home),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_STARTS)
async def test_the_agent_of_a_quick_start_gets_every_control(
    name: str, store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, taken over, approved, paused, resumed with words, capped, cancelled, undone.

    The first process is killed in mid-stream. This one takes the run over and pauses it in
    mid-stream, and a third one resumes it.
    """
    case, store, log = QUICK_STARTS[name], get_store_url(store_path), tmp_path / "undone.txt"
    gates = [Gate(after=1), Gate(after=1)]
    held = [Answer(Text(HALF, " and the second."), fault=gate) for gate in gates]
    asks = Answer(Call(case.model_tool or case.tool, case.args))
    async with Provider(held[0], asks, held[1], asks) as provider:
        point_to_provider(monkeypatch, provider.url, tmp_path / "home")
        with kill_at_end(name, store, str(log), case.task):
            await gates[0].wait_until_reached()
        async with Midrun(store, agents=[host_quick_start(name, log)]) as midrun:
            run = await midrun.get((await midrun.runs()).items[0].run_id)
            view = await run.until("waiting", "failed")
            assert [ask.tool for ask in view.asks] == [case.tool]
            await run.approve(actor="ada")
            await wait_for_text(run, HALF)
            await run.pause(actor="ada")
            await run.until("paused")
            await provider.wait_for_disconnect(2)
        async with Midrun(store) as midrun:
            run = await midrun.get(run.id)
            with kill_at_end(name, store, str(log), ""):
                await run.resume(WORDS, actor="ada")
                view = await run.until("waiting", "paused", "failed")
                assert [ask.tool for ask in view.asks] == [case.tool]
                await run.approve(actor="ada")
                assert (await run.until("paused", "failed")).reason == "cap"
                await run.cancel(undo="all", actor="ada")
                assert isinstance(await run.result(), Cancelled)
            verdict = await midrun.verify(run.id)
            assert verdict, str(verdict)
        requests = [str(exchange.body) for exchange in provider.exchanges]
    assert len(requests) == 4
    assert [text in requests[3] for text in (HALF, WORDS, case.result)] == [True] * 3
    undone = log.read_text().splitlines()
    assert [case.result in line for line in undone] == [True, True]
