"""The host suite on a store of the tests, with a fake provider of the provider's protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from midrun.core.values import Json
from midrun.testing.host_suite import HostSuite, OpenProvider, ScriptedReply
from tests.support.providers import Answer, Call, Gate, Provider, Text
from tests.support.store_choice import get_store_url


class FakeProvider:
    """A provider on a real socket; see `SuiteProvider`."""

    def __init__(self, provider: Provider, gates: list[Gate | None]) -> None:
        self.url = provider.url
        self._provider = provider
        self._gates = gates

    def read_requests(self) -> list[Json]:
        return [exchange.body for exchange in self._provider.exchanges]

    async def wait_for_hold(self, n: int) -> None:
        gate = self._gates[n]
        assert gate is not None
        await gate.wait_until_reached()

    async def wait_for_disconnect(self, n: int) -> None:
        await self._provider.wait_for_disconnect(n)


@asynccontextmanager
async def open_provider(
    *replies: ScriptedReply, tool: str = "charge"
) -> AsyncIterator[FakeProvider]:
    """Open a provider that gives these replies; `tool` is the model's name for the tool."""
    gates = [Gate(after=len(r.text) - 1) if r.is_held else None for r in replies]
    answers = [
        Answer(
            *([Text(*reply.text)] if reply.text else []),
            *(Call(tool, f'{{"n": {n}}}') for n in reply.charges),
            fault=gate,
        )
        for reply, gate in zip(replies, gates, strict=True)
    ]
    async with Provider(*answers) as provider:
        yield FakeProvider(provider, gates)


class HostContract(HostSuite):
    """The host suite, in the store of a test and with the fake provider."""

    @pytest.fixture
    def store_url(self, store_path: Path) -> str:
        return get_store_url(store_path)

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        return open_provider
