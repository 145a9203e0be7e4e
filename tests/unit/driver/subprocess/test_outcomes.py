"""Outcomes of a tool process: results, errors, questions, and processes that die."""

import json
import os
import socket
from pathlib import Path

import anyio
import pytest

from midrun.agents.file import File
from midrun.core.values import Json
from midrun.driver.subprocess.protocol import (
    Died,
    NotDone,
    QuestionAsked,
    Raised,
    Returned,
    SentFile,
)
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.errors import FileRefused
from tests.unit.driver.subprocess.process_calls import (
    NO_GRACE,
    TIMEOUT_S,
    ignore_callback,
    make_task,
    run_task,
)


async def test_a_tool_gets_its_arguments_and_returns_its_result(zygote: Zygote) -> None:
    """The process parses the arguments, so they have the types of the signature."""
    assert await run_task(zygote, make_task("add", {"a": 2})) == Returned(value=3)
    assert await run_task(zygote, make_task("plain", {"day": "2024-02-29"})) == Returned(
        value="Thursday"
    )


async def test_a_tool_gets_the_facts_of_its_call(zygote: Zygote) -> None:
    """A remote service can refuse a second attempt by the key and the epoch."""
    outcome = await run_task(zygote, make_task("facts", progress={"page": 4}))
    assert outcome == Returned(value=["k1", "run_1", 3, 2, {"page": 4}])


async def test_a_tool_shows_files_and_returns_one(zygote: Zygote, tmp_path: Path) -> None:
    """A file that the worker refuses is refused in the tool, which goes on."""
    shown: list[File] = []

    async def show(file: File) -> None:
        if file.name == "large.bin":
            raise FileRefused("Cannot take “large.bin”: ä.")
        shown.append(file)

    problem = tmp_path / "problem"
    with anyio.fail_after(TIMEOUT_S):
        async with zygote.run_process(
            make_task("draw", {"path": str(problem)}),
            save=ignore_callback,
            note=ignore_callback,
            show=show,
            grace=NO_GRACE,
        ) as call:
            outcome = await call.wait_for_outcome()
    assert shown == [File("chart.svg", "image/svg+xml", b"<svg/>")]
    assert problem.read_text() == "Cannot take “large.bin”: ä."
    dot = SentFile("dot.png", "image/png", bytes(range(256)))
    assert outcome == Returned(value="drawn", files=(dot,))


async def test_a_hook_gets_the_call_and_its_arguments(zygote: Zygote) -> None:
    """An undo also gets the result of the call."""
    undone = await run_task(zygote, make_task("undo", [{"a": 2}, 3], "hook"))
    assert undone == Returned(value=["k1", {"a": 2}, 3])
    checked = await run_task(zygote, make_task("check", [{"a": 2}], "hook"))
    assert checked == Returned(value=["k1", {"a": 2}])
    assert await run_task(zygote, make_task("check", [None], "hook")) == NotDone()


async def test_a_tool_process_inherits_no_descriptors_or_signal_handlers(
    zygote: Zygote, platform_name: str, tmp_path: Path
) -> None:
    """A tool must not be able to use a database or a connection of the runtime."""
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - the name says it
        first, second = [
            _fields(await run_task(zygote, make_task("surroundings"))) for _ in range(2)
        ]
    assert first["pid"] == first["session"] == first["group"]
    assert first["imported_in"] == first["zygote"] == second["zygote"]
    assert first["pid"] != second["pid"]
    # Without a parent-death signal, a thread waits for the end of the zygote.
    assert first["threads"] == (1 if platform_name == "Linux" else 2)
    assert first["cwd"] == str(Path.cwd())
    assert first["chance"] != second["chance"]
    assert (first["int"], first["term"], first["blocked"]) == (True, True, [])
    files = first["open"]
    assert isinstance(files, list)
    assert files.count("/dev/null") >= 1  # its standard input
    assert len([name for name in files if name.startswith("socket:")]) == 1
    assert not [name for name in files if "secret" in name or "anon_inode" in name]


def _fields(outcome: object) -> dict[str, Json]:
    assert isinstance(outcome, Returned)
    assert isinstance(outcome.value, dict)
    return outcome.value


