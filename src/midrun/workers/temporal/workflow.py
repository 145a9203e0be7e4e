"""The workflow that keeps one activity running while a run is at work.

It holds no data of the run. Its names are stored in Temporal's history and must not change.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

DRIVE_ACTIVITY = "midrun.drive"
WORKFLOW_NAME = "midrun.placement"

ACTIVITY_MAX_DURATION = timedelta(days=3650)
"""The longest time a run may work without a rest: Temporal requires a bound."""


@workflow.defn(name=WORKFLOW_NAME)
class PlacementWorkflow:
    """Have a run driven by one worker, and by another if that is gone."""

    @workflow.run
    async def run(self, run: str, silence_s: float) -> None:
        """Drive `run` until it rests; `silence_s` is the heartbeat timeout of a worker."""
        await workflow.execute_activity(
            DRIVE_ACTIVITY,
            run,
            start_to_close_timeout=ACTIVITY_MAX_DURATION,
            heartbeat_timeout=timedelta(seconds=silence_s),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)
            ),
        )
