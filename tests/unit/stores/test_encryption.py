"""Encryption at rest: no text in the database, rotation, missing keys, changed ciphertext."""

import os
from base64 import b64encode
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import apsw
import pytest
from msgspec.structs import replace

from midrun import Agent, File, Midrun, Run, tool
from midrun.core.ids import RunId, Seq
from midrun.core.values import Message
from midrun.errors import (
    JournalCorrupt,
    JournalKeyMissing,
    Misconfigured,
    StoreEncrypted,
)
from midrun.models import ScriptedModel, Use
from midrun.ports.push_targets import HasPushTargets, PushTarget
from midrun.ports.relay import open_relay
from midrun.stops import MaxSteps
from midrun.stores.chunks import SHARED_MIN_BYTES
from midrun.stores.encryption import (
    PayloadCipher,
    format_key,
    make_key_id,
    parse_keys,
    read_decrypted_lines,
)
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.urls import open_store
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    make_head,
    make_started,
)
from tests.support.conditions import wait_until
from tests.support.sqlite_kill import is_killed_at_statement
from tests.support.store_choice import get_store_url
from tests.support.store_dump import dump_store, find_texts

OLD_KEY, NEW_KEY, OTHER_KEY = b"o" * 32, b"n" * 32, b"x" * 32
SECRET = "the patient Quillfeather has gallstones"
BOTH_STORES = pytest.mark.parametrize(
    "store_path", ["sqlite", pytest.param("postgres", marks=pytest.mark.once)], indirect=True
)


@tool(artifact="letter.md")
async def write_letter(text: str) -> str:
    """Write a letter."""
    return f"{text}, and the letter says so"


def make_clerk() -> Agent:
    """Return an agent whose replies, arguments, results and artifacts have the secret."""
    replies: list[str | Use] = [Use("write_letter", text=SECRET), f"Done: {SECRET}."]
    return Agent(
        "clerk",
        instructions=f"Remember that {SECRET}.",
        tools=[write_letter],
        model=ScriptedModel(replies * 3),
    )


def make_note(key: bytes) -> bytes:
    """Return the body of a file, another one for each key: equal bodies are stored once."""
    return f"In a file: {SECRET} ({make_key_id(key)})".encode()


async def run_with_secrets(url: str, keys: list[bytes], agent: Agent, thread: str = "") -> str:
    """Complete a run whose task, file and messages have the secret; return its id."""
    note = File("note.txt", "text/plain", make_note(keys[0]))
    async with Midrun(url, agents=[agent], encryption_keys=keys) as midrun:
        run = await midrun.start(agent, f"{SECRET}?", files=[note], thread=thread or None)
        await run.until("completed")
        await check_content(midrun, run)
        return run.id


async def check_content(midrun: Midrun, run: Run) -> None:
    """Check that a process with the keys has the whole content."""
    view = await run.view()
    assert (view.task, view.output) == (f"{SECRET}?", f"Done: {SECRET}.")
    (row,) = [row for row in await list_rows(midrun) if row[0] == run.id]
    assert row[1] == f"{SECRET}?"
    assert await midrun.verify(run.id)


async def list_rows(midrun: Midrun) -> list[tuple[str, str]]:
    """Return the runs of the list with their tasks."""
    return [(view.run_id, view.task) for view in (await midrun.runs()).items]


