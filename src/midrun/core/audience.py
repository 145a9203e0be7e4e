"""Audiences: who may settle an ask. The ruling goes by it, and every button that offers one."""

from midrun.core.state import Ask
from midrun.core.values import Actor


def may_decide(actor: Actor, starter: str, ask: Ask) -> bool:
    """Tell whether `ask`, of a run that `starter` began, is for `actor` to settle.

    An ask is for everybody, for a role, or for one person (`user:ann`); with four eyes it is
    not for whoever began the run, nor for whoever brought it in with a checkpoint: its journal
    says who began it, and the bearer could have written that. A viewer decides nothing.
    """
    own = ask.four_eyes and actor.name in {starter, ask.imported_by}
    addressed = ask.audience in {"", actor.role, f"user:{actor.name}"}
    return actor.role != "viewer" and addressed and not own
