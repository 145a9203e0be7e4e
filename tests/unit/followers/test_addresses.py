"""The addresses of webhooks: what is none is refused, and what is one is nobody's business."""

import logging
from pathlib import Path

import pytest

from midrun import Midrun
from midrun.errors import Misconfigured
from midrun.followers import following
from midrun.followers.webhooks import Webhook
from tests.unit.followers.receiving import SECRET, FarEnd
from tests.unit.runs.stage import ControllableTools


async def test_an_address_is_in_no_log(
    path: Path, there: FarEnd, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever knows it can post to many a far end; HTTP clients like to log it."""
    caplog.set_level(logging.INFO)
    agent, secret = ControllableTools().agent("Done."), "T00000000-secret"
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, Webhook(f"{there.url}?key={secret}", secret=SECRET)),
    ):
        await (await midrun.start(agent, "Go.")).until("completed")
        await there.hears(1)
    ours = [record for record in caplog.records if not record.name.startswith("uvicorn")]
    assert not [told for record in ours if secret in (told := record.getMessage())]


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port/", "http://ho\x00st/"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    """And not at the first delivery, in a log that nobody reads."""
    with pytest.raises(Misconfigured):
        Webhook(url, secret=SECRET)
