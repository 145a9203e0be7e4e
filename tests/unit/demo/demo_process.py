"""Start the demo in a process of its own; its model stops before a given word."""

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from midrun.demo import page
from midrun.demo.launch import Demo
from midrun.runs.values import RunView
from tests.unit.demo.demo_run import HoldingPace


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_link(link: str, found: str, view: RunView) -> None:
    _print_line(f"{link} {view.run_id} {found or 'new'}")


async def _report_reached(pace: HoldingPace) -> None:
    await pace.reached.wait()
    _print_line("reached")


async def _main(folder: Path, word: str) -> None:
    pace = HoldingPace(word)
    demo = Demo(store=f"sqlite:///{folder / 'runs.db'}", pace=pace, actor="ada")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_report_reached, pace)
        await page.serve_demo(demo, _print_link, port=0, browser=False)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]), sys.argv[2])
