"""The tutors of the quick start of the OpenAI Agents SDK, under the control of Midrun.

python examples/hosts/openai_agents_tutors.py

The agents are as its documentation writes them, apart from the models, which are scripted, so
that no key is needed, and from one tool with an effect. Midrun's part is below.
"""

import anyio
from agents import Agent, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from midrun import Call, Midrun, host, traits
from midrun.stops import MaxSteps

# ── the agents, as they were ─────────────────────────────────────────────────────────────────

set_tracing_disabled(disabled=True)

grades: list[int] = []


@function_tool
async def enter_grade(points: int) -> str:
    """Enter the points for a homework into the book of the school."""
    grades.append(points)
    return f"entered {points} points"


transfer = [function_call("transfer_to_math_tutor", {}, call_id="call-1")]
grade = [function_call("enter_grade", {"points": 10}, call_id="call-2")]

history_tutor_agent = Agent(
    name="History Tutor",
    handoff_description="Specialist agent for historical questions",
    instructions="You answer history questions clearly and concisely.",
)

math_tutor_agent = Agent(
    name="Math Tutor",
    handoff_description="Specialist agent for math questions",
    instructions="You explain math step by step and include worked examples.",
    tools=[enter_grade],
    model=ScriptedModel([grade, [assistant_message("2 + 2 is 4: correct.")], grade]),
)

triage_agent = Agent(
    name="Triage Agent",
    instructions="Route each homework question to the right specialist.",
    handoffs=[history_tutor_agent, math_tutor_agent],
    model=ScriptedModel([transfer, transfer]),
)

# ── Midrun: what it must know about the tools of all agents ──────────────────────────────────


async def delete_grade(call: Call, args: dict[str, int], result: object) -> None:
    """Undo `enter_grade`."""
    del call, result
    grades.remove(args["points"])


tutors = host(
    triage_agent,
    tools={"enter_grade": traits(undo=delete_grade, approve=True)},
    stop=MaxSteps(2),
)


async def main() -> None:
    """Approve the one call that has an effect; complete one run, and cancel another."""
    async with Midrun("memory://", agents=[tutors]) as midrun:
        for choice in ("resume", "cancel"):
            run = await midrun.start(tutors, "Grade my homework: 2 + 2 = 4")
            ask = (await run.until("waiting")).asks[0]
            print(f"waiting: {ask.tool} {ask.args}, grades: {grades}")
            await run.approve(actor="olga")
            print(f"{(await run.until('paused')).reason} reached, grades: {grades}")
            if choice == "resume":
                await run.resume("Explain it.", caps={"steps": 9})
                print(f"completed: {(await run.until('completed')).output}")
            else:
                await run.cancel(undo="all")
                await run.until("cancelled")
                print(f"cancelled, grades: {grades}")


if __name__ == "__main__":
    anyio.run(main)
