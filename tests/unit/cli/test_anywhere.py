"""Every command does the same at a store and at a server, in the same words."""

import json
from pathlib import Path
from typing import cast

import pytest

from tests.unit.cli.typist import APP, TOKEN, Said, Shell, Typist, read_until

pytestmark = pytest.mark.usefixtures("gate")


def started(url: Typist, agent: str, task: str = "Find cats") -> str:
    """Start a run that the server drives until it rests, and return its id."""
    said = url("run", agent, task, "--json")
    return cast("str", said.values[-1]["run_id"])


def _plain(said: Said) -> str:
    """Return what was said to programs; a default may be left out, or be there as nothing."""
    return json.dumps(said.values).replace(', "reserved": {}', "")


@pytest.mark.usefixtures("open_gate")
@pytest.mark.parametrize("words", [["show"], ["feed"], ["report"], ["verify"], ["export"]])
def test_a_look_is_the_same_from_both_sides(
    store: Typist, url: Typist, words: list[str]
) -> None:
    """Word for word to people, value for value to programs."""
    run = started(url, "searcher")
    near, far = store(*words, run, "--json"), url(*words, run, "--json")
    assert (near.code, far.code) == (0, 0)
    assert _plain(near) == _plain(far)
    assert store(*words, run).out.splitlines()[0] == url(*words, run).out.splitlines()[0]


@pytest.mark.usefixtures("open_gate")
def test_a_run_is_shown_until_it_has_completed(url: Typist) -> None:
    """One line per fact, then the output; the exit code says how it ended."""
    said = url("run", "searcher", "Find cats")
    assert said.code == 0, said
    assert "the run completed" in said.out
    assert said.out.endswith("completed:\nFound cats.\n")


@pytest.mark.usefixtures("open_gate")
def test_runs_are_listed_and_found_by_the_beginning_of_their_ids(
    midrun: Typist, url: Typist
) -> None:
    """People type eight characters, not twenty-six."""
    run, _ = started(url, "searcher"), started(url, "searcher")
    listed = midrun("ls", "--agent", "searcher", "--phase", "completed")
    assert run in listed.out
    assert "Find cats" in listed.out
    assert run in midrun("show", run[4:12]).out
    assert run in midrun("completion", "runs").out.split()
    many = midrun("show", "run_")
    assert (many.code, "type more of the id" in many.err) == (1, True)


def test_a_child_run_names_its_parent(midrun: Typist, url: Typist) -> None:
    """Whoever finds it in the list knows what it is part of."""
    run = started(url, "boss", "Lead")
    rows = [line for line in midrun("ls", "--agent", "aide").out.splitlines() if run in line]
    (row,) = rows
    assert row.endswith(f"Help  part of {run}")
    assert f"parent   {run}\n" in midrun("show", row.split()[0]).out
    assert "parent" not in midrun("show", run).out


def test_a_question_is_answered(midrun: Typist, url: Typist) -> None:
    """By its name, and the answer is the tool's result."""
    run = started(url, "asker", "Ask me")
    assert f"{run}-a1  Which?" in midrun("asks").out
    said = midrun("answer", f"{run}-a1", "red")
    assert (said.code, "in the journal" in said.out) == (0, True)
    assert "said “red!”" in midrun("feed", run, "--follow").out


def test_an_approval_is_given_once_and_a_second_hears_who_was_first(
    midrun: Typist, url: Typist
) -> None:
    """The name of the run will do while it asks only one thing."""
    run = started(url, "sender", "Send it")
    assert f'{run}-a1  Let the agent call send? {{"to":"ada"}}' in midrun("asks").out
    refused = midrun("answer", run, "yes")
    assert (refused.code, "use approve or decline" in refused.err) == (1, True), refused.err
    assert midrun("approve", run, "--args", '{"to": "bob"}').code == 0
    assert "sent to bob" in midrun("feed", run, "--follow").out
    again = midrun("approve", f"{run}-a1")
    assert again.code == 1
    assert "the ask is closed: " in again.err
    assert run in again.err


def test_a_call_is_declined(midrun: Typist, url: Typist) -> None:
    """The agent is told why, and goes on."""
    run = started(url, "sender", "Send it")
    assert midrun("decline", run, "not to her").code == 0
    assert "not to her" in midrun("feed", run, "--follow").out


@pytest.mark.usefixtures("open_gate")
def test_a_run_at_its_cap_is_resumed_with_a_higher_one(midrun: Typist, url: Typist) -> None:
    """A bare resume is refused, by name; so is a cap that is none."""
    run = started(url, "capped")
    refused = midrun("resume", run)
    assert (refused.code, "cap_reached" in refused.err) == (1, True)
    assert "such as steps=20" in midrun("resume", run, "--cap", "steps").err
    assert "Raise cap, resume: Adds 10 steps" in midrun("show", run).out
    assert "(resume --cap steps=11)" in midrun("show", run).out
    resumed = midrun("resume", run, "--cap", "steps=5")
    assert (resumed.code, "midrun worker" in resumed.out) == (0, False)  # the server does
    assert "the run completed" in midrun("feed", run, "--follow").out


def test_a_run_is_cancelled_and_reports(midrun: Typist, url: Typist) -> None:
    """Also while it waits; a control of a run that is over says what it is."""
    run = started(url, "sender", "Send it")
    assert midrun("cancel", run, "--undo-all", "--reason", "enough").code == 0
    assert "The run is cancelled." in midrun("report", run).out
    said = midrun("pause", run)
    assert said.code == 1
    assert "it was cancelled by" in said.err


