"""Models by name: imported on demand, and refused with advice if they are not found."""

import ast
import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers import infer_provider_class

from midrun.errors import Misconfigured
from midrun.models import ScriptedModel, model_named, model_of
from midrun.models.provider import ProviderModel
from midrun.models.registry import PROVIDERS, WITHOUT_CHAT, find_extra
from tests.unit.models.protocols import make_prompt, read_stream

PROVIDER_PACKAGES = ("anthropic", "genai_prices", "httpx2", "openai", "pydantic", "pydantic_ai")
CODE_WITHOUT_PACKAGE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Missing())
from midrun.errors import Misconfigured
from midrun.models import model_named
try:
    model_named({name!r})
except Misconfigured as refused:
    print(refused)
"""


def _run_python(code: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("module", ["midrun", "midrun.models", "tests.support.providers"])
def test_importing_midrun_imports_no_provider_package(module: str) -> None:
    """`midrun pause` must not wait a second for packages that it does not use."""
    code = (
        f"import sys, {module}; print(*sorted(set({PROVIDER_PACKAGES!r}) & set(sys.modules)))"
    )
    assert _run_python(code).split() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name", "install"),
    [
        ("pydantic_ai", "openai:gpt-5-mini", "Install midrun[openai]"),
        ("pydantic_ai", "opnai:gpt-5-mini", "'opnai'. Did you mean openai?"),
        ("pydantic_ai", "groq:kimi", "Install pydantic-ai-slim[groq]"),
        ("openai", "openai:gpt-5-mini", "Install midrun[openai]"),
        ("anthropic", "anthropic:claude-opus-4-6", "Install midrun[anthropic]"),
    ],
)
def test_the_error_for_a_missing_package_names_the_extra_to_install(
    package: str, name: str, install: str
) -> None:
    assert install in _run_python(CODE_WITHOUT_PACKAGE.format(package=package, name=name))


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("openai:gpt-5-mini", "openai"),
        ("openai-chat:gpt-5-mini", "openai"),
        ("anthropic:claude-opus-4-6", "anthropic"),
    ],
)
def test_a_model_is_found_by_its_name(
    name: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    model = model_named(name)
    assert model.name == f"{provider}:{name.partition(':')[2]}"
    assert model.priced


def test_the_error_for_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(
        Misconfigured, match=r"'opnai'. Did you mean openai\? .*: alibaba, .*openai"
    ):
        model_named("opnai:gpt-5-mini")


@pytest.mark.parametrize("name", ["gpt-5-mini", "openai:", ":gpt", ""])
def test_a_name_without_provider_or_model_is_refused(name: str) -> None:
    """A guess of the provider would decide which company gets the data."""
    with pytest.raises(Misconfigured, match="provider:model"):
        model_named(name)


def test_a_missing_api_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found when the agent is made, not during its first run."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Misconfigured, match="OPENAI_API_KEY is not set") as missing:
        model_named("openai:gpt-5-mini")
    assert "the process that drives the run" in str(missing.value)
    assert "Provider(" not in str(missing.value)  # another library's advice
    assert "Pydantic" not in str(missing.value)


def _list_names_in_package() -> list[str]:
    """Return the providers that the installed pydantic-ai knows, from the code that finds them.

    It has no public list of them.
    """
    code = ast.parse(inspect.getsource(infer_provider_class))
    values = [node.value for node in ast.walk(code) if isinstance(node, ast.MatchValue)]
    return [str(value.value) for value in values if isinstance(value, ast.Constant)]


def _is_extra(requirement: str) -> bool:
    """Tell whether a package has the extra that "package[extra]" names."""
    package, _, extra = requirement.rstrip("]").partition("[")
    return extra in (metadata(package).get_all("Provides-Extra") or [])


def test_each_provider_of_pydantic_ai_is_in_our_table() -> None:
    """A new one needs the name of its extra, and a look at its errors."""
    assert sorted(_list_names_in_package()) == sorted({*PROVIDERS, *WITHOUT_CHAT})


@pytest.mark.filterwarnings("ignore:`GitHubProvider` is deprecated")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_provider_is_found_or_says_what_it_lacks(
    provider: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is ours: it names a variable, a package to install, or a command."""
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    name = f"{provider}:some/model"
    try:
        assert model_named(name).name.endswith(":some/model")
    except Misconfigured as refused:
        text = str(refused)
    else:
        assert provider == "litellm"  # the key is that of its own server
        return
    assert text.startswith(f"model '{name}': Cannot "), text
    assert "Provider(" not in text  # advice of another library
    if "Cannot import" in text:
        found = re.search(r"Install (\S+\[\S+\])\.$", text)
        assert found, text
        assert _is_extra(found[1]), text
    else:
        assert f"Cannot reach {provider}: " in text
        assert re.search(r"\b[A-Z]+_[A-Z_]+ is not set|Set [A-Z]+_|Run codex|Sign in", text)
    assert _is_extra(find_extra(provider))


@pytest.mark.parametrize("provider", WITHOUT_CHAT)
def test_a_provider_without_models_for_agents_is_refused(provider: str) -> None:
    with pytest.raises(Misconfigured, match="none that answer messages"):
        model_named(f"{provider}:some-model")


def test_an_error_of_a_package_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is set and wrong is not called missing."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "nowhere at all")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "k")
    with pytest.raises(Misconfigured, match=r"Cannot use bedrock-mantle: .*region"):
        model_named("bedrock-mantle:openai.gpt-oss-120b")


async def test_a_model_of_pydantic_ai_can_be_passed_instead_of_a_name() -> None:
    model = model_of(TestModel(custom_output_text="hello there"))
    assert isinstance(model, ProviderModel)
    assert not model.priced
    _, finished = await read_stream(model, make_prompt(tools=()))
    assert finished.reply.text == "hello there"


def test_a_model_of_midrun_is_returned_unchanged() -> None:
    scripted = ScriptedModel([])
    assert model_of(scripted) is scripted


def test_a_value_that_is_not_a_model_is_refused() -> None:
    with pytest.raises(Misconfigured, match="got int"):
        model_of(7)  # type: ignore[arg-type]
