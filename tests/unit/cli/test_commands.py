"""Commands and controls, at a store and at a server, with the same results."""

import json
from pathlib import Path
from typing import cast

import anyio
import pytest

from midrun import Midrun
from midrun.models import Use
from tests.support.undoable_drafts import UNDO_ATTEMPTS, UndoableDrafts, make_fast_environment
from tests.unit.cli.command_runner import (
    APP,
    TOKEN,
    CommandResult,
    CommandRunner,
    ProcessRunner,
    read_until,
    serve_app,
)

pytestmark = pytest.mark.usefixtures("gate")


def start_run(midrun_at_server: CommandRunner, agent: str, task: str = "Find cats") -> str:
    """Start a run that the server drives until it rests, and return its id."""
    result = midrun_at_server("run", agent, task, "--json")
    return cast("str", result.values[-1]["run_id"])


def _normalise(result: CommandResult) -> str:
    """Return the JSON output; the two sides differ in whether they omit a default."""
    return json.dumps(result.values).replace(', "reserved": {}', "")


@pytest.mark.usefixtures("open_gate")
@pytest.mark.parametrize("arguments", [["show"], ["feed"], ["report"], ["verify"], ["export"]])
def test_read_commands_print_the_same_at_a_store_and_at_a_server(
    midrun_at_store: CommandRunner, midrun_at_server: CommandRunner, arguments: list[str]
) -> None:
    run = start_run(midrun_at_server, "searcher")
    local = midrun_at_store(*arguments, run, "--json")
    remote = midrun_at_server(*arguments, run, "--json")
    assert (local.code, remote.code) == (0, 0)
    assert _normalise(local) == _normalise(remote)
    assert (
        midrun_at_store(*arguments, run).out.splitlines()[0]
        == midrun_at_server(*arguments, run).out.splitlines()[0]
    )


@pytest.mark.usefixtures("open_gate")
def test_run_prints_the_feed_and_the_output(midrun_at_server: CommandRunner) -> None:
    result = midrun_at_server("run", "searcher", "Find cats")
    assert result.code == 0, result
    assert "the run completed" in result.out
    assert result.out.endswith("completed:\nFound cats.\n")


