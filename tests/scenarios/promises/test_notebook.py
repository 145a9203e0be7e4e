"""A `Run` in a notebook: a real kernel shows its status, and updates it in place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

pytestmark = [pytest.mark.slow, pytest.mark.once]

TIMEOUT_S = 60

DECLARE = """
import asyncio
import threading
from midrun import Agent, Midrun, ask_human
from midrun.models import ScriptedModel, Use

started, gate = threading.Event(), threading.Event()

def wait_for_gate() -> str:
    started.set()
    gate.wait()
    return "done"

agent = Agent("a", model=ScriptedModel([Use("wait_for_gate"), "Done."]), tools=[wait_for_gate])
asking = ScriptedModel([Use("ask_human", question="Which?")])
asker = Agent("asker", model=asking, tools=[ask_human])
opened = asyncio.get_running_loop().create_future()

async def keep_open():
    async with Midrun("memory://", agents=[agent, asker]) as midrun:
        opened.set_result(midrun)
        await asyncio.Event().wait()

keeper = asyncio.create_task(keep_open())
midrun = await opened
run = await midrun.start(agent, "go")
await asyncio.to_thread(started.wait)
print(agent.unstoppable_tools)
"""


class Notebook:
    """Cells that are executed one after the other, and everything that they show."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self.shown: list[tuple[str, str, str]] = []  # kind, display id, HTML
        self.printed = ""

    def execute(self, code: str) -> None:
        """Execute a cell, and read all messages up to its end."""
        request = self._client.execute(code)
        self._read_until(
            lambda kind, content, parent: (
                (kind, content.get("execution_state"), parent) == ("status", "idle", request)
            )
        )

    def wait_for(self, text: str) -> tuple[str, str, str]:
        """Wait until a display has `text`; return it."""
        while True:
            for shown in self.shown:
                if text in shown[2]:
                    return shown
            self._read_until(lambda kind, *_: kind.endswith("display_data"))

    def _read_until(self, is_met: Callable[[str, dict[str, object], object], bool]) -> None:
        met = False
        while not met:
            message = self._client.get_iopub_msg(timeout=TIMEOUT_S)
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                raise AssertionError("\n".join(content["traceback"]))
            if kind == "stream":
                self.printed += content["text"]
            if kind in {"display_data", "update_display_data"}:
                html = content["data"].get("text/html", "")
                self.shown.append((kind, content["transient"].get("display_id", ""), html))
            met = is_met(kind, content, message["parent_header"].get("msg_id"))


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """Start a kernel, with its files in a folder of the test."""
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield Notebook(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_run_is_updated_in_place_and_names_a_tool_that_cannot_be_stopped(
    notebook: Notebook,
) -> None:
    """The functions of a cell block a thread: no other process can import them."""
    notebook.execute(DECLARE)
    assert "('wait_for_gate',)" in notebook.printed
    notebook.execute("run")
    kind, display_id, html = notebook.wait_for("wait_for_gate cannot be stopped")
    assert (kind, "Running" in html) == ("display_data", True)
    notebook.execute("gate.set()")
    kind, same_id, html = notebook.wait_for("Completed")
    assert (kind, same_id) == ("update_display_data", display_id)
    assert "cannot be stopped" not in html
    notebook.execute("await midrun.start(asker, 'go')")
    _, waiting_id, _ = notebook.wait_for("Waiting")
    notebook.execute("keeper.cancel()")
    kind, same_id, _ = notebook.wait_for("Not updated any more")
    assert (kind, same_id) == ("update_display_data", waiting_id)
