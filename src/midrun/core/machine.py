"""The machine: the three functions that hold every decision.

`decide(state, input, now)` says what a wish or a piece of evidence means now: entries, a
no-op, or a refusal by name. `evolve(state, entry, at)` folds one entry into the state.
`plan(state)` says what must be done next. All three are pure; the shell around them decides
nothing.
"""

from midrun.core.decide import decide
from midrun.core.evolve import apply, evolve, fold
from midrun.core.plan import plan, wake_at

__all__ = ["apply", "decide", "evolve", "fold", "plan", "wake_at"]