@pytest.mark.usefixtures("open_gate")
def test_runs_are_listed_and_found_by_the_beginning_of_their_ids(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """A part of the id is enough if it is unique."""
    run, _ = start_run(midrun_at_server, "searcher"), start_run(midrun_at_server, "searcher")
    listing = midrun("ls", "--agent", "searcher", "--phase", "completed")
    assert run in listing.out
    assert "Find cats" in listing.out
    assert run in midrun("ls", "--search", "found CATS").out
    assert run in midrun_at_server("ls", "--search", "found CATS").out
    assert "no matching runs" in midrun("ls", "--search", "zebras").out
    assert run in midrun("show", run[4:12]).out
    assert run in midrun("completion", "runs").out.split()
    many = midrun("show", "run_")
    assert (many.code, "type more of the id" in many.err) == (2, True)


def test_ls_and_show_name_the_parent_of_a_child_run(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "boss", "Lead")
    rows = [line for line in midrun("ls", "--agent", "aide").out.splitlines() if run in line]
    (row,) = rows
    assert row.endswith(f"Help  part of {run}")
    assert f"parent   {run}\n" in midrun("show", row.split()[0]).out
    assert "parent" not in midrun("show", run).out


def test_files_are_sent_and_artifacts_are_listed_and_saved(
    midrun_at_server: CommandRunner, midrun_at_store: CommandRunner, tmp_path: Path
) -> None:
    """The name of an artifact cannot lead out of the folder."""
    picture = tmp_path / "a.png"
    picture.write_bytes(b"PNG")
    sent = ("run", "painter", "Draw", "--file", str(picture), "--json")
    run = cast("str", midrun_at_server(*sent).values[-1]["run_id"])
    assert "with the file “a.png”" in midrun_at_store("feed", run).out
    for midrun in (midrun_at_store, midrun_at_server):
        assert "plan.md  version 2  text/markdown" in midrun("artifacts", run).out
        folder = tmp_path / f"out{midrun is midrun_at_server}"
        assert midrun("artifacts", run, "--save", str(folder)).code == 0
        refused = midrun("artifacts", run, "--save", str(folder / "plan.md"))
        assert "Cannot use it: File exists. Check the path" in refused.err
        saved = {path.name: path.read_text() for path in folder.iterdir()}
        assert saved == {"plan.md": "# Two", "_.._etc": "x"}
    missing = midrun_at_server("run", "painter", "Draw", "--file", "nowhere.png")
    assert "Cannot read the file nowhere.png" in missing.err


def test_answer_becomes_the_result_of_the_tool(
    midrun: CommandRunner, midrun_at_server: CommandRunner, tmp_path: Path
) -> None:
    run = start_run(midrun_at_server, "asker", "Ask me")
    assert f"{run}-a1  Which?" in midrun("asks").out
    sample = tmp_path / "red.png"
    sample.write_bytes(b"PNG")
    result = midrun("answer", f"{run}-a1", "red", "--file", str(sample))
    assert (result.code, "in the journal" in result.out) == (0, True)
    feed = midrun("feed", run, "--follow").out
    assert "“red”, with the file “red.png”" in feed
    assert "said “red!”" in feed


def test_a_second_approve_is_refused(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """The id of the run is enough while it has one open ask."""
    run = start_run(midrun_at_server, "sender", "Send it")
    asks = midrun("asks").out
    assert f"{run}-a1  " in asks
    assert "Approve “Send”? (to: “ada”)" in asks
    refused = midrun("answer", run, "yes")
    assert (refused.code, "use approve or decline" in refused.err) == (1, True), refused.err
    assert midrun("approve", run, "--args", '{"to": "bob"}').code == 0
    assert "sent to bob" in midrun("feed", run, "--follow").out
    again = midrun("approve", f"{run}-a1")
    assert again.code == 1
    assert "the ask is closed: " in again.err
    assert run in again.err


def test_decline_gives_the_reason_to_the_agent(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "sender", "Send it")
    assert midrun("decline", run, "not to her").code == 0
    assert "not to her" in midrun("feed", run, "--follow").out


@pytest.mark.usefixtures("open_gate")
def test_resume_needs_a_higher_cap_if_a_cap_is_reached(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "capped")
    refused = midrun("resume", run)
    assert (refused.code, "cap_reached" in refused.err) == (1, True)
    assert "such as steps=20" in midrun("resume", run, "--cap", "steps").err
    assert "Raise cap: Adds 10 turns" in midrun("show", run).out
    assert "(resume --cap steps=11)" in midrun("show", run).out
    resumed = midrun("resume", run, "--cap", "steps=5")
    assert resumed.code == 0
    assert "midrun worker" not in resumed.out  # the server drives the run
    assert "the run completed" in midrun("feed", run, "--follow").out


def test_cancel_writes_a_report_and_later_controls_are_refused(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "sender", "Send it")
    assert midrun("cancel", run, "--undo-all", "--reason", "enough").code == 0
    assert "The run is cancelled." in midrun("report", run).out
    result = midrun("pause", run)
    assert result.code == 1
    assert "it was cancelled by" in result.err


def test_pause_prints_a_receipt_and_redirect_applies_the_instruction(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "sender", "Send it")
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
            "acknowledgement": "",
        }
    ]
    assert midrun("redirect", run, "Never mind").code == 0
    assert "received the new instruction “Never mind”" in midrun("feed", run, "--follow").out


