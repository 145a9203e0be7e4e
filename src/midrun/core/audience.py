"""Audiences: who may settle an ask. The ruling goes by it, and every button that offers one."""

from midrun.core.state import Ask
from midrun.core.values import Actor


def may_decide(actor: Actor, ask: Ask) -> bool:
    """Tell whether `actor` may settle `ask`.

    An ask is for every person, for a role, or for one person (`user:ann`). With four eyes it
    is not for those who steered the run to the call (`Call.steered_by`). The person who brought
    the run in with a checkpoint is among them: its journal says who steered it, and the bearer
    could have written that. A viewer decides nothing.
    """
    addressed = ask.audience in {"", actor.role, f"user:{actor.name}"}
    return actor.role != "viewer" and addressed and actor.name not in ask.excluded
