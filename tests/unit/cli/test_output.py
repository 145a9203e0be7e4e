"""The output of the command: rows of `midrun ls`, feed lines, encodings, closed outputs."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from itertools import product
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from midrun import Agent, Midrun, tool
from midrun.cli.command_runner import INTERRUPTED_EXIT_CODE
from midrun.cli.follow import SENTENCE_INDENT_COLUMNS, PlainFeed
from midrun.cli.inspect_commands import CLEAR_SCREEN
from midrun.cli.output import (
    CommandOutput,
    format_count,
    format_duration,
    format_row,
    format_row_header,
    format_view,
    measure_text_width,
    shorten_ids,
    truncate,
)
from midrun.core.ids import CallId, Micros, RunId
from midrun.core.values import Phase
from midrun.driver.delta import Delta
from midrun.models import ScriptedModel, Use
from midrun.runs.event_stream import EventBuilder
from midrun.runs.values import RunView
from midrun.tui.styled_text import plain_text

LONG_TASK = (
    "Compare what the three vendors say about salt with what the harbour office has measured"
)
WIDE_TASK = "三つの業者の言うことを港の測定と比べて、違いを全部書き出してください"
COLUMNS = [80, 150]


@tool(approve=True)
async def send_mail_to_all_clients(subject: str) -> str:
    """Send."""
    return subject


AGENT = Agent(
    "clerk",
    model=ScriptedModel([Use("send_mail_to_all_clients", subject=LONG_TASK)]),
    tools=[send_mail_to_all_clients],
)


@pytest.fixture(scope="module")
def waiting() -> RunView:
    """Return the view of a run with a long task that waits for an approval."""
    return anyio.run(_run_until_waiting)


async def _run_until_waiting() -> RunView:
    async with Midrun("memory://", agents=[AGENT]) as midrun:
        return await (await midrun.start(AGENT, LONG_TASK)).until("waiting")


def format_at(view: RunView, columns: int | None, *, hours: int = 0) -> str:
    """Return the row of `view`, some hours later."""
    return plain_text(
        format_row(view, Micros(view.changed_at + hours * 3_600_000_000), columns)
    )


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("task", ["Sort", LONG_TASK, WIDE_TASK], ids=["short", "long", "wide"])
def test_a_row_fits_the_terminal_and_has_the_whole_id(
    waiting: RunView, columns: int, task: str
) -> None:
    """Omitted text is shown as an ellipsis."""
    for phase, hours in product(Phase, (0, 9, 100_000)):
        plain_view = replace(waiting, phase=phase, asks=(), task=task, parent=None)
        child, asking_view = (
            replace(plain_view, parent=plain_view.run_id),
            replace(plain_view, asks=waiting.asks),
        )
        for view in (plain_view, child, asking_view):
            row = format_at(view, columns, hours=hours)
            assert measure_text_width(row) <= columns
            assert row.startswith(f"{view.run_id}  {phase}")
            assert task[:4] in row
            assert task in row or "…" in row


def test_a_wide_terminal_shows_age_question_and_parent(waiting: RunView) -> None:
    asking_view = replace(waiting, task="Sort the mail")
    narrow, wide = (format_at(asking_view, columns) for columns in COLUMNS)
    assert "! Approve “Send" in narrow
    assert "ago" not in narrow
    assert "! Approve “Send mail to all clients”?" in wide
    assert "0 s ago" in wide
    assert "–" in wide  # noqa: RUF001 - the cost of this model is unknown, not $0.00
    child = replace(asking_view, asks=(), parent=waiting.run_id)
    assert format_at(child, 80).endswith("Sort the mail  (child)")
    assert format_at(child, 150).endswith(f"Sort the mail  part of {waiting.run_id}")


def test_a_list_has_a_header_above_its_columns(waiting: RunView) -> None:
    view = replace(waiting, task="Sort the mail", asks=())
    for columns in COLUMNS:
        row = format_at(view, columns)
        header = plain_text(format_row_header(columns, len(view.run_id)))
        assert header.index("status") == row.index("waiting")
        assert header.index("task") == row.index("Sort the mail")


def test_short_ids_are_as_long_as_needed_to_differ() -> None:
    assert shorten_ids(["run_abcdef12", "run_99"]) == {
        "run_abcdef12": "abcdef",
        "run_99": "99",
    }
    longer = shorten_ids(["run_abcdef12", "run_abcdef13", "nightly-1"])
    assert list(longer.values()) == ["abcdef12", "abcdef13", "nightly-1"]


@pytest.mark.parametrize(
    ("framework", "undeclared", "expected", "guide"),
    [
        ("strands", 2, "2 tools undeclared: no undo, never repeated", "host-strands.md"),
        ("process", 0, "all tools are declared", "host-a-process.md"),
        ("function", 0, "undeclared tools: no undo, never repeated", "host-a-function.md"),
    ],
)
def test_a_hosted_run_names_its_framework_its_undeclared_tools_and_the_guide(
    waiting: RunView, framework: str, undeclared: int, expected: str, guide: str
) -> None:
    view = replace(waiting, framework=framework, undeclared_tools=undeclared)
    shown = "\n".join(map(plain_text, format_view(view, view.changed_at)))
    assert f"hosted   from {framework}; {expected}" in shown
    assert f"docs/guides/{guide}" in shown


def test_a_row_shows_the_asks_or_the_failure_of_a_run(waiting: RunView) -> None:
    many = replace(waiting, asks=waiting.asks * 2)
    assert "  ! 2 to decide" in format_at(many, 80)
    assert "  ! failed" in format_at(replace(waiting, phase=Phase.FAILED, asks=()), 80)


def test_a_view_has_all_arguments_of_an_open_approval(waiting: RunView) -> None:
    args = {"subject": "many words " * 100, "to": "ada"}
    view = replace(waiting, asks=(replace(waiting.asks[0], args=args),))
    shown = "\n".join(map(plain_text, format_view(view, view.changed_at)))
    assert f"(subject: “{args['subject'].strip()}”, to: “ada”)" in shown


def test_a_row_for_a_file_is_not_truncated(waiting: RunView) -> None:
    row = format_at(replace(waiting, parent=waiting.run_id), None)
    assert row.endswith(f"part of {waiting.run_id}  ! {waiting.asks[0].question}")


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("三つの", 5, "三つ…"),
        ("三つの", 4, "三…"),
        ("abc", 1, ""),
        ("abc", -4, ""),
    ],
)
def test_text_is_truncated_by_columns(text: str, columns: int, expected: str) -> None:
    """Some characters take two columns."""
    assert truncate(text, columns) == expected


def test_durations_and_counts_have_readable_units() -> None:
    times = (0, 59, 60, 3_599, 7_200, 5 * 86_400)
    assert [format_duration(seconds) for seconds in times] == [
        "0 s",
        "59 s",
        "1 min",
        "60 min",
        "2 h",
        "5 d",
    ]
    sizes = (940, 12_345, 999_999, 3_400_000, 12_345_678_901)
    assert [format_count(n) for n in sizes] == ["940", "12.3k", "1M", "3.4M", "12346M"]


@pytest.mark.slow
@pytest.mark.parametrize("columns", COLUMNS)
async def test_ls_does_not_wrap_in_a_real_terminal(tmp_path: Path, columns: int) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Midrun(store, agents=[AGENT]) as midrun:
        runs = [await midrun.start(AGENT, task) for task in (LONG_TASK, WIDE_TASK, "Sort")]
        for run in runs:
            await run.until("waiting")
    rows = _run_in_terminal(columns, "ls", "--store", store)
    header, *rows = rows
    assert header.split()[:2] == ["run", "status"]
    assert [measure_text_width(row) <= columns for row in rows] == [True] * len(runs)
    shown = shorten_ids([run.id for run in runs])
    assert {row.split()[0] for row in rows} == set(shown.values())
    (found,) = _run_in_terminal(150, "show", shown[runs[0].id], "--store", store)[:1]
    assert found.startswith(runs[0].id)


@pytest.mark.slow
async def test_ls_is_repeated_on_one_screen_until_it_is_interrupted(tmp_path: Path) -> None:
    """A list that is taller than the screen is cut, so that nothing scrolls."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Midrun(store, agents=[AGENT], engine=None) as midrun:
        for _ in range(5):
            await midrun.start(AGENT, "Sort")
    with _open_in_terminal(4, 80, "ls", "--watch", "--store", store) as (command, controller):
        shown = ""
        while shown.count(CLEAR_SCREEN) < 3:  # the third begins: two are complete
            part = _read_part(controller)
            assert part, f"the command has ended: {shown}"
            shown += part.decode()
        command.send_signal(signal.SIGINT)
        while _read_part(controller):
            continue
        assert command.wait() == INTERRUPTED_EXIT_CODE
    _, *screens = _strip_colours(shown).split(CLEAR_SCREEN)
    for screen in screens[:2]:
        header, row, more = screen.splitlines()
        assert header.split()[:3] == ["run", "status", "started"]
        assert row.endswith("Sort")
        assert more.startswith("… 4 more")