def test_say_acknowledges_a_message_to_a_paused_run(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """The message is held until the run is resumed."""
    run = start_run(midrun_at_server, "asker", "Ask me")
    assert midrun("pause", run).code == 0
    assert "Noted — " in midrun("say", run, "How far are you?").out
    assert midrun("cancel", run).code == 0
    assert "How far are you?" in midrun("feed", run, "--follow").out  # it is returned


def test_halt_is_set_and_lifted(midrun: CommandRunner) -> None:
    scope = ("--scope", "agent:missing")
    assert midrun("halt", "fire drill", *scope).code == 0
    assert midrun("lift", *scope).code == 0
    assert midrun("lift", *scope).code == 1


def test_no_command_prints_control_characters(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """`export` prints the journal unchanged, as JSON."""
    run = start_run(midrun_at_server, "evil", "Be \x1b[31mred")
    for arguments in (["ls"], ["show", run], ["feed", run], ["report", run], ["attach", run]):
        for flags in ([], ["--json"]):
            result = midrun(*arguments, *flags)
            assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(result.out + result.err), (
                arguments
            )
    assert json.loads(midrun("export", run).out.splitlines()[0])["entry"]["task"]
    assert "⟨U+009B⟩2J" in midrun("attach", run).out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "run_nobody"], "run_nobody"),
        (["show", "run_nobody"], "midrun ls"),
        (["answer", "missing-a1", "x"], "missing"),
    ],
)
def test_errors_have_advice_and_a_stable_code_for_programs(
    midrun: CommandRunner, arguments: list[str], expected: str
) -> None:
    result = midrun(*arguments)
    assert (result.code, expected in result.err) == (1, True), result.err
    (value,) = midrun(*arguments, "--json").values
    assert set(value) == {"error", "text"}


def test_ls_without_matches_mentions_the_filter(midrun: CommandRunner) -> None:
    assert "no matching runs; list all: midrun ls" in midrun("ls", "--agent", "missing").out


@pytest.mark.usefixtures("open_gate")
def test_a_refused_control_is_printed_as_json_with_reason_and_phase(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "searcher")
    refused = midrun("pause", run, "--json")
    (value,) = refused.values
    assert refused.code == 1
    assert (value["error"], value["reason"]) == ("control_refused", "is_completed")
    assert (value["run_id"], value["control"], value["phase"]) == (run, "pause", "completed")
    (fork_error,) = midrun("fork", run, "--at", "900", "--json").values
    assert (fork_error["reason"], fork_error["phase"]) == ("not_a_boundary", "completed")
    assert "the journal ends at" in str(fork_error["text"])


def test_feed_without_new_entries_ends(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "asker", "Ask me")
    (view,) = midrun("show", run, "--json").values
    assert midrun("feed", run, "--after", str(view["seq"])) == CommandResult(0, "", "")


