"""The agent of the quick start of Strands Agents, paused, redirected and approved by Midrun.

python examples/hosts/strands_agent.py

The agent is as its documentation writes it, apart from the model: it is scripted, so that no
key is needed. Midrun's part is below.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from strands import Agent, tool
from strands.models.model import Model
from strands.types.content import Messages
from strands.types.streaming import StreamEvent

from midrun import Completed, Midrun, host, traits
from midrun.stops import MaxSteps

# ── the agent, as it was ─────────────────────────────────────────────────────────────────────


@tool
async def letter_counter(word: str, letter: str) -> int:
    """Count occurrences of a specific letter in a word.

    Args:
        word (str): The input word to search in
        letter (str): The specific letter to count

    Returns:
        int: The number of occurrences of the letter in the word
    """
    return word.lower().count(letter.lower())


class PlayedModel(Model):
    """Counts the letters R in the word that was named last, then says their number."""

    def update_config(self, **model_config: object) -> None:
        """Change nothing."""

    def get_config(self) -> dict[str, object]:
        """Return no configuration."""
        return {}

    def structured_output(self, *args: object, **options: object) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401 - of its base
        """Refuse: the agent has no structured output."""
        raise NotImplementedError

    async def stream(
        self, messages: Messages, *args: object, **options: object
    ) -> AsyncIterator[StreamEvent]:
        """Stream a call, or the answer."""
        del args, options
        blocks = [block for message in messages for block in message["content"]]
        texts = [
            b["text"]
            for m in messages
            for b in m["content"]
            if m["role"] == "user" and "text" in b
        ]
        word = texts[-1].split()[-1]
        results = {
            b["toolUse"]["toolUseId"]: b["toolUse"]["input"]["word"]
            for b in blocks
            if "toolUse" in b
        }
        counts = {
            results[b["toolResult"]["toolUseId"]]: b["toolResult"]["content"][0]["text"]
            for b in blocks
            if "toolResult" in b
        }
        yield {"messageStart": {"role": "assistant"}}
        if word in counts:
            yield {"contentBlockDelta": {"delta": {"text": f"{counts[word]} in {word}"}}}
        else:
            yield {
                "contentBlockStart": {
                    "start": {"toolUse": {"name": "letter_counter", "toolUseId": word}}
                }
            }
            args_text = json.dumps({"word": word, "letter": "R"})
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": args_text}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if word in counts else "tool_use"}}


agent = Agent(model=PlayedModel(), tools=[letter_counter])

# ── Midrun ───────────────────────────────────────────────────────────────────────────────────

counter = host(
    agent,
    name="counter",
    tools={"letter_counter": traits(read_only=True, approve=True)},
    stop=MaxSteps(1),
)


async def main() -> None:
    """Approve a call, redirect the agent at its cap, and let it finish."""
    async with Midrun("memory://", agents=[counter]) as midrun:
        run = await midrun.start(counter, "Tell me how many letter R's are in strawberry")
        print("waiting:", (await run.until("waiting")).asks[0].args)
        await run.approve(actor="olga")
        print("paused:", (await run.until("paused")).reason)
        await run.resume("Better take raspberry", caps={"steps": 9}, actor="olga")
        print("waiting:", (await run.until("waiting")).asks[0].args)
        await run.approve(actor="olga")
        outcome = await run.result()
        assert isinstance(outcome, Completed)
        print("completed:", outcome.output)


if __name__ == "__main__":
    anyio.run(main)
