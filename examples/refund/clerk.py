"""The agent of this example. Each of the two processes builds its own copy."""

from typing import NoReturn

from midrun import Agent, pause_here, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use

LIMIT = 500


@tool
async def refund(order: int) -> NoReturn:
    """Refund an order, if a person agrees.

    The run stops here and becomes a checkpoint. The person's answer becomes the result of this
    call. The function is not called again, in any process.
    """
    print(f"refund({order}) was entered")
    pause_here(f"Refund order {order}?", order=order, limit=LIMIT)


def conclude(messages: Transcript) -> str:
    """Play the model's last turn: report the outcome of the refund."""
    answer = messages[-1].uses[0].result
    assert isinstance(answer, dict)
    if not answer["approved"]:
        return "No refund."
    return f"Refunded {answer['amount']}."


clerk = Agent(
    "clerk",
    instructions="You look after refunds.",
    model=ScriptedModel([["Let me ask. ", Use("refund", order=123)], conclude]),
    tools=[refund],
)
