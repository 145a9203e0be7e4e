"""Pydantic AI without durability: nothing is stored, and nothing can be resumed."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

probe = StepProbe.from_arguments()


async def call_model(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
    """Return the scripted reply: a text and a tool call."""
    return ModelResponse([TextPart(REPLY_TEXT), ToolCallPart("look", {"n": probe.mark()})])


agent = Agent(FunctionModel(call_model))


@agent.tool_plain
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


probe.open()
asyncio.run(agent.run("measure", usage_limits=UsageLimits(request_limit=None)))
