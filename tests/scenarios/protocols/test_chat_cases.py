"""The cases that each adapter passes, and the table of controls in the documentation.

The cases are in `test_chat_adapters.py`.
"""

import pytest

from midrun import Run
from tests.scenarios.protocols import test_chat_adapters as suite
from tests.scenarios.protocols.chat_drivers import (
    A2A,
    AG_UI,
    AI_SDK,
    COMPLETIONS,
    COPILOTKIT,
    MCP,
    OPENERS,
    RESPONSES,
)
from tests.support.paths import ROOT

pytestmark = pytest.mark.once

CASES = {
    "start": suite.test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "stream": suite.test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "tools": suite.test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "hostile text": suite.test_a_message_starts_a_run_whose_text_and_calls_are_streamed,
    "ask": suite.test_a_question_is_shown_and_answered,
    "approve": suite.test_the_user_decides_about_a_call,
    "pause": suite.test_a_client_pauses_the_run_and_resumes_it,
    "resume": suite.test_a_pause_keeps_the_text_and_the_client_resumes_with_an_instruction,
    "redirect": suite.test_a_message_of_a_second_client_redirects_the_working_run,
    "cancel": suite.test_a_client_cancels_the_run,
    "reload": suite.test_a_reloaded_client_gets_the_reply_from_its_beginning_and_follows_it,
    "two clients": suite.test_of_two_clients_that_decide_one_wins_and_the_other_is_told,
    "another user": suite.test_a_thread_belongs_to_its_user,
    "another user's id": suite.test_the_run_of_another_user_is_refused,
    "dropped connection pauses": suite.test_a_client_that_leaves_pauses_its_run_after_the_grace,
    "dropped connection goes on": suite.test_a_run_goes_on_without_its_client,
    "server restart": suite.test_a_working_run_goes_on_after_a_restart_of_the_server,
    "repeated request": suite.test_a_request_that_comes_again_reaches_the_run_once,
    "repeated decision": suite.test_a_decision_that_comes_again_is_taken_once,
    "reconnect storm": suite.test_a_storm_of_reconnections_changes_nothing,
    "two clients cancel": suite.test_two_clients_that_cancel_in_mid_stream_cancel_once,
    "two beginnings": suite.test_two_messages_that_begin_a_thread_at_once_are_one_run,
    "race": suite.test_a_message_to_a_run_that_is_resumed_meanwhile_redirects_it,
    "race with the end": suite.test_a_message_to_a_run_that_completes_meanwhile_starts_the_next,
}
"""Case that each adapter must pass → its test in this suite."""

CONTROL_CASES = ("pause", "resume", "redirect", "cancel", "approve")

ROWS = {
    "MCP": MCP,
    "AI SDK": AI_SDK,
    "OpenAI responses": RESPONSES,
    "OpenAI chat completions": COMPLETIONS,
    "AG-UI": AG_UI,
    "CopilotKit": COPILOTKIT,
    "A2A": A2A,
}
"""Row of the table of controls → protocol."""

OTHER_WAYS = {
    "cancel the task": "test_mcp_server.py test_a_task_is_paused_by_a_tool_and_cancelled",
    "a form": "test_mcp_server.py test_an_approval_is_given_through_a_form",
    "`regenerate()`": "test_ai_sdk.py test_a_failed_run_is_an_error_and_regenerate_resumes_it",
    'data `{"approved": true}`': (
        "test_a2a.py test_a_message_answers_a_question_and_gives_an_approval"
    ),
    "the word `approve`": (
        "test_openai.py test_an_approval_needs_an_explicit_word_and_names_the_way_to_answer"
    ),
    "the next message": (
        "test_agui.py"
        " test_a_client_before_1_0_gets_a_custom_pause_event_and_resumes_by_a_message"
    ),
}
"""A second way in a cell of the table → the test of it."""


def list_kinds(case: str) -> dict[str, bool]:
    """Return each protocol, and whether the suite runs the case for it."""
    (mark,) = [
        mark
        for mark in CASES[case].pytestmark  # type: ignore[attr-defined]  # set by the marks
        if mark.name == "parametrize" and mark.args[0] == "kind"
    ]
    return {param.values[0]: not param.marks for param in mark.args[1]}


@pytest.mark.parametrize("case", CASES)
def test_each_case_runs_for_each_protocol_or_the_reason_is_listed(case: str) -> None:
    kinds = list_kinds(case)
    assert list(kinds) == list(OPENERS)
    if case not in {"dropped connection pauses", "dropped connection goes on"}:
        assert sum(kinds.values()) >= 3


def test_each_protocol_has_a_case_for_a_dropped_connection() -> None:
    pauses, goes_on = (
        list_kinds("dropped connection pauses"),
        list_kinds("dropped connection goes on"),
    )
    assert all(pauses[kind] is not goes_on[kind] for kind in OPENERS)


def read_control_table() -> dict[str, dict[str, str]]:
    """Return the table of controls in the documentation: row → control → cell."""
    page = (ROOT / "docs/guides/front-ends.md").read_text()
    section = page.partition("## The controls in each protocol")[2].partition("\n## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    assert tuple(header[1:]) == CONTROL_CASES
    return {row[0].strip("*"): dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def test_the_table_of_controls_has_a_cell_for_each_control_that_the_suite_uses() -> None:
    """A cell is empty if the suite skips the control for that protocol, and only then."""
    table = read_control_table()
    native = table.pop("HTTP, Python, elements")
    assert all(hasattr(Run, control) for control in native)
    assert list(table) == list(ROWS)
    for control in CONTROL_CASES:
        kinds = list_kinds(control)
        filled = {ROWS[row]: bool(cells[control]) for row, cells in table.items()}
        assert filled == {kind: kinds[kind] for kind in filled}, control


def test_each_second_way_in_the_table_of_controls_has_a_test() -> None:
    found = set()
    for row, cells in read_control_table().items():
        for cell in cells.values() if row in ROWS else ():
            found |= {way.strip() for way in cell.split(", or ")[1:]}
    assert found == set(OTHER_WAYS)
    for reference in OTHER_WAYS.values():
        file, name = reference.split()
        text = (ROOT / "tests/scenarios/protocols" / file).read_text()
        assert f"async def {name}(" in text
