"""Temporal's development server: a workflow with one activity for each call."""

import asyncio
import os
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe

TIMEOUT = timedelta(seconds=5)
"""After a crash, the server waits this long for the activity that was running."""

QUEUE = "bench"


@workflow.defn
class RunAgent:
    """Calls the model and its tool in turns."""

    @workflow.run
    async def run(self) -> None:
        """Go on until the worker is killed."""
        while True:
            reply = await workflow.execute_activity(
                "call_model", start_to_close_timeout=TIMEOUT
            )
            number = reply["args"]["n"]
            await workflow.execute_activity("look", number, start_to_close_timeout=TIMEOUT)


@activity.defn
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


async def main() -> None:
    """Run a worker until the probe ends the process."""
    probe = StepProbe.from_arguments()

    @activity.defn
    async def call_model() -> dict[str, object]:
        return {"text": REPLY_TEXT, "tool": "look", "args": {"n": probe.mark()}}

    probe.open()
    client = await Client.connect(os.environ["BENCH_TEMPORAL_ADDRESS"])
    async with Worker(
        client, task_queue=QUEUE, workflows=[RunAgent], activities=[call_model, look]
    ):
        if not probe.is_resumed:
            await client.start_workflow(RunAgent.run, id="run", task_queue=QUEUE)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