@BOTH_STORES
async def test_no_text_of_a_run_is_in_the_database(
    store_path: Path, request: pytest.FixtureRequest
) -> None:
    """Task, messages, arguments, results, files, rows, index, push targets, log of writes."""
    on_postgres = store_path.with_suffix(".url").exists()
    postgres = request.getfixturevalue("postgres") if on_postgres else None
    url = get_store_url(store_path)
    kept = await open_store(url)  # keeps the write-ahead log from being removed
    run = await run_with_secrets(url, [OLD_KEY], make_clerk(), thread="t")
    target = PushTarget(id="a", body=SECRET.encode())
    encrypted = await open_store(url, encryption_keys=[OLD_KEY])
    assert isinstance(encrypted, HasPushTargets)
    await encrypted.push_targets().put_target(RunId(run), target)
    assert await encrypted.push_targets().list_targets(RunId(run)) == [target]
    await encrypted.close()
    assert isinstance(kept, HasPushTargets)
    with pytest.raises(JournalKeyMissing, match=make_key_id(OLD_KEY)):
        await kept.push_targets().list_targets(RunId(run))
    dump = dump_store(store_path, postgres)
    assert find_texts(dump, SECRET) == []
    plain_names = [word for word in ("clerk", make_key_id(OLD_KEY)) if word.encode() in dump]
    if on_postgres:  # bytes are in hex
        assert b"clerk" in dump
    else:
        assert plain_names == ["clerk", make_key_id(OLD_KEY)]
    # The search finds the names, which are not encrypted, and no text.
    async with Midrun(url, encryption_keys=[OLD_KEY]) as midrun:
        assert [view.run_id for view in (await midrun.runs(search="clerk")).items] == [run]
        assert not (await midrun.runs(search="quillfeather")).items
        body = make_note(OLD_KEY)
        file = await (await midrun.get(run)).file(sha256(body).hexdigest())
        assert file.data == body
    await kept.close()


async def test_the_check_would_find_a_text(store_path: Path) -> None:
    """Without a key, the same search of the same files finds the text in four forms."""
    url = get_store_url(store_path)
    kept = await open_store(url)
    agent = make_clerk()
    async with Midrun(url, agents=[agent]) as midrun:
        await (await midrun.start(agent, SECRET)).until("completed")
    found = find_texts(dump_store(store_path, None), SECRET)
    assert {"text", "word", "word in the index"} <= set(found)
    await kept.close()


@BOTH_STORES
async def test_without_its_key_a_run_is_listed_and_verified_but_not_read(
    store_path: Path,
) -> None:
    """The errors name the key. Nothing is lost: with the key, all is as before."""
    url = get_store_url(store_path)
    run_id = await run_with_secrets(url, [OLD_KEY], make_clerk())
    agent = make_clerk()
    async with Midrun(url, agents=[agent], engine=None) as midrun:
        ((listed, task),) = await list_rows(midrun)
        assert (listed, task) == (run_id, f"[encrypted with key {make_key_id(OLD_KEY)}]")
        run = await midrun.get(run_id)
        for read in (run.view, run.export, run.report):
            with pytest.raises(JournalKeyMissing, match=make_key_id(OLD_KEY)):
                await read()
        verdict = await midrun.verify(run_id)
        assert verdict
        assert verdict.missing_key == make_key_id(OLD_KEY)
        assert "the hash chain is intact" in str(verdict)
        assert f"not checked: it is encrypted with key {make_key_id(OLD_KEY)}" in str(verdict)
        with pytest.raises(StoreEncrypted, match=f"{make_key_id(OLD_KEY)}, and .* has no key"):
            await midrun.start(agent, "In plain text?")
    with pytest.raises(StoreEncrypted, match=f"has the keys {make_key_id(OTHER_KEY)}"):
        await open_store(url, encryption_keys=[OTHER_KEY])
    async with Midrun(url, encryption_keys=[OLD_KEY]) as midrun:
        await check_content(midrun, await midrun.get(run_id))


@BOTH_STORES
async def test_a_new_key_is_for_new_entries_and_old_ones_stay_readable(
    store_path: Path,
) -> None:
    """Every process gets the new key as its second one first; then it becomes the first."""
    url, agent = get_store_url(store_path), make_clerk()
    first = await run_with_secrets(url, [OLD_KEY, NEW_KEY], agent, thread="t")
    second = await run_with_secrets(url, [NEW_KEY, OLD_KEY], agent, thread="t")
    store = await open_store(url, encryption_keys=[NEW_KEY])
    for run, key in ((first, OLD_KEY), (second, NEW_KEY)):
        lines = [line for line, _ in await store.read_lines(RunId(run))]
        assert all(make_key_id(key).encode() in line for line in lines)
    await store.close()
    async with Midrun(url, agents=[agent], encryption_keys=[NEW_KEY]) as midrun:
        await check_content(midrun, await midrun.get(second))
        with pytest.raises(JournalKeyMissing, match=make_key_id(OLD_KEY)):
            await (await midrun.get(first)).view()
        # The history of the thread cannot be read, and is not silently left out.
        with pytest.raises(JournalKeyMissing, match=make_key_id(OLD_KEY)):
            await midrun.start(agent, "And now?", thread="t")


