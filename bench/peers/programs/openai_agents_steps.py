"""OpenAI Agents with a session in SQLite: messages are stored, calls are not journaled."""

import asyncio
import json

from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

probe = StepProbe.from_arguments()
set_tracing_disabled(True)


class ScriptedModel(Model):
    """Replies with a text and a tool call."""

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        """Return the scripted reply."""
        number = probe.mark()
        text = ResponseOutputText(text=REPLY_TEXT, type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id=f"m{number}",
            content=[text],
            role="assistant",
            status="completed",
            type="message",
        )
        call = ResponseFunctionToolCall(
            call_id=f"c{number}",
            name="look",
            arguments=json.dumps({"n": number}),
            type="function_call",
        )
        return ModelResponse([message, call], Usage(), None)

    def stream_response(self, *_: object, **__: object) -> None:
        """Refuse: this program does not stream."""
        raise NotImplementedError


@function_tool
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


async def main() -> None:
    """Run the agent until the probe ends the process."""
    agent = Agent(name="stepper", model=ScriptedModel(), tools=[look])
    probe.open()
    session = SQLiteSession("run", probe.folder / "session.db")
    await Runner.run(agent, "measure", session=session, max_turns=10**9)


asyncio.run(main())
