"""Run each example in a process of its own, and check its output."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from midrun import Checkpoint
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 60  # an example takes one or two seconds


async def run_example(folder: Path, script: str, *arguments: str) -> str:
    """Run an example in `folder`, and return its output."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments]
    with anyio.fail_after(TIMEOUT_S):
        done = await anyio.run_process(command, cwd=folder, stderr=None)
    return done.stdout.decode()


async def test_the_quick_start_pauses_resumes_and_cancels_with_undo(tmp_path: Path) -> None:
    """It leaves no file behind: a user may try it in any folder."""
    out = await run_example(tmp_path, "quickstart.py")
    assert out.startswith("pausing\npaused\n# Compare the three vendors\n")
    undone, stopped = out.index("## Undone"), out.index("## Stopped midway")
    assert undone < out.index("Write draft:") < stopped < out.index("Send mail:")
    assert "drafts: {}, mails: []" in out
    assert out.endswith("entries, clean\n")
    left = [file.name async for file in anyio.Path(tmp_path).iterdir()]
    assert left == []


async def test_a_refund_is_asked_for_in_one_process_and_paid_in_another(
    tmp_path: Path,
) -> None:
    """The answer is the result of the tool, which runs in the first process only."""
    asked = await run_example(tmp_path, "refund/ask.py")
    assert asked.splitlines() == [
        "refund(123) was entered",
        "Refund order 123? {'limit': 500, 'order': 123}",
        "saved to refund.json",
    ]
    text = await anyio.Path(tmp_path / "refund.json").read_text()
    assert Checkpoint.from_json(text).phase == "waiting"
    assert await run_example(tmp_path, "refund/approve.py") == "Refunded 500.\n"


async def test_a_refund_that_was_tampered_with_is_not_paid(tmp_path: Path) -> None:
    """A changed byte of the file is enough."""
    await run_example(tmp_path, "refund/ask.py", "mine.json")
    file = anyio.Path(tmp_path / "mine.json")
    text = await file.read_text()
    await file.write_text(text.replace(r"\"order\":123", r"\"order\":124"))
    with pytest.raises(subprocess.CalledProcessError) as failure:
        await run_example(tmp_path, "refund/approve.py", "mine.json")
    assert b"Refunded" not in failure.value.stdout


@pytest.mark.slow
async def test_a_pydantic_ai_agent_is_approved_resumed_and_cancelled(tmp_path: Path) -> None:
    """The agent is the one of the documentation of Pydantic AI, unchanged."""
    out = await run_example(tmp_path, "hosts/pydantic_ai_agent.py")
    assert out.splitlines() == [
        "waiting: block_card {'reason': 'lost'}, blocked: False",
        "cap reached, blocked: True",
        "completed: {'block_card': True, 'risk': 8, 'support_advice': 'Your card is blocked.'}",
        "waiting: block_card {'reason': 'lost'}, blocked: True",
        "cap reached, blocked: True",
        "cancelled, blocked: False",
    ]


@pytest.mark.slow
async def test_a_langchain_agent_is_approved_and_redirected(tmp_path: Path) -> None:
    """The agent is the one of the quick start of LangChain, unchanged."""
    out = await run_example(tmp_path, "hosts/langchain_agent.py")
    assert out.splitlines() == [
        "waiting: {'city': 'Paris'}",
        "paused: cap",
        "waiting: {'city': 'Rome'}",
        "completed: It's always sunny in Rome!",
    ]


@pytest.mark.slow
async def test_a_strands_agent_is_approved_and_redirected(tmp_path: Path) -> None:
    """The agent is the one of the quick start of Strands Agents, unchanged."""
    out = await run_example(tmp_path, "hosts/strands_agent.py")
    assert out.splitlines() == [
        "waiting: {'letter': 'R', 'word': 'strawberry'}",
        "paused: cap",
        "waiting: {'letter': 'R', 'word': 'raspberry'}",
        "completed: 3 in raspberry",
    ]


@pytest.mark.slow
async def test_an_adk_agent_is_approved_and_redirected(tmp_path: Path) -> None:
    """The agent is the one of the quick start of Google ADK, unchanged."""
    out = await run_example(tmp_path, "hosts/adk_agent.py")
    assert out.splitlines() == [
        "waiting: {'city': 'Paris'}",
        "paused: cap",
        "waiting: {'city': 'Rome'}",
        "completed: The weather in Rome is sunny.",
    ]


@pytest.mark.slow
async def test_tutors_of_the_openai_agents_sdk_hand_off_and_are_approved(
    tmp_path: Path,
) -> None:
    """The agents are those of the quick start of the SDK; one tool is added."""
    out = await run_example(tmp_path, "hosts/openai_agents_tutors.py")
    assert out.splitlines() == [
        "waiting: enter_grade {'points': 10}, grades: []",
        "cap reached, grades: [10]",
        "completed: 2 + 2 is 4: correct.",
        "waiting: enter_grade {'points': 10}, grades: [10]",
        "cap reached, grades: [10, 10]",
        "cancelled, grades: [10]",
    ]


@pytest.mark.slow
@pytest.mark.once
async def test_a_claude_agent_in_a_process_is_approved(tmp_path: Path) -> None:
    """The Claude Agent SDK and its CLI are unmodified; only the provider is scripted."""
    out = await run_example(tmp_path, "hosts/claude_agent.py")
    assert out.splitlines() == [
        "waiting: charge {'customer': 42}, charged: []",
        "completed: Customer 42 is charged. charged: [42]",
    ]


async def test_the_research_stops_searching_when_told_to_sum_up(tmp_path: Path) -> None:
    """The model gets the instruction with its next call, and keeps the results so far."""
    *notes, paused, summary, since = (await run_example(tmp_path, "research.py")).splitlines()
    searches = int(paused.removeprefix("paused after ").removesuffix(" searches"))
    assert notes == ["searching vendor 1 …", "searching vendor 2 …"]
    assert searches >= len(notes)
    assert summary.startswith(f"{searches} results: vendor 1 is fine, vendor 2 is fine")
    assert since == "searches since the pause: 0"


async def test_a_side_question_is_answered_and_the_synthesis_continues(tmp_path: Path) -> None:
    """The example shows the eighth promise of the README."""
    assert (await run_example(tmp_path, "literature.py")).splitlines() == [
        "runtime: Hold on — finishing *Read them* first",
        (
            "journal: the agent put “Literature synthesis” aside at plan 2/4"
            " to answer the user's “What was that paper from Tuesday?”"
        ),
        "journal: the run said “Back to Literature synthesis — plan 2/4”",
        "agent: The four papers agree: sleep helps.",
        "plan 2/4 done",
    ]


async def test_one_cancel_ends_a_parent_and_its_three_children(tmp_path: Path) -> None:
    """The drafts of the children are undone, too."""
    assert (await run_example(tmp_path, "family.py")).splitlines() == [
        "drafts: ['Ajax', 'Boreas', 'Castor']",
        "drafts: []",
        "Castor: cancelled",
        "Boreas: cancelled",
        "Ajax: cancelled",
        "boss: cancelled",
    ]