@pytest.mark.about_sqlite("a process that is killed between two statements")
@pytest.mark.parametrize("words", ["INSERT INTO encryption_keys", "INSERT INTO entries"])
def test_a_process_that_is_killed_while_it_changes_the_key_leaves_a_whole_store(
    tmp_path: Path, words: str
) -> None:
    """Before the new key is noted, and before the first entry with it. Both orders go on."""
    path = tmp_path / "runs.db"

    async def write(keys: list[bytes], seq: int) -> None:
        store = SqliteStore(path, cipher=PayloadCipher(keys))
        if seq:
            await append_message(store, RUN, seq)
        else:
            await create_run(store)
        assert len(await store.read(RUN)) == seq + 1  # with their hash chain
        await store.close()

    anyio.run(write, [OLD_KEY], 0)
    assert is_killed_at_statement(words, partial(anyio.run, write, [NEW_KEY, OLD_KEY], 1))
    anyio.run(write, [OLD_KEY, NEW_KEY], 1)  # a process that is not restarted yet
    anyio.run(write, [NEW_KEY, OLD_KEY], 2)
    db = apsw.Connection(str(path))
    ids = [key_id for (key_id,) in db.execute("SELECT key_id FROM encryption_keys ORDER BY no")]
    db.close()
    assert ids == [make_key_id(OLD_KEY), make_key_id(NEW_KEY)]


@BOTH_STORES
async def test_a_checkpoint_moves_a_run_into_an_encrypted_store_and_out_again(
    store_path: Path, tmp_path: Path
) -> None:
    """It has the lines as they are without encryption, so any store can adopt them."""
    agent = make_clerk()
    async with Midrun(f"sqlite:///{tmp_path}/plain.db", agents=[agent]) as plain:
        run = await plain.start(agent, SECRET, stop=MaxSteps(1))
        await run.until("paused")
        checkpoint = await run.checkpoint()
    url = get_store_url(store_path)
    async with Midrun(url, agents=[agent], engine=None, encryption_keys=[OLD_KEY]) as encrypted:
        moved = await encrypted.resume(checkpoint, caps={"steps": 5})
        lines = [line for line, _ in await encrypted.store.read_lines(moved.id)]
        assert all(b'"enc":' in line for line in lines)
        opened = [line for line, _ in await read_decrypted_lines(encrypted.store, moved.id)]
        assert opened[: len(checkpoint.journal)] == list(checkpoint.journal)
        assert await encrypted.verify(moved.id)


async def test_a_changed_ciphertext_is_corrupt_even_if_the_chain_was_made_again(
    store_path: Path,
) -> None:
    """An attacker with the database but without the key cannot move or change an entry."""
    store = SqliteStore(store_path, cipher=PayloadCipher([OLD_KEY]))
    for run in (RUN, OTHER_RUN):
        await create_run(store, run)
        await append_message(store, run, 1)
    lines = {run: await store.read_lines(run) for run in (RUN, OTHER_RUN)}
    await store.close()
    moved = lines[OTHER_RUN][1][0]
    link = store.chain.make_next_link(lines[RUN][0][1], moved)
    db = apsw.Connection(str(store_path))
    db.execute("DROP TRIGGER entries_do_not_change")
    where = "WHERE seq = 2 AND no = (SELECT no FROM runs WHERE run = ?)"
    db.execute(f"UPDATE entries SET line = ?, hash = ? {where}", (moved, link, RUN))  # noqa: S608
    db.execute("UPDATE runs SET hash = ? WHERE run = ?", (link, RUN))
    db.close()
    store = SqliteStore(store_path, cipher=PayloadCipher([OLD_KEY]))
    with pytest.raises(JournalCorrupt, match="cannot be decrypted"):
        await store.read(RUN)
    assert len(await store.read(OTHER_RUN)) == 2
    await store.close()


