"""A placement that lets Temporal decide on which machine a run is driven.

Temporal decides where, the store decides which process may act. For each drivable run there is
one workflow, `midrun:RUN`, with one activity that drives it; when the run rests, the workflow
ends. Everything that happens in the run is in its journal alone. An outage of Temporal delays
new placements and disturbs no run that is being driven.

`worker.Temporal` announces runs and drives the ones that it is given. `PlacementWorkflow`, in
the same module, is the workflow of one run.
"""

from midrun.workers.temporal.worker import Temporal

__all__ = ["Temporal"]