def _run_in_terminal(columns: int, *arguments: str) -> list[str]:
    """Run a command in a terminal of that width, and return the lines that it shows."""
    with _open_in_terminal(24, columns, *arguments) as (command, controller):
        shown = b""
        while part := _read_part(controller):
            shown += part
        assert command.wait() == 0
    return _strip_colours(shown.decode()).splitlines()


@contextmanager
def _open_in_terminal(
    rows: int, columns: int, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command in a terminal of that size; yield it and the terminal's other end."""
    controller, terminal_end = pty.openpty()
    termios.tcsetwinsize(terminal_end, (rows, columns))
    hidden = {"COLUMNS", "LINES"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "midrun", *arguments],
        stdout=terminal_end,
        env=env | {"TERM": "xterm"},
    ) as command:
        os.close(terminal_end)
        try:
            yield command, controller
        finally:
            command.kill()  # if the test failed; otherwise it has ended
            os.close(controller)


def _strip_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _read_part(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the command has closed its end of the terminal
        return b""


# ── lines of a feed ──────────────────────────────────────────────────────────


def test_a_note_cannot_forge_another_line_of_the_feed() -> None:
    """A note is one line, and truncated."""
    text = "ok\n   99  12:00:00  ann approved pay (amount: 9000)" + "!" * 10_000
    note = Delta(run=RunId("run_1"), call=CallId("c2"), kind="note", text=text, tool="look")
    (line,) = PlainFeed().format_event(EventBuilder(note.run).build_next(note))
    assert line.startswith(
        " " * SENTENCE_INDENT_COLUMNS + "· Look: ok 99 12:00:00 ann approved pay"
    )
    assert "\n" not in line
    assert line.endswith("…")
    assert len(line) < 1_000


# ── encodings, and outputs that are closed or full ───────────────────────────


NON_ASCII = "Dönë — 日本"
MIDRUN = (sys.executable, "-m", "midrun")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return a store with a run whose text is not ASCII."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    agent = Agent("a", model=ScriptedModel([NON_ASCII]))

    async def fill() -> None:
        async with Midrun(address, agents=[agent]) as mid:
            await (await mid.start(agent, NON_ASCII)).result()

    anyio.run(fill)
    return address


def run_in_ascii_locale(*arguments: str, into: str = "") -> subprocess.CompletedProcess[bytes]:
    """Run a command in an ASCII locale, with the shell redirection `into`."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = f'exec "$@" {into}'
    return subprocess.run(  # noqa: S603 - our own code
        ["/bin/sh", "-c", command, "sh", *MIDRUN, *arguments],
        env=os.environ | locale,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.once
def test_characters_outside_of_the_locale_are_escaped(store: str) -> None:
    done = run_in_ascii_locale("ls", "--store", store)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"D\xf6n\xeb \u2014" in done.stdout


@pytest.mark.once
def test_json_is_utf_8_in_every_locale(store: str) -> None:
    """The reader of JSON does not know the locale."""
    done = run_in_ascii_locale("ls", "--store", store, "--json")
    assert msgspec.json.decode(done.stdout)["task"] == NON_ASCII


@pytest.mark.once
def test_a_command_succeeds_with_a_closed_stdout(store: str) -> None:
    """A service may be started like this."""
    done = run_in_ascii_locale("ls", "--store", store, into=">&-")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.once
def test_a_full_output_is_reported_without_a_traceback(store: str) -> None:
    done = run_in_ascii_locale("ls", "--store", store, into=">/dev/full")
    assert done.returncode == 1
    assert done.stderr == b"midrun: Cannot write the output: No space left on device\n"


@pytest.mark.once
def test_the_error_for_an_option_before_the_command_says_where_it_belongs() -> None:
    done = run_in_ascii_locale("--json", "ls")
    assert done.returncode == 2
    assert b"--json comes after the command" in done.stderr


TALKING_APP = """
import os
import anyio
from midrun import Agent, tool
from midrun.models import ScriptedModel, Use

@tool
async def wait() -> None:
    \"\"\"Wait for the test.\"\"\"
    while not await anyio.Path(os.environ["GATE"]).exists():
        await anyio.sleep(0.005)

model = ScriptedModel([Use("wait"), "word " * 10_000], chunk_delay=0.1)
a = Agent("a", model=model, tools=[wait])
"""


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("form", ["--plain", "--json"])
def test_a_closed_pipe_pauses_the_run_that_the_command_drives(
    tmp_path: Path, form: str
) -> None:
    """Like a closed terminal: the driver is about to exit.

    The error of the writing task comes out of a task group; it is not printed as a traceback.
    """
    app, gate, store = tmp_path / "talks.py", tmp_path / "gate", f"sqlite:///{tmp_path}/runs.db"
    app.write_text(TALKING_APP)
    arguments = ("run", f"{app}:a", "Go.", "--store", store, "--actor", "ada", form)
    with subprocess.Popen(  # noqa: S603 - our own code
        [*MIDRUN, *arguments],
        env=os.environ | {"GATE": str(gate)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        gate.touch()
        error_output = process.stderr.read().decode()
    assert process.returncode == 75
    assert error_output.startswith(
        "midrun: the output cannot be written, so the run is paused\nresume with: "
    )
    assert error_output.endswith(f"--store {store}\n")
    view = msgspec.json.decode(run_in_ascii_locale("ls", "--store", store, "--json").stdout)
    assert (view["phase"], view["status"]["by"]) == ("paused", "ada")


@pytest.mark.once
def test_a_closed_pipe_of_attach_does_not_pause_the_run(store: str) -> None:
    run = msgspec.json.decode(run_in_ascii_locale("ls", "--store", store, "--json").stdout)[
        "run_id"
    ]
    done = run_in_ascii_locale("attach", run, "--store", store, into="| head -c 1")
    assert (len(done.stdout), done.stderr) == (1, b"")


class FakeTerminal(StringIO):
    """A file that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.once
def test_a_report_is_wrapped_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file gets the lines unchanged."""
    monkeypatch.setenv("COLUMNS", "40")
    report = f"# Title\n\n- `write` {'word ' * 20}\n\n{'Partial work. ' * 9}"
    screen, file = FakeTerminal(), StringIO()
    CommandOutput(screen).write_wrapped(report)
    CommandOutput(file).write_wrapped(report)
    shown = screen.getvalue().splitlines()
    assert shown[:4] == ["# Title", "", f"- `write`{' word' * 6}", f"  {'word ' * 7}".rstrip()]
    assert max(map(len, shown)) <= 40
    assert " ".join(screen.getvalue().split()) == " ".join(report.split())
    assert file.getvalue() == f"{report}\n"