async def test_save_returns_when_the_progress_is_stored(zygote: Zygote, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    received: list[Json] = []

    async def save(progress: Json) -> None:
        received.append(progress)
        seen.write_text(json.dumps(received))

    async def note(text: str) -> None:
        received.append(text)

    outcome = await run_task(
        zygote, make_task("save_and_note", {"seen": str(seen)}), save=save, note=note
    )
    assert outcome == Returned(value='[{"page": 1}, "half of it", {"page": 2}]')


async def test_threads_of_a_tool_save_one_after_the_other(zygote: Zygote) -> None:
    """Their messages on the socket must not be mixed."""
    saved: list[Json] = []

    async def save(progress: Json) -> None:
        saved.append(progress)

    outcome = await run_task(zygote, make_task("save_from_threads", {"count": 20}), save=save)
    assert outcome == Returned()
    assert sorted(map(str, saved)) == sorted(map(str, range(1, 21)))


async def test_progress_that_is_not_json_is_refused_in_the_tool(zygote: Zygote) -> None:
    """`save` raises in the tool, and nothing is saved."""
    outcome = await run_task(zygote, make_task("save_badly"), save=_fail_on_save)
    assert isinstance(outcome, Raised)
    assert outcome.kind == "NotJson"
    assert "progress.when" in outcome.message


async def _fail_on_save(progress: Json) -> None:
    pytest.fail(f"saved {progress}")


async def test_an_error_of_the_save_callback_is_raised_to_the_caller(zygote: Zygote) -> None:
    """A driver that lost its lease must end the call."""

    async def save(progress: Json) -> None:
        raise LookupError(progress)

    with pytest.raises(LookupError, match="page"):
        await run_task(zygote, make_task("save_and_note", {"seen": "/nowhere"}), save=save)


async def test_a_tool_that_asks_a_person_ends_with_its_question(zygote: Zygote) -> None:
    """`except Exception` in the tool does not catch the question."""
    outcome = await run_task(zygote, make_task("ask", {"amount": 5}))
    assert outcome == QuestionAsked(question="May I?", data={"amount": 5})


async def test_a_result_that_is_not_json_is_returned_as_a_description(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The call took effect, so it has not failed."""
    effect = tmp_path / "effect"
    outcome = await run_task(zygote, make_task("not_json", {"effect": str(effect)}))
    assert isinstance(outcome, Returned)
    assert effect.exists()
    assert outcome.value is None
    assert "result.when[0] as JSON: datetime.date is not JSON" in outcome.problem
    assert "2024" in outcome.shown


@pytest.mark.parametrize(("size", "text"), [(9 << 20, "x"), (3 << 20, "\n\t\r")])
async def test_a_result_above_the_limit_is_returned_as_a_description(
    zygote: Zygote, size: int, text: str
) -> None:
    """The limit is for the encoded size."""
    outcome = await run_task(zygote, make_task("huge", {"size": size, "text": text}))
    assert isinstance(outcome, Returned)
    assert outcome.value is None
    assert "the limit is 8388608" in outcome.problem
    assert len(outcome.shown) <= 400


async def test_large_arguments_and_results_are_transferred(zygote: Zygote) -> None:
    """Both are many times larger than the buffer of a socket."""
    big = "x" * (3 << 20)
    assert await run_task(zygote, make_task("huge", {"size": 2, "text": big})) == Returned(
        value=big * 2
    )


@pytest.mark.parametrize(
    ("name", "args", "kind", "text"),
    [
        ("fail", {"text": "no such page"}, "LookupError", "no such page"),
        ("fail", {"text": "x" * 9999}, "LookupError", "xxx"),
        ("leave", {"code": 3}, "SystemExit", "3"),
        ("add", {"a": "two"}, "BadArguments", "a"),
        ("NUMBER", {}, "TypeError", "7 is not a function"),
        (
            "nothing",
            {},
            "AttributeError",
            "tests.unit.driver.subprocess.blocking_tools has no nothing",
        ),
        ("no.such.module:fn", {}, "ImportError", "cannot import no.such.module"),
    ],
)
async def test_an_error_is_returned_with_its_type_and_message(
    zygote: Zygote, name: str, args: Json, kind: str, text: str
) -> None:
    """It has no traceback, and a limited length."""
    outcome = await run_task(zygote, make_task(name, args))
    assert isinstance(outcome, Raised)
    assert outcome.kind == kind
    assert text in outcome.message
    assert len(outcome.message) < 500


@pytest.mark.parametrize(
    ("name", "args", "death"),
    [
        ("exit_at_once", {"code": 0}, (0, 0)),
        ("exit_at_once", {"code": 3}, (0, 3)),
        ("crash", {}, (11, 0)),
        ("close_everything", {}, (0, 70)),
    ],
)
async def test_a_process_that_ends_without_an_outcome_has_died(
    zygote: Zygote, name: str, args: Json, death: tuple[int, int]
) -> None:
    """It may have taken effect, so it has not failed."""
    outcome = await run_task(zygote, make_task(name, args))
    assert isinstance(outcome, Died)
    assert (outcome.signal, outcome.exit_code) == death
    assert outcome.started
    assert outcome.detail


async def test_the_outcome_is_not_sent_to_another_connection(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A tool that closes our socket may get its descriptor number for a new connection."""
    address, count = str(tmp_path / "far end"), 20
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(count)
        args = {"address": address, "count": count}
        outcome = await run_task(zygote, make_task("connect_in_its_place", args))
        assert isinstance(outcome, Died)
        assert [_receive(listener) for _ in range(count)] == [b""] * count


def _receive(listener: socket.socket) -> bytes:
    with listener.accept()[0] as connection:
        return connection.recv(1000)


async def test_a_tool_that_writes_to_the_socket_of_its_process_is_killed(
    zygote: Zygote,
) -> None:
    """Its outcome could not be trusted any more."""
    outcome = await run_task(zygote, make_task("write_to_everything"))
    assert isinstance(outcome, Died)
    assert outcome.signal == 9
    assert "not its own" in outcome.detail


async def test_the_outcome_can_be_read_again(zygote: Zygote) -> None:
    """A driver that was cancelled while it waited reads it from the handle."""
    async with zygote.run_process(
        make_task("add", {"a": 2}), save=ignore_callback, note=ignore_callback, grace=NO_GRACE
    ) as running:
        assert running.final_outcome is None
        first = await running.wait_for_outcome()
        assert await running.wait_for_outcome() == first == running.final_outcome
