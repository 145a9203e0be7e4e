"""Ask a person from inside a tool: `pause_here`, and the ready-made tool `ask_human`.

`pause_here` raises `PauseHere`, which ends the function. The worker records the question as an
ask, and the run waits without any process. The answer becomes the result of the call. The
function is not called again, unless `PauseHere` carries a continuation (as MCP tools use it).
"""

from typing import NoReturn

from midrun.agents.tool import tool
from midrun.codec.strict_json import normalize_json
from midrun.core.values import Json


class PauseHere(BaseException):
    """Ends a tool that asks a person; raised by `pause_here`, caught by the worker.

    It is a `BaseException`, so that `except Exception` in a tool does not catch it.

    The answer becomes the result of the call. With a `continuation`, the tool is called again
    instead, and finds the decision and the continuation in `Call.answered`. The continuation is
    JSON data that is stored with the question and not shown. The person may then also decline.
    """

    def __init__(self, question: str, data: dict[str, Json], continuation: Json = None) -> None:
        super().__init__(question, data)
        self.question = question
        self.data = data
        self.continuation = continuation


def pause_here(question: str = "", **data: Json) -> NoReturn:
    """Ask a person from inside a tool; the answer becomes the result of the tool.

    This function does not return, and the tool is not called again. Do everything else before
    the question.

        @tool
        async def choose_hotel(city: str) -> str:
            offers = await search(city)
            pause_here("Which hotel?", options=[offer.name for offer in offers])

    Args:
        question: The text that the person reads.
        **data: JSON data that is shown with the question. `options` is a list of answers to
            choose from.

    Raises:
        NotJson, TooLarge: The question or the data cannot be stored. The call fails, and no
            question is asked.
    """
    normalize_json(question, "question")
    shown = {name: normalize_json(value, name) for name, value in data.items()}
    raise PauseHere(question, shown)


@tool(read_only=True)
async def ask_human(question: str, options: list[str] | None = None) -> NoReturn:
    """Ask a person a question and wait for the answer.

    Args:
        question: The question, with what the person must know to answer it.
        options: Answers to choose from, if there are few.
    """
    pause_here(question, **({"options": options} if options else {}))
