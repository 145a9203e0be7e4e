"""Models by name: imported on demand, and refused with advice if they are not found."""

import subprocess
import sys

import pytest
from pydantic_ai.models.test import TestModel

from midrun.errors import Misconfigured
from midrun.models import ScriptedModel, model_named, model_of
from midrun.models.provider import ProviderModel
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
        ("pydantic_ai", "opnai:gpt-5-mini", "'opnai': pydantic-ai is not installed"),
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
        Misconfigured, match=r"'opnai'. Did you mean openai\? .*: anthropic, .*openai"
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