def test_a_paused_run_is_redirected(midrun: Typist, url: Typist) -> None:
    """What was asked goes; the new course is in the journal."""
    run = started(url, "sender", "Send it")
    paused = midrun("pause", run, "--json")
    assert paused.values == [
        {
            "run_id": run,
            "control": "pause",
            "seq": paused.values[0]["seq"],
            "phase": "paused",
            "applied": True,
            "already": None,
            "by": paused.values[0]["by"],
            "said": "",
        }
    ]
    assert midrun("redirect", run, "Never mind").code == 0
    assert "received the new instruction “Never mind”" in midrun("feed", run, "--follow").out


def test_a_side_question_is_acknowledged_at_once(midrun: Typist, url: Typist) -> None:
    """In words that are true: it is held until the run goes on."""
    run = started(url, "asker", "Ask me")
    assert midrun("pause", run).code == 0
    assert "Noted — for when the run is resumed" in midrun("say", run, "How far are you?").out
    assert midrun("cancel", run).code == 0
    assert "How far are you?" in midrun("feed", run, "--follow").out  # it came back


def test_a_latch_is_set_and_lifted(midrun: Typist) -> None:
    """By an operator, from any terminal."""
    scope = ("--scope", "agent:nobody")
    assert midrun("halt", "fire drill", *scope).code == 0
    assert midrun("lift", *scope).code == 0
    assert midrun("lift", *scope).code == 1


def test_what_a_model_says_does_not_act_on_a_terminal(midrun: Typist, url: Typist) -> None:
    """In no command, and the file of an export has it as it was."""
    run = started(url, "evil", "Be \x1b[31mred")
    for words in (["ls"], ["show", run], ["feed", run], ["report", run], ["attach", run]):
        for flags in ([], ["--json"]):
            said = midrun(*words, *flags)
            assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(said.out + said.err), words
    assert json.loads(midrun("export", run).out.splitlines()[0])["entry"]["task"]
    assert "⟨U+009B⟩2J" in midrun("attach", run).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "run_nobody"], "run_nobody"),
        (["show", "run_nobody"], "midrun ls"),
        (["answer", "nobody-a1", "x"], "nobody"),
        (["show", ""], "the id must not be empty"),
        (["ls", "--phase", "asleep"], "must be one of queued"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    midrun: Typist, words: list[str], says: str
) -> None:
    """With exit code 1, and for programs as a value with a stable name."""
    said = midrun(*words)
    assert (said.code, says in said.err) == (1, True), said.err
    (value,) = midrun(*words, "--json").values
    assert set(value) == {"error", "text"}


def test_a_list_that_leaves_everything_out_says_so(midrun: Typist) -> None:
    """Instead of telling somebody who has runs to start one."""
    assert "no matching runs; list all: midrun ls" in midrun("ls", "--agent", "nobody").out


@pytest.mark.usefixtures("open_gate")
def test_what_a_run_refused_is_told_to_programs_in_parts(midrun: Typist, url: Typist) -> None:
    """They go by the reason, not by the words."""
    run = started(url, "searcher")
    refused = midrun("pause", run, "--json")
    (value,) = refused.values
    assert refused.code == 1
    assert (value["error"], value["reason"]) == ("control_refused", "is_completed")
    assert (value["run_id"], value["control"], value["phase"]) == (run, "pause", "completed")
    (amid,) = midrun("fork", run, "--at", "900", "--json").values
    assert (amid["reason"], amid["phase"]) == ("not_a_boundary", "completed")
    assert "the journal ends at" in str(amid["text"])


def test_a_feed_that_has_nothing_new_ends(midrun: Typist, url: Typist) -> None:
    """Instead of waiting for ever for what was not asked for."""
    run = started(url, "asker", "Ask me")
    (view,) = midrun("show", run, "--json").values
    assert midrun("feed", run, "--after", str(view["seq"])) == Said(0, "", "")


def test_a_wrong_token_is_answered_in_the_words_of_the_command(
    served: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever types does not call `connect`."""
    monkeypatch.setenv("MIDRUN_TOKEN", "not-the-one-of-the-server")
    said = Typist(capsys, "--url", served[1])("ls")
    assert (said.code, "--token-file or $MIDRUN_TOKEN" in said.err) == (1, True), said.err
    assert "connect(" not in said.err


@pytest.mark.parametrize("command", [("ls",), ("serve", "app.py")])
def test_a_token_is_not_taken_from_the_command_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every user of the machine could read it in the list of processes."""
    said = Typist(capsys)(*command, "--token", TOKEN)
    assert said.code == 2
    assert "use --token-file FILE, or set MIDRUN_TOKEN" in said.err
    assert "--token TOKEN" not in Typist(capsys)(command[0], "--help").out


@pytest.mark.parametrize("text", ["", None])
def test_a_token_file_without_a_token_is_named(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Instead of being taken for a wrong token."""
    file = tmp_path / "absent"
    if text is not None:
        file.write_text(text)
    said = Typist(capsys, "--url", "http://127.0.0.1:1", "--token-file", str(file))("ls")
    assert said.code == 1
    assert f"--token-file {file}: Cannot read a token" in said.err


@pytest.mark.slow
def test_a_client_finds_the_token_of_a_server_in_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the folder itself; from another folder there is none."""
    shell = Shell(tmp_path)  # the test, and so the server, works in this folder
    with shell.start("serve", f"{APP}:searcher", "--port", "0") as served:
        url = read_until(served, "http://").partition("/#code=")[0]
        assert Typist(capsys, "--url", url)("ls").code == 0
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        said = Typist(capsys, "--url", url)("ls")
        served.terminate()
    assert (said.code, "--token-file or $MIDRUN_TOKEN" in said.err) == (1, True), said.err
    assert not list(tmp_path.rglob("*token*"))
