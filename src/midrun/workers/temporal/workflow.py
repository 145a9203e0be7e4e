"""The workflow: one activity, for as long as the run is at work. It knows nothing else."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

DRIVE = "midrun.drive"
NAME = "midrun.placement"

LONG = timedelta(days=3650)
"""For how long a run may be at work without a rest: Temporal wants a bound."""


@workflow.defn(name=NAME)
class Placement:
    """Sees to it that a run is driven on some worker, and on another if that one is gone."""

    @workflow.run
    async def run(self, run: str, silence_s: float) -> None:
        """Have `run` driven until it rests; a worker may be silent for so many seconds."""
        await workflow.execute_activity(
            DRIVE,
            run,
            start_to_close_timeout=LONG,
            heartbeat_timeout=timedelta(seconds=silence_s),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)
            ),
        )
