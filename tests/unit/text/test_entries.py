"""Texts of entries that depend on the state; the stored journals have the others."""

from typing import Literal

import pytest

from midrun.core import entries as e
from midrun.core.evolve import evolve
from midrun.core.ids import CallId, Seq
from midrun.core.values import Json, Reply, RequestedCall
from midrun.driver.delta import Delta
from midrun.runs.event_stream import EventBuilder
from midrun.testing.scenario import LEASED_RUN, START_TIME, given
from midrun.text.entries import describe_entry
from midrun.text.phrases import format_arguments


def test_calls_of_plan_and_ask_human_are_a_detail() -> None:
    """The plan and the ask have entries of their own; other calls have one."""
    tones = {}
    for tool, args in (("plan", {"marks": {}}), ("ask_human", {"question": "?"}), ("look", {})):
        state = given(*LEASED_RUN).replies(RequestedCall(tool=tool, args=args)).state
        started = e.CallStarted(call=CallId("c2"), call_kind="tool", attempt=1, seen=state.seq)
        tones[tool] = describe_entry(started, state, evolve(state, started, state.at)).tone
    assert tones == {"plan": "detail", "ask_human": "detail", "look": "work"}


@pytest.mark.parametrize(
    ("uses", "sentence"),
    [
        ([("ask_human", ""), ("ask_human", "")], "ask a person 2 times"),
        ([("mail", "Mail Ann"), ("mail", "Mail Ann")], "make the call “Mail Ann” 2 times"),
        (
            [("mail", "Mail Ann"), ("look", ""), ("mail", "Mail Bob")],
            "call look and make the calls “Mail Ann” and “Mail Bob”",
        ),
        (
            [(f"tool_{n}", "") for n in range(12)],
            f"call {', '.join(f'tool_{n}' for n in range(10))} and 2 more",
        ),
    ],
)
def test_a_reply_names_its_calls_by_their_titles(
    uses: list[tuple[str, str]], sentence: str
) -> None:
    """Equal calls are counted, and of many calls only the first are named."""
    args: Json = {"question": "?"}
    reply = Reply(
        uses=tuple(RequestedCall(tool=tool, args=args, title=title) for tool, title in uses)
    )
    done = e.CallDone(call=CallId("c1"), reply=reply)
    run = given(*LEASED_RUN).after(
        e.CallStarted(call=CallId("c1"), call_kind="model", attempt=1, seen=Seq(2))
    )
    told = describe_entry(done, run.state, evolve(run.state, done, run.state.at)).sentence
    assert told == f"the agent wants to {sentence}"


def test_only_a_failure_before_the_last_attempt_is_told_as_retried() -> None:
    """A transient failure is retried a limited number of times."""
    first, later = e.RunStarted(agent="clerk", task="Go", model_attempts=2), LEASED_RUN[1:]
    failed = e.CallFailed(call=CallId("c1"), error="busy", transient=True, retry_at=START_TIME)
    run, sentences = given(first, *later), []
    for attempt in (1, 2):
        seen = Seq(run.state.seq)
        run = run.after(
            e.CallStarted(call=CallId("c1"), call_kind="model", attempt=attempt, seen=seen)
        )
        before, run = run, run.after(failed)
        sentences.append(describe_entry(failed, before.state, run.state).sentence)
    assert sentences == [
        "the agent's model failed: busy; it is retried",
        "the agent's model failed: busy",
    ]


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        ("c1", "args", "the agent is writing a call of Send mail"),  # of the model call
        ("c2", "note", "Send “Hi”: x"),
        ("c9", "note", "Send mail: x"),  # the journal was not read to its start yet
    ],
)
def test_live_output_names_the_tool_of_its_call(
    call: str, kind: Literal["args", "note"], sentence: str
) -> None:
    run = given(*LEASED_RUN).replies(RequestedCall(tool="send_mail", title="Send “Hi”"))
    delta = Delta(run=run.state.run, call=CallId(call), kind=kind, text="x", tool="send_mail")
    assert EventBuilder(run.state.run, run.state).build_next(delta).sentence == sentence


def test_a_resume_with_a_pending_redirect_has_a_new_instruction() -> None:
    resumed = e.RunResumed(by="ada")
    before = given(*LEASED_RUN).state
    assert describe_entry(resumed, before, before).short == "resumed the run with no changes"
    waiting = evolve(before, e.RedirectRequested(text="Be brief.", by="ada"), before.at)
    text = describe_entry(resumed, waiting, waiting)
    assert text.short == "resumed the run with the new instruction"


def test_a_returned_text_is_not_cut() -> None:
    """The sender may want to use it again."""
    asked = e.RedirectRequested(text="word " * 200, by="ada")
    before = given(*LEASED_RUN, asked).state
    closed = e.RedirectClosed(redirect=before.seq, text=asked.text, why="returned")
    text = describe_entry(closed, before, before)
    assert (text.who, text.tone, text.sentence.count("word")) == ("the run", "bad", 200)
    assert text.short.endswith("…")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"to": "ada, cc: bob"}, "to: “ada, cc: bob”"),
        ({"to": "ada”, cc: “bob"}, r"to: “ada\”, cc: \“bob”"),
        ({"to": 'ada", cc: "bob'}, r"to: “ada\", cc: \"bob”"),
        ({"to": "ada\\”, cc: “bob"}, r"to: “ada\\\”, cc: \“bob”"),
        ({"path": "C:\\temp\\"}, r"path: “C:\temp\\”"),
        ({"to": ["ada”, cc: “bob"]}, r"to: (“ada\”, cc: \“bob”)"),
        ({"to: ada, cc": "bob"}, "“to: ada, cc”: “bob”"),
        (
            {"n": 2, "text": "2", "left": "", "sure": True},
            "n: 2, text: “2”, left: nothing, sure: yes",
        ),
        ("ada, cc: bob", "“ada, cc: bob”"),
    ],
)
def test_a_text_among_arguments_cannot_look_like_another_argument(
    args: Json, text: str
) -> None:
    assert format_arguments(args) == f" ({text})"
