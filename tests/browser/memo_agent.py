"""An agent that writes a memo, for the screenshots.

Six steps; each waits at a gate with its own name until the test opens it.
"""

from typing import Final

from midrun import Agent, Call, tool
from midrun.stops import MaxCost, MaxSteps
from tests.browser.stage import HeldModel, Hold, Stage, Turn, Use

TASK: Final = "Q3 churn memo for the sales lead"

PLAN: Final = [
    "Fetch the customer list",
    "Join it with the revenue table",
    "Draft the memo",
    "Score the churn risk",
    "Ask #sales for context",
    "Write the summary",
]


def memo_agent(stage: Stage, *, name: str = "analyst", steps: int = 40) -> Agent:
    """Return the agent. It spends money, has a plan, and can undo some of its calls."""

    async def crm_list(call: Call, segment: str) -> str:
        """List the customers of a segment."""
        await call.note("page 3 of 8")
        await stage.wait_at_gate("crm_list")
        return f"412 customers in {segment}"

    async def sql_query(query: str) -> str:
        """Ask the warehouse."""
        await stage.wait_at_gate("sql_query")
        return f"412 rows for {query}"

    async def docs_create(title: str) -> str:
        """Create a document."""
        await stage.wait_at_gate("docs_create")
        return f"doc_81: {title}"

    async def slack_post(channel: str, text: str) -> str:
        """Post a message."""
        await stage.wait_at_gate("slack_post")
        return f"posted to {channel}: {text}"

    async def lock_table(table: str) -> str:
        """Lock a table, so that the figures do not move."""
        return f"{table} is locked"

    async def take_back(_call: Call, _args: object, _result: object) -> None:
        """Undo."""
        await stage.wait_at_gate("undo")

    return Agent(
        name,
        model=HeldModel(stage, _turns()),
        tools=[
            tool(crm_list, read_only=True, title="Read the customers of {segment}"),
            tool(sql_query, read_only=True, title="Ask the warehouse: {query}"),
            tool(docs_create, undo=take_back, title="Create the document “{title}”"),
            tool(lock_table, undo=take_back, title="Lock the table “{table}”"),
            tool(slack_post, approve=True, title="Post to “{channel}”"),
        ],
        stop=MaxSteps(steps) | MaxCost(2.0),
    )


def _turns() -> list[Turn]:
    return [
        Use("plan", items=PLAN, marks={"1": "running"}),
        [
            "I start with the customers of the last quarter. ",
            Use("crm_list", segment="Q3", why="the memo is about these"),
        ],
        [
            Use("plan", marks={"1": "done", "2": "running"}),
            Use("lock_table", table="revenue", why="the figures must not move"),
        ],
        Use(
            "sql_query",
            query="SELECT … FROM revenue",
            why="revenue per customer",
        ),
        [
            "412 customers, of whom 38 cut their seats by more than half. ",
            Hold("figures"),
            Use("plan", marks={"2": "done", "3": "running"}),
            Use("docs_create", title="Churn memo", why="the memo needs a place"),
        ],
        [
            "The risk is highest where the champion left: in nine of the ten accounts ",
            Hold("sentence"),
            "that churned, the seat of the person who had signed was empty by August.",
            Use("plan", marks={"3": "done", "4": "done", "5": "running"}),
        ],
        Use("slack_post", channel="#sales", text="Who knows why Acme left?", why="context"),
        [
            "The memo is written, and is in doc_81.",
            Use("plan", marks={"5": "done", "6": "done"}),
        ],
        "The memo is written, and is in doc_81.",
    ]
