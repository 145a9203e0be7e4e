"""The fake provider of the host suite: replies of the suite over the provider's protocol."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from midrun.core.values import Json
from midrun.testing.host_suite import ScriptedReply
from tests.support.providers import Answer, Call, Gate, Provider, Text


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
