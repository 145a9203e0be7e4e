"""The bank support agent of Pydantic AI's documentation, paused and approved by Midrun.

python examples/hosts/pydantic_ai_agent.py

The agent is as its documentation writes it, apart from the model: it is scripted, so that no
key is needed. Midrun's part is below.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from midrun import Call, Completed, Midrun, host, traits
from midrun.stops import MaxSteps

# ── the agent, as it was ─────────────────────────────────────────────────────────────────────


class Bank:
    """A bank with one customer."""

    blocked: bool = False

    async def customer_balance(self) -> float:
        """Return the balance of the account."""
        return 123.45


bank = Bank()


@dataclass
class SupportDependencies:
    """The customer, and the database of the bank."""

    customer_id: int
    db: Bank


@dataclass
class SupportOutput:
    """The advice to the customer."""

    support_advice: str
    block_card: bool
    risk: int


async def play(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    """Play the model: look at the balance, block the card, then give the output."""
    results = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    output = '{"support_advice": "Your card is blocked.", "block_card": true, "risk": 8}'
    calls = [("customer_balance", "{}"), ("block_card", '{"reason": "lost"}')]
    name, args = [*calls, (info.output_tools[0].name, output)][len(results)]
    yield {0: DeltaToolCall(name, args)}


support_agent = Agent(
    FunctionModel(stream_function=play),
    name="support",
    deps_type=SupportDependencies,
    output_type=SupportOutput,
    instructions="You are a support agent in our bank.",
)


@support_agent.instructions
async def add_customer(ctx: RunContext[SupportDependencies]) -> str:
    """Name the customer."""
    return f"The customer's id is {ctx.deps.customer_id}."


@support_agent.tool
async def customer_balance(ctx: RunContext[SupportDependencies]) -> float:
    """Return the customer's current account balance."""
    return await ctx.deps.db.customer_balance()


@support_agent.tool
async def block_card(ctx: RunContext[SupportDependencies], reason: str) -> str:
    """Block the card of the customer."""
    ctx.deps.db.blocked = True
    return f"blocked: {reason}"


# ── Midrun: what it must know about the tools, and where the dependencies come from ──────────


async def unblock(call: Call, args: dict[str, str], result: object) -> None:
    """Undo `block_card`."""
    del call, args, result
    bank.blocked = False


support = host(
    support_agent,
    context=lambda: SupportDependencies(customer_id=123, db=bank),
    tools={
        "customer_balance": traits(read_only=True),
        "block_card": traits(undo=unblock, approve=True),
    },
    stop=MaxSteps(2),
)


async def main() -> None:
    """Approve the one call that has an effect; complete one run, and cancel another."""
    async with Midrun("memory://", agents=[support]) as midrun:
        for choice in ("resume", "cancel"):
            run = await midrun.start(support, "I just lost my card!")
            ask = (await run.until("waiting")).asks[0]
            print(f"waiting: {ask.tool} {ask.args}, blocked: {bank.blocked}")
            await run.approve(actor="olga")
            print(f"{(await run.until('paused')).reason} reached, blocked: {bank.blocked}")
            if choice == "resume":
                await run.resume(caps={"steps": 9})
                outcome = await run.result()
                assert isinstance(outcome, Completed)
                print(f"completed: {outcome.value}")
            else:
                await run.cancel(undo="all")
                await run.until("cancelled")
                print(f"cancelled, blocked: {bank.blocked}")


if __name__ == "__main__":
    anyio.run(main)
