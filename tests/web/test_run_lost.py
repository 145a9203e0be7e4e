"""Every word on the page is true while the worker is killed behind it."""

import sys
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from playwright.async_api import expect

from midrun import Midrun
from midrun.server import Tokens, app
from tests.server.conftest import PEOPLE, token_of
from tests.web import worker
from tests.web.bench import Bench, Site, flaws, later, listening

pytestmark = [pytest.mark.once, pytest.mark.slow]

LOOK_MS = 5_000
"""How long the page trusts what it has seen of a run that is driven."""


async def test_a_worker_is_killed_and_a_person_says_what_became_of_its_call(
    bench: Bench, tmp_path: Path
) -> None:
    """No word from the worker; then another finds the call, and nobody knows if it happened."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Midrun(address, agents=[worker.poster()], engine=None) as mid:
        made = app(mid, auth=Tokens({token_of("olga"): PEOPLE["olga"]}))
        async with listening(made) as port:
            site = Site(mid, made, port)
            run = await mid.start("poster", "Say hello", actor=PEOPLE["olga"])
            await _killed_in_mid_call(address)
            page = await bench.page(site, f"/runs/{run.id}", clock=True, bare=True)
            bar = page.locator("midrun-controls")
            await expect(bar.locator(".badge")).to_be_visible()
            while "No word" not in await bar.locator(".badge").inner_text():
                await later(page, LOOK_MS)  # its lease runs out by the store's clock, not ours
                await page.wait_for_function("true")
            await expect(bar.locator("#pause")).to_contain_text(
                "Takes effect when the worker returns"
            )
            assert await flaws(page) == []
            async with Midrun(address, agents=[worker.poster()], outside=worker.LEASE):
                await expect(bar.locator(".badge")).to_contain_text("Check one call")
                await expect(bar).to_contain_text("Did post go through?")
                assert await flaws(page) == []
                await bar.get_by_role("button", name="It did", exact=True).click()
                await expect(bar.locator(".badge")).to_contain_text("Completed")
            await page.close()


async def _killed_in_mid_call(address: str) -> None:
    """Let a worker take the run, and kill it once its call has left."""
    command = [sys.executable, "-m", "tests.web.worker", address]
    async with await anyio.open_process(command, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        async with aclosing(TextReceiveStream(process.stdout)) as said:
            assert (await said.receive()).startswith("posting")
        process.kill()
