"""Settings, addresses, fallbacks and token counts of models, on the wire of fake providers."""

import pytest
from msgspec.structs import replace

from midrun import Agent, Completed, Failed, Midrun, Misconfigured, tool
from midrun.core.entries import CallDone, CallFailed, RunStarted
from midrun.core.ids import CallId
from midrun.core.transcript import Turn
from midrun.core.values import CallResult, Json
from midrun.models import ModelSettings, ScriptedModel, model_named
from midrun.models.provider import ProviderModel, make_named_model
from midrun.models.registry import find_extra
from midrun.ports.model import Prompt
from midrun.runs.values import Usage as RunUsage
from midrun.stops import MaxCost
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.providers import Answer, Call, HttpError, Provider, Text, Thinking, Usage
from tests.support.run_journal import read_entries
from tests.unit.models.protocols import (
    ALL_PROTOCOLS,
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    TASK,
    WireProtocol,
    make_prompt,
    read_stream,
)

DONE = Answer(Text("Done."))


async def send(protocol: WireProtocol, **settings: object) -> dict[str, Json]:
    """Return the body of a request with these settings."""
    prompt = replace(make_prompt(), settings=ModelSettings(**settings))  # type: ignore[arg-type]
    async with Provider(DONE) as provider:
        await read_stream(ProviderModel(protocol.make_model(provider)), prompt)
        return provider.exchanges[0].body


def get(body: Json, *path: str) -> Json:
    """Return the value at a path of a body, or None."""
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


@pytest.mark.parametrize(
    ("protocol", "temperature", "limit"),
    [
        (ANTHROPIC, ("temperature",), ("max_tokens",)),
        (GEMINI, ("generationConfig", "temperature"), ("generationConfig", "maxOutputTokens")),
    ],
    ids=["anthropic", "gemini"],
)
async def test_settings_reach_the_provider(
    protocol: WireProtocol, temperature: tuple[str, ...], limit: tuple[str, ...]
) -> None:
    body = await send(protocol, temperature=0.5, max_tokens=77)
    assert (get(body, *temperature), get(body, *limit)) == (0.5, 77)


@pytest.mark.parametrize(
    ("protocol", "path", "level"),
    [
        (CHAT, ("reasoning_effort",), "high"),
        (RESPONSES, ("reasoning", "effort"), "high"),
        (GEMINI, ("generationConfig", "thinkingConfig", "thinking_level"), "HIGH"),
        (ANTHROPIC, ("thinking", "type"), "adaptive"),
    ],
    ids=["chat", "responses", "gemini", "anthropic"],
)
async def test_the_effort_of_thinking_reaches_the_provider(
    protocol: WireProtocol, path: tuple[str, ...], level: str
) -> None:
    assert get(await send(protocol, thinking="high"), *path) == level


async def test_prompts_are_cached_by_default_where_the_provider_must_be_told() -> None:
    """A run sends its instructions, tools and conversation again with every step."""
    assert "cache_control" in str(await send(ANTHROPIC))
    assert "cache_control" not in str(await send(ANTHROPIC, cache=False))


async def test_instructions_that_a_function_makes_are_not_cached() -> None:
    """They may differ in each step: to write them to the cache would only cost."""
    fixed = make_prompt(tools=())
    async with Provider(DONE) as provider:
        model = ProviderModel(ANTHROPIC.make_model(provider))
        await read_stream(model, replace(fixed, has_fixed_instructions=False))
        system = provider.exchanges[0].body.get("system")
    assert "cache_control" not in str(system)


async def test_a_model_can_be_made_to_call_a_tool() -> None:
    body = await send(CHAT, extra={"tool_choice": "required"})
    assert body["tool_choice"] == "required"


async def test_an_extra_setting_is_passed_on_by_its_name() -> None:
    body = await send(CHAT, extra={"openai_service_tier": "flex"})
    assert body["service_tier"] == "flex"


@pytest.mark.parametrize(
    "protocol", [*ALL_PROTOCOLS, GEMINI], ids=lambda protocol: protocol.name
)
async def test_tokens_are_split_by_their_kind(protocol: WireProtocol) -> None:
    usage = Usage(input_tokens=100, output_tokens=20, cached_tokens=60, thinking_tokens=5)
    async with Provider(Answer(Text("Hi."), usage=usage)) as provider:
        model = ProviderModel(protocol.make_model(provider))
        _, finished = await read_stream(model, make_prompt())
    spent = finished.spent
    assert spent is not None
    assert (spent.tokens, spent.input_tokens, spent.output_tokens) == (120, 100, 20)
    assert (spent.unpriced_tokens, spent.cost > 0) == (0, True)
    if protocol is not GEMINI:
        assert spent.cached_tokens == 60
    if protocol in (CHAT, RESPONSES):
        assert spent.thinking_tokens == 5


