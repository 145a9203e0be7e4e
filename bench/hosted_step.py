"""Cost of a step of a hosted agent, compared with the loop of its framework.

The same agent makes the same steps in three programs (`bench.hosted_programs`): in its own loop
without persistence, in its own loop with its own checkpointer in memory, and hosted, durable in
SQLite. The programs take turns, and a ratio is the median over the rounds, so that a busy
machine disturbs all sides. CPU time is compared: the scripted model waits 10 ms, and the waits
for the disk are measured by `bench.durable_step`. `python -m bench.hosted_step long` goes to
step 1,000.
"""

import sys
from collections.abc import Sequence
from statistics import mean, median
from typing import Final

from bench.figures import Figure, print_figures
from bench.program import Steps, run_program

EARLY_STEP: Final = 100
LONG_STEPS: Final = 1000
ROUNDS: Final = 3
WINDOW: Final = 50

KINDS: Final = {
    "LangChain agent": ("langchain", ("bare", "saved", "hosted")),
    "LangGraph graph": ("langgraph", ("bare", "saved", "hosted")),
    "Pydantic AI agent": ("pydantic_ai", ("bare", "hosted")),
}
LABELS: Final = {"bare": "its bare loop", "saved": "its loop with a checkpointer in memory"}

Round = dict[str, Steps]


def figures(last_step: int = EARLY_STEP) -> Sequence[Figure]:
    """Measure the steps of each framework, up to `last_step`."""
    found: list[Figure] = []
    for name, (framework, kinds) in KINDS.items():
        rounds = [_run_round(framework, kinds, last_step) for _ in range(ROUNDS)]
        for step in sorted({EARLY_STEP, last_step}):
            found += [
                _compare(name, rounds, other, step) for other in kinds if other != "hosted"
            ]
    return found


def _run_round(framework: str, kinds: Sequence[str], steps: int) -> Round:
    return {
        kind: run_program("bench.hosted_programs", framework, kind, steps=steps)
        for kind in kinds
    }


def _compare(name: str, rounds: Sequence[Round], other: str, step: int) -> Figure:
    def cost_ms(one: Round, kind: str) -> float:
        return mean(one[kind].cpu_us[step - WINDOW : step]) / 1e3

    costs = {kind: median(cost_ms(one, kind) for one in rounds) for kind in rounds[0]}
    return Figure(
        name=f"{name}, hosted: CPU of step {step:,}, compared with {LABELS[other]}",
        value=median(cost_ms(one, "hosted") / cost_ms(one, other) for one in rounds),
        at_most=1.5 if other == "bare" and step == EARLY_STEP else None,
        detail=", ".join(f"{kind} {cost:.1f} ms" for kind, cost in costs.items()),
    )


if __name__ == "__main__":
    sys.exit(print_figures(figures(LONG_STEPS if "long" in sys.argv else EARLY_STEP)))
