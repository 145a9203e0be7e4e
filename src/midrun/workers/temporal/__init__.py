"""Runs placed on machines by Temporal; what happens in them is in the store alone.

Temporal decides where a run is driven, the journal who may drive it. A run that rests has no
workflow. An outage of Temporal delays new placements and disturbs nothing that is at work.
"""

from midrun.workers.temporal.worker import Temporal

__all__ = ["Temporal"]