async def test_gemini_streams_text_thinking_and_calls() -> None:
    """The same parts as in the other protocols, and a signature that is sent back."""
    asked = Answer(Thinking("Hm."), Call("search", '{"q": "cats"}'))
    async with Provider(asked, Answer(Text("Two ", "cats."))) as provider:
        model = ProviderModel(GEMINI.make_model(provider))
        _, first = await read_stream(model, make_prompt())
        reply = first.reply
        assert (reply.thinking, reply.uses[0].tool, reply.uses[0].args) == (
            "Hm.",
            "search",
            {"q": "cats"},
        )
        made = CallResult(call=CallId("c2"), tool="search", args={"q": "cats"}, result="2")
        turn = Turn(role="assistant", text="", opaque=reply.opaque, uses=(made,))
        _, second = await read_stream(model, make_prompt(TASK, turn))
        assert second.reply.text == "Two cats."
        assert "c2lnbmVk" in str(provider.exchanges[1].body)  # the signature, in base64


# ── names and addresses ──────────────────────────────────────────────────────


async def test_base_url_reaches_a_server_of_your_own_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ollama, vLLM and other servers that speak the protocol of OpenAI."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Provider(DONE) as provider:
        agent = Agent("local", model="openai-chat:llama3", base_url=f"{provider.url}/v1")
        outcome = await agent.run("go")
        body = provider.exchanges[0].body
    assert isinstance(outcome, Completed)
    assert body["model"] == "llama3"