async def test_runs_of_a_thread_share_their_encrypted_history(store_path: Path) -> None:
    """A history that grows with each run is stored once."""
    history = tuple(
        Message(role="user", text=f"{number} {SECRET} {number:0400}") for number in range(60)
    )
    store = SqliteStore(store_path, cipher=PayloadCipher([OLD_KEY]))
    for number in range(1, 5):
        entry = replace(make_started(), history=history[: 12 * number + 12])
        await store.create(RunId(f"r{number}"), [entry], head=make_head())
        (record,) = await store.read(RunId(f"r{number}"))
        assert record.entry == entry
    db = apsw.Connection(str(store_path))
    stored = db.execute("SELECT sum(length(body)) FROM chunks").get
    lines = db.execute("SELECT sum(length(line)) FROM entries").get
    db.close()
    plain = sum(len(message.text) for message in history)
    assert SHARED_MIN_BYTES < stored < 2 * plain  # base64; the last run alone has all of it
    assert lines < 2 * plain
    await store.close()


async def test_a_plain_store_can_be_encrypted_from_now_on(store_path: Path) -> None:
    """Older entries stay as they are, because entries are never changed."""
    store = SqliteStore(store_path)
    await create_run(store)
    await store.close()
    store = SqliteStore(store_path, cipher=PayloadCipher([OLD_KEY]))
    await append_message(store, RUN, 1)
    assert [record.seq for record in await store.read(RUN)] == [1, 2]
    (first, _), (second, _) = await store.read_lines(RUN)
    assert (b'"task":"compare"' in first, b'"enc":' in second) == (True, True)
    await store.close()


@pytest.mark.once
async def test_live_text_is_encrypted_on_its_way_through_postgres(postgres: Postgres) -> None:
    """The server writes notifications to its disk."""
    url = postgres.url()
    sender = await open_store(url, encryption_keys=[OLD_KEY])
    receiver = await open_store(url, encryption_keys=[OLD_KEY])
    out, into = open_relay(sender), open_relay(receiver)
    assert out is not None
    assert into is not None
    into.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(out.receive)
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await into.receive())

        tasks.start_soon(receive)
        await wait_until(lambda: bool(out.listeners(RUN)))
        (listener,) = out.listeners(RUN)
        message = b"x" * (out.max_message_bytes - len(SECRET)) + SECRET.encode()
        assert await out.send(listener.name, message)
        await wait_until(lambda: bool(received))
        tasks.cancel_scope.cancel()
    assert received == [message]
    for relay in (out, into):
        relay.close()
    await sender.close()
    await receiver.close()


def test_a_file_of_keys_has_one_key_in_each_line() -> None:
    text = f"# new\n{format_key(NEW_KEY)}  # since November\n\n{format_key(OLD_KEY)}\n"
    assert parse_keys(text) == (NEW_KEY, OLD_KEY)
    for wrong in ("abc", "not base64!", b64encode(os.urandom(16)).decode()):
        with pytest.raises(Misconfigured, match="line 2") as refused:
            parse_keys(f"{format_key(OLD_KEY)}\n{wrong}")
        assert wrong not in str(refused.value)
    with pytest.raises(Misconfigured, match="32"):
        PayloadCipher([b"short"])
    assert format_key(OLD_KEY) not in repr(PayloadCipher([OLD_KEY]))


def test_what_is_not_encrypted_is_returned_unchanged() -> None:
    cipher = PayloadCipher([OLD_KEY])
    line = b'{"at":1,"entry":{"args":{"enc":{"key":"k"}},"kind":"X"},"seq":1,"v":1}'
    assert cipher.decrypt_line(RUN, Seq(1), line) == line
    for broken in (b'{"at":1,"entry":{"enc":1},"seq":1,"v":1}', b'{"at":1,"entry":{"enc":'):
        with pytest.raises(JournalCorrupt):
            cipher.decrypt_line(RUN, Seq(1), broken)
