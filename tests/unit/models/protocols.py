"""The three wire protocols as tests see them: a model for each, and what to ask it."""

from collections.abc import Callable, Sequence
from typing import Final, overload

from msgspec import Struct
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from midrun.core.state import State
from midrun.core.transcript import Transcript, Turn
from midrun.models.provider import ProviderModel, PydanticModel
from midrun.ports.model import Finished, Model, Piece, Prompt, ToolSpec
from tests.support.providers import Provider

SEARCH: Final = ToolSpec(
    name="search",
    description="Look something up.",
    schema={
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    },
)
TASK: Final = Turn(role="user", text="Find cats.", by="ada", kind="task")


class Told(Transcript):
    """A transcript of just these turns."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__(State())
        self._turns = turns
        self.assistant_turn_count = sum(turn.role == "assistant" for turn in turns)

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: "slice[int | None, int | None, int | None]") -> list[Turn]: ...
    def __getitem__(
        self, index: "int | slice[int | None, int | None, int | None]"
    ) -> Turn | list[Turn]:
        found = self._turns[index]
        return found if isinstance(found, Turn) else list(found)


def prompt(*turns: Turn, tools: Sequence[ToolSpec] = (SEARCH,)) -> Prompt:
    """Return a prompt with these turns, or with a task only."""
    return Prompt(
        instructions="Be brief.", transcript=Told(*(turns or (TASK,))), tools=tuple(tools)
    )


async def heard(model: Model, asked: Prompt) -> tuple[list[Piece], Finished]:
    """Return everything that a model streams."""
    pieces: list[Piece] = []
    finished: list[Finished] = []
    async with model.stream(asked) as stream:
        async for said in stream:
            if isinstance(said, Piece):
                pieces.append(said)
            else:
                finished.append(said)
    assert len(finished) == 1
    return pieces, finished[0]


def joined(pieces: Sequence[Piece], kind: str, call: int = 0) -> str:
    """Return what the pieces of one kind come to."""
    return "".join(piece.text for piece in pieces if (piece.kind, piece.call) == (kind, call))


def let_go(model: ProviderModel) -> bool:
    """Tell whether the model holds no connection any more."""
    there = model._model.provider
    assert there is not None
    own = there._own_http_client
    return own is not None and own.is_closed and there._entered_count == 0


class Speaks(Struct, frozen=True, kw_only=True):
    """A protocol: how to make a model of it, and what it can do."""

    name: str
    provided: Callable[[Provider], PydanticModel]
    signs: bool  # its thinking has a signature to give back


def _chat(provider: Provider) -> PydanticModel:
    there = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="k")
    return OpenAIChatModel("gpt-5-mini", provider=there)


def _responses(provider: Provider) -> PydanticModel:
    there = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="k")
    return OpenAIResponsesModel("gpt-5-mini", provider=there)


def _anthropic(provider: Provider) -> PydanticModel:
    there = AnthropicProvider(base_url=provider.url, api_key="k")
    return AnthropicModel("claude-opus-4-6", provider=there)


CHAT: Final = Speaks(name="chat", provided=_chat, signs=False)
RESPONSES: Final = Speaks(name="responses", provided=_responses, signs=True)
ANTHROPIC: Final = Speaks(name="anthropic", provided=_anthropic, signs=True)
ALL: Final = (CHAT, RESPONSES, ANTHROPIC)
