"""A tool that needs a person: it stops where it is, and the answer becomes its result."""

from typing import NoReturn

from midrun.agents.tool import tool
from midrun.codec.strict_json import checked
from midrun.core.values import Json


class PauseHere(BaseException):
    """On its way from a tool to the driver. Not an `Exception`: no tool should catch it.

    The answer is the result of the call. With a `continuation`, which is stored with the
    question and not shown, the tool is entered again instead, and finds both in
    `Call.answered`; a person may then decline, too.
    """

    def __init__(self, question: str, data: dict[str, Json], continuation: Json = None) -> None:
        super().__init__(question, data)
        self.question = question
        self.data = data
        self.continuation = continuation


def pause_here(question: str = "", **data: Json) -> NoReturn:
    """Ask a person, from inside a tool. The tool ends here; the answer becomes its result.

    The tool is not entered again, so do first what has to be done before the question. `data`
    is shown with the question.

    Raises:
        NotJson, TooLarge: the question or the data cannot be stored; nobody is asked.
    """
    checked(question, "question")
    plain = {name: checked(value, name) for name, value in data.items()}
    raise PauseHere(question, plain)


@tool(read_only=True)
async def ask_human(question: str, options: list[str] | None = None) -> NoReturn:
    """Ask a person a question and wait for the answer.

    Args:
        question: The question, with what the person must know to answer it.
        options: Answers to choose from, if there are few.
    """
    pause_here(question, **({"options": options} if options else {}))
