"""The three wire protocols of providers: a model for each, and prompts for tests."""

from collections.abc import Callable, Sequence
from typing import Final, overload

from msgspec import Struct
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
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


class FixedTranscript(Transcript):
    """A transcript of given turns."""

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
        turns = self._turns[index]
        return turns if isinstance(turns, Turn) else list(turns)


def make_prompt(*turns: Turn, tools: Sequence[ToolSpec] = (SEARCH,)) -> Prompt:
    """Return a prompt with these turns, or with the task alone."""
    return Prompt(
        instructions="Be brief.",
        transcript=FixedTranscript(*(turns or (TASK,))),
        tools=tuple(tools),
    )


async def read_stream(model: Model, prompt: Prompt) -> tuple[list[Piece], Finished]:
    """Return all pieces that a model streams, and its final item."""
    pieces: list[Piece] = []
    finished: list[Finished] = []
    async with model.stream(prompt) as stream:
        async for item in stream:
            if isinstance(item, Piece):
                pieces.append(item)
            else:
                finished.append(item)
    assert len(finished) == 1
    return pieces, finished[0]


def join_pieces(pieces: Sequence[Piece], kind: str, call: int = 0) -> str:
    """Return the text of all pieces of one kind, for one call."""
    return "".join(piece.text for piece in pieces if (piece.kind, piece.call) == (kind, call))


def has_closed_connections(model: ProviderModel) -> bool:
    """Return whether the model has closed its HTTP client."""
    provider_client = model._model.provider
    assert provider_client is not None
    http_client = provider_client._own_http_client
    return (
        http_client is not None
        and http_client.is_closed
        and provider_client._entered_count == 0
    )


class WireProtocol(Struct, frozen=True, kw_only=True):
    """A wire protocol: how to make a model that uses it, and its properties."""

    name: str
    make_model: Callable[[Provider], PydanticModel]
    has_signed_thinking: bool  # its thinking has a signature that must be sent back


def _chat(provider: Provider) -> PydanticModel:
    provider_client = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="k")
    return OpenAIChatModel("gpt-5-mini", provider=provider_client)


def _responses(provider: Provider) -> PydanticModel:
    provider_client = OpenAIProvider(base_url=f"{provider.url}/v1", api_key="k")
    return OpenAIResponsesModel("gpt-5-mini", provider=provider_client)


def _anthropic(provider: Provider) -> PydanticModel:
    provider_client = AnthropicProvider(base_url=provider.url, api_key="k")
    return AnthropicModel("claude-opus-4-6", provider=provider_client)


def _gemini(provider: Provider) -> PydanticModel:
    provider_client = GoogleProvider(base_url=provider.url, api_key="k")
    return GoogleModel("gemini-3-flash-preview", provider=provider_client)


CHAT: Final = WireProtocol(name="chat", make_model=_chat, has_signed_thinking=False)
RESPONSES: Final = WireProtocol(
    name="responses", make_model=_responses, has_signed_thinking=True
)
ANTHROPIC: Final = WireProtocol(
    name="anthropic", make_model=_anthropic, has_signed_thinking=True
)
GEMINI: Final = WireProtocol(name="gemini", make_model=_gemini, has_signed_thinking=True)
ALL_PROTOCOLS: Final = (CHAT, RESPONSES, ANTHROPIC)