async def test_base_url_reaches_anthropic_and_gemini_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    async with Provider(DONE, DONE) as provider:
        for name in ("anthropic:claude-opus-4-6", "google:gemini-3-flash-preview"):
            _, finished = await read_stream(model_named(name, provider.url), make_prompt())
            assert finished.reply.text == "Done."


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("google:gemini-3-flash-preview", "GOOGLE_API_KEY"),
        ("ollama:llama3", "OLLAMA_BASE_URL"),
        ("azure:gpt-5", "AZURE_OPENAI_ENDPOINT"),
        ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY"),
        ("openrouter:x/y", "OPENROUTER_API_KEY"),
    ],
)
def test_a_provider_that_is_not_configured_names_its_variable(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (variable, "GEMINI_API_KEY"):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(Misconfigured, match=variable):
        model_named(name)


@pytest.mark.parametrize(
    ("provider", "extra"),
    [
        ("openai", "midrun[openai]"),
        ("ollama", "midrun[openai]"),
        ("azure", "midrun[openai]"),
        ("google-cloud", "midrun[google]"),
        ("groq", "pydantic-ai-slim[groq]"),
        ("gateway/anthropic", "midrun[anthropic]"),
    ],
)
def test_each_provider_has_an_extra(provider: str, extra: str) -> None:
    assert find_extra(provider) == extra


@pytest.mark.parametrize("name", ["groq:llama", "mistral:large", "cohere:r"])
def test_a_provider_whose_package_is_missing_names_its_extra(name: str) -> None:
    provider = name.partition(":")[0]
    with pytest.raises(Misconfigured, match=rf"Install pydantic-ai-slim\[{provider}\]"):
        model_named(name)


# ── fallbacks ────────────────────────────────────────────────────────────────


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def test_a_fallback_answers_when_the_model_fails() -> None:
    """Each attempt is journaled; the next step begins with the agent's own model again."""
    refused = HttpError(401, kind="authentication_error", message="no")
    async with (
        Provider(refused, DONE) as first,
        Provider(Answer(Call("look", "{}"))) as second,
    ):
        agent = Agent(
            "a",
            model=ProviderModel(ANTHROPIC.make_model(first)),
            fallback=[ProviderModel(CHAT.make_model(second))],
            tools=[look],
        )
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await run.until("completed")
            failed = await read_entries(run, CallFailed)
            replies = [e.reply for e in await read_entries(run, CallDone) if e.reply]
    assert [(entry.code, entry.transient) for entry in failed] == [("unauthorized", True)]
    assert failed[0].retry_at is None
    assert [reply.model for reply in replies] == ["openai:gpt-5-mini", ""]


async def test_a_model_with_a_transient_error_is_retried_if_its_fallback_fails_for_good() -> (
    None
):
    refused = HttpError(401, kind="authentication_error", message="no")
    busy = HttpError(529, kind="overloaded_error", message="busy")
    async with Provider(busy, busy, DONE) as first, Provider(refused) as second:
        agent = Agent(
            "a",
            model=ProviderModel(ANTHROPIC.make_model(first)),
            fallback=[ProviderModel(CHAT.make_model(second))],
        )
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await run.until("completed")
            failed = await read_entries(run, CallFailed)
    assert [entry.lasting for entry in failed] == [False, True, False]
    assert [entry.retry_at is None for entry in failed] == [True, False, False]


async def test_a_pause_does_not_pass_the_call_to_a_fallback() -> None:
    """The model did not fail. The same holds after the death of a worker."""
    first = GatedModel(GatedReply("I am ", "done.", gate="work"), "Done.")
    agent = Agent("a", model=first, fallback=[ScriptedModel(["Never said."])])
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await first.reached("work").wait()
        await run.pause()
        await run.until("paused")
        await run.resume()
        assert (await run.until("completed")).output == "Done."


async def test_the_run_fails_when_all_models_fail_for_good() -> None:
    refused = HttpError(401, kind="authentication_error", message="no")
    async with Provider(refused) as first, Provider(refused) as second:
        agent = Agent(
            "a",
            model=ProviderModel(ANTHROPIC.make_model(first)),
            fallback=[ProviderModel(CHAT.make_model(second))],
        )
        outcome = await agent.run("go")
    assert isinstance(outcome, Failed)
    assert outcome.code == "unauthorized"
    assert "openai:gpt-5-mini" in outcome.error


# ── an agent and a run ───────────────────────────────────────────────────────


class RecordingModel(ScriptedModel):
    """A scripted model that records the settings of each call."""

    def __init__(self) -> None:
        super().__init__(lambda _: "Done.")
        self.settings: list[ModelSettings] = []

    def stream(self, prompt: Prompt):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as the base
        """Record the settings, and play the turn."""
        self.settings.append(prompt.settings)
        return super().stream(prompt)


async def test_the_settings_of_a_run_replace_those_of_the_agent_and_are_journaled() -> None:
    """A worker in another process must use them, too; a fork inherits them."""
    model = RecordingModel()
    agent = Agent("a", model=model, model_settings=ModelSettings(temperature=0.1, top_p=0.9))
    async with Midrun("memory://", agents=[agent]) as midrun:
        run = await midrun.start(agent, "go", model_settings=ModelSettings(temperature=0.7))
        await run.until("completed")
        (started,) = await read_entries(run, RunStarted)
        await (await run.fork()).until("completed")
    assert started.model_settings == ModelSettings(temperature=0.7)
    assert model.settings == [ModelSettings(temperature=0.7, top_p=0.9)] * 2


async def test_a_secret_in_the_settings_of_a_run_is_refused() -> None:
    """They are journaled, and a redacted header would not work. Those of an agent are not."""
    headers: Json = {"X-Tenant": "north", "Authorization": "Bearer sk-4242424242424242424242"}
    settings = ModelSettings(extra={"extra_headers": headers})
    agent = Agent("a", model=RecordingModel(), model_settings=settings)
    async with Midrun("memory://", agents=[agent]) as midrun:
        with pytest.raises(Misconfigured, match="Cannot use a secret in the settings of a run"):
            await midrun.start(agent, "go", model_settings=settings)
        assert (await midrun.runs()).items == ()
        plain = ModelSettings(extra={"extra_headers": {"X-Tenant": "north"}})
        run = await midrun.start(agent, "go", model_settings=plain)
        await run.until("completed")
        (started,) = await read_entries(run, RunStarted)
    assert started.model_settings == plain


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"model_settings": {"temperature": 1}}, r"must be ModelSettings\(…\), got"),
        ({"model_settings": ModelSettings(thinking="lots")}, "model_settings: "),  # type: ignore[arg-type]
        ({"fallback": "openai:gpt-5-mini"}, "fallback must be a list of models"),
        ({"fallback": ["gpt-5-mini"]}, 'fallback: model must be "provider:model"'),
        ({"base_url": "http://localhost"}, "base_url must be used with model="),
    ],
)
def test_settings_that_cannot_work_are_refused_where_they_are_declared(
    options: dict[str, object], advice: str
) -> None:
    with pytest.raises(Misconfigured, match=advice):
        Agent("a", model=ScriptedModel([]), **options)  # type: ignore[arg-type]  # on purpose


async def test_an_unknown_price_is_not_zero() -> None:
    """The view says so, and a cap on cost is refused, also for a fallback."""
    assert RunUsage(tokens=9, unpriced_tokens=9).cost_text == "cost unknown"
    assert RunUsage(cost_usd=0.5, unpriced_tokens=9).cost_text == "more than $0.50"
    assert RunUsage(cost_usd=0.5).cost_text == "$0.50"
    async with Provider(DONE) as provider:
        model = make_named_model("openai-chat:own-model", f"{provider.url}/v1")
        agent = Agent("a", model=model)
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            usage = (await run.until("completed")).usage
            with pytest.raises(Misconfigured, match="no known price"):
                await midrun.start(agent, "go", stop=MaxCost(1.0))
    assert (usage.unpriced_tokens, usage.cost_text) == (18, "cost unknown")
