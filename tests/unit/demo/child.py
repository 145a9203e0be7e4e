"""The demo in a process of its own that stops talking before a word; for tests that kill it."""

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from midrun.demo import page
from midrun.demo.launch import Demo
from midrun.runs.values import RunView
from tests.unit.demo.theatre import Holding


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _opened(link: str, found: str, view: RunView) -> None:
    _say(f"{link} {view.run_id} {found or 'new'}")


async def _tell(pace: Holding) -> None:
    await pace.reached.wait()
    _say("reached")


async def _main(folder: Path, word: str) -> None:
    pace = Holding(word)
    demo = Demo(store=f"sqlite:///{folder / 'runs.db'}", pace=pace, actor="ada")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_tell, pace)
        await page.serve_demo(demo, _opened, port=0, browser=False)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]), sys.argv[2])