def test_the_error_for_a_wrong_token_names_options_of_the_command(
    server: tuple[Path, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says where the token came from; it does not mention the function `connect`."""
    monkeypatch.setenv("MIDRUN_TOKEN", "not-the-one-of-the-server")
    result = CommandRunner(capsys, "--url", server[1])("ls")
    assert (result.code, "not accept the token in MIDRUN_TOKEN" in result.err) == (1, True)
    assert "connect(" not in result.err
    monkeypatch.delenv("MIDRUN_TOKEN")
    result = CommandRunner(capsys, "--url", server[1])("ls")
    assert (result.code, "needs a token. Pass --token-file" in result.err) == (1, True)


@pytest.mark.parametrize("command", [("ls",), ("serve", "app.py")])
def test_a_token_is_not_taken_from_the_command_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every user of the machine could read it in the list of processes."""
    result = CommandRunner(capsys)(*command, "--token", TOKEN)
    assert result.code == 2
    assert "use --token-file FILE, or set MIDRUN_TOKEN" in result.err
    assert "--token TOKEN" not in CommandRunner(capsys)(command[0], "--help").out


@pytest.mark.parametrize("text", ["", None])
def test_a_token_file_without_a_token_is_named(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error does not say that the token is wrong."""
    file = tmp_path / "absent"
    if text is not None:
        file.write_text(text)
    result = CommandRunner(capsys, "--url", "http://127.0.0.1:1", "--token-file", str(file))(
        "ls"
    )
    assert result.code == 2
    assert f"--token-file {file}: Cannot read the token" in result.err


@pytest.mark.slow
def test_a_client_finds_the_token_of_a_server_in_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is stored elsewhere; a command in another folder does not find it."""
    process_runner = ProcessRunner(tmp_path)  # the server runs in this folder
    with process_runner.start("serve", f"{APP}:searcher", "--port", "0") as server:
        url = read_until(server, "http://").partition("/#code=")[0]
        assert CommandRunner(capsys, "--url", url)("ls").code == 0
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        result = CommandRunner(capsys, "--url", url)("ls")
        server.terminate()
    assert (result.code, "needs a token. Pass --token-file" in result.err) == (1, True)
    assert not list(tmp_path.rglob("*token*"))


@pytest.mark.slow
def test_showing_a_run_of_a_server_is_not_recorded_as_an_export(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The audit log of the server lists requests for a whole journal."""
    processes = ProcessRunner(tmp_path, MIDRUN_TOKEN=TOKEN)
    with serve_app(processes) as url:
        shown = processes.run("run", "asker", "Ask me", "--json", "--url", url)
        assert (shown.code, shown.values[-1]["reason"]) == (75, "question")
        run = str(shown.values[-1]["run_id"])
        assert processes.run("export", run, "--url", url).code == 0
    assert capfd.readouterr().err.count('"action": "export"') == 1


# ── controls ─────────────────────────────────────────────────────────────────


def start_searching_run(midrun: CommandRunner, midrun_at_server: CommandRunner) -> str:
    """Start a run whose search waits for the gate, and return its id."""
    run = start_run(midrun_at_server, "aside", "Ask me")
    assert midrun("answer", run, "blue").code == 0
    wait_for_view(midrun, run, in_flight="search")
    return run


def wait_for_view(midrun: CommandRunner, run: str, **wanted: str) -> dict[str, object]:
    """Read the view of a run until it has the given call or phase; return it."""
    while True:  # pytest has a timeout
        (view,) = midrun("show", run, "--json").values
        in_flight = cast("list[dict[str, str]]", view.get("in_flight", []))
        if (
            wanted.get("in_flight") in {None, *(call["tool"] for call in in_flight)}
            and wanted.get("phase", view["phase"]) == view["phase"]
        ):
            return view


def test_take_over_write_and_hand_back(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "aside", "Ask me")
    assert midrun("take-over", run).code == 0
    assert "Hand back" in midrun("show", run).out
    assert "(hand-back)" in midrun("show", run).out
    assert midrun("write", run, "It is a cat.").code == 0
    refused = midrun("resume", run)
    assert (refused.code, "taken_over" in refused.err) == (1, True)
    assert f"midrun hand-back {run}" in refused.err
    result = midrun("hand-back", run, "Go on")
    assert result.code == 0, result.err
    assert "It is a cat." in midrun("feed", run).out
    assert midrun("cancel", run).code == 0


@pytest.mark.usefixtures("open_gate")
def test_use_tool_calls_a_tool_of_the_agent(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """At a store, `--app` names the file that defines the agent."""
    run = start_run(midrun_at_server, "aside", "Ask me")
    assert midrun("take-over", run).code == 0
    app = ("--app", str(APP)) if "--store" in midrun.target else ()
    if app:
        unknown = midrun("use-tool", run, "search", '{"q": "cats"}')
        assert (unknown.code, "unknown_agent" in unknown.err) == (1, True)
    broken = midrun("use-tool", run, "search", "{", *app)
    assert "arguments of the call must be JSON, such as" in broken.err
    bad = midrun("use-tool", run, "search", '{"z": 1}', *app)
    assert (bad.code, "bad_arguments" in bad.err) == (1, True), bad.err
    assert midrun("use-tool", run, "search", '{"q": "dogs"}', *app).code == 0
    wait_for_view(midrun, run, phase="paused")
    assert "all about dogs" in midrun("feed", run).out
    assert midrun("cancel", run).code == 0


def test_withdraw_removes_a_pending_redirect(
    midrun: CommandRunner, midrun_at_server: CommandRunner, gate: Path
) -> None:
    """By its seq, or the newest one."""
    run = start_searching_run(midrun, midrun_at_server)
    nothing = midrun("withdraw", run)
    assert (nothing.code, "not_pending" in nothing.err) == (1, True)
    (first,) = midrun("redirect", run, "Dogs", "--json").values
    assert midrun("redirect", run, "Birds").code == 0
    assert midrun("withdraw", run, str(first["seq"])).code == 0
    shown = midrun("show", run).out
    assert ("Birds" in shown, "Dogs" in shown) == (True, False)
    assert midrun("withdraw", run).code == 0
    assert "Birds" not in midrun("show", run).out
    gate.touch()
    assert "the run completed" in midrun("feed", run, "--follow").out


def test_drop_frame_drops_a_held_topic(
    midrun: CommandRunner, midrun_at_server: CommandRunner, gate: Path
) -> None:
    run = start_run(midrun_at_server, "aside", "Ask me")
    nothing = midrun("drop-frame", run)
    assert (nothing.code, "no_such_frame" in nothing.err) == (1, True)
    assert midrun("say", run, "How far?").code == 0
    wait_for_view(midrun, run, in_flight="search")
    assert "aside    f1  Ask me" in midrun("show", run).out
    assert "drop-frame" in midrun("show", run).out
    wrong = midrun("resume-frame", run, "f9")
    assert (wrong.code, "no_such_frame" in wrong.err) == (1, True)
    assert midrun("drop-frame", run).code == 0
    gate.touch()
    wait_for_view(midrun, run, phase="completed")


def test_force_pause_ends_a_pause_that_waits_for_a_call(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    """The outcome of the call is unknown then."""
    run = start_searching_run(midrun, midrun_at_server)
    assert midrun("pause", run).code == 0
    forced = midrun("force-pause", run, "--json")
    assert forced.values[0]["control"] == "force_pause"
    assert forced.values[0]["phase"] == "paused"
    assert midrun("cancel", run).code == 0


@pytest.mark.usefixtures("open_gate")
def test_raise_cap_accepts_the_names_of_caps_only(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "capped")
    assert midrun("raise-cap", run, "steps=7").code == 0
    assert "steps: 1 of 7" in midrun("show", run).out
    for typo in ("actor=5", "staps=9"):
        result = midrun("raise-cap", run, typo)
        assert (result.code, "the caps are: steps" in result.err) == (2, True), result.err


@pytest.mark.usefixtures("open_gate")
def test_fork_continues_a_completed_run_in_a_new_run(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "searcher")
    (receipt,) = midrun("fork", run, "Now dogs", "--json").values
    assert (receipt["of"], receipt["control"]) == (run, "fork")
    assert receipt["run_id"] != run
    assert "Now dogs" in midrun("feed", str(receipt["run_id"]), "--follow").out
    entries = midrun("feed", run, "--json").values
    call_starts = [entry["seq"] for entry in entries if entry["kind"] == "CallStarted"]
    result = midrun("fork", run, "--at", str(call_starts[-1]))
    assert (result.code, "not_a_boundary" in result.err) == (1, True), result.err


def test_feed_follow_ends_with_the_exit_code_of_the_run(
    midrun: CommandRunner, midrun_at_server: CommandRunner
) -> None:
    run = start_run(midrun_at_server, "failing")
    followed = midrun("feed", run, "--follow")
    assert (followed.code, "no words after" in followed.out) == (1, True)
    (view,) = midrun("show", run, "--json").values
    assert midrun("feed", run, "--follow", "--after", str(view["seq"])).code == 1
    assert midrun("cancel", run).code == 0
    assert midrun("feed", run, "--follow").code == 3


async def _leave_residue(store: str) -> str:
    drafts = UndoableDrafts()
    drafts.failures_left["a"] = (
        2 * UNDO_ATTEMPTS
    )  # an undo of an earlier test may be retried here, too
    agent = drafts.agent(Use("write", name="a"), Use("slow", name="x"))
    with anyio.fail_after(60):
        async with Midrun(store, agents=[agent], outside=make_fast_environment()) as local:
            run = await local.start("actor", "go")
            await drafts.controllable_tools.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            return run.id


def test_accept_residue_and_retry_undo_are_offered_while_there_is_residue(
    midrun: CommandRunner, server: tuple[Path, str]
) -> None:
    run = anyio.run(_leave_residue, f"sqlite:///{server[0]}/runs.db")
    shown = midrun("show", run).out
    assert "Retry undo: Tries again to undo 1 call.  (retry-undo)" in shown
    assert "accept-residue" in shown
    assert midrun("accept-residue", run).code == 0
    again = midrun("accept-residue", run)
    assert (again.code, "no_residue" in again.err) == (1, True)
    assert "accept_residue," not in again.err
    assert midrun("retry-undo", run).code == 0
