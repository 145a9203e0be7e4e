"""The demo's tools, each by itself."""

from email import message_from_string
from pathlib import Path

import anyio
import pytest

from midrun import NOT_DONE, Call
from midrun.core.values import Json
from midrun.demo.agents import _check_claim
from midrun.demo.analysis import find_themes
from midrun.demo.files import DemoFiles
from midrun.demo.notes import best_sentences, find_answer, load_library, read_note, search_notes


def call(key: str = "k1", *, run: str = "run_a", progress: Json = None) -> Call:
    """Return a call whose notes and saves go nowhere."""
    return Call(
        key=key,
        original=key,
        run_id=run,
        epoch=1,
        attempt=1,
        progress=progress,
        saver=lambda _: None,
        noter=lambda _: None,
    )


# ── the library ──────────────────────────────────────────────────────────────────────────────


def test_the_library_is_of_an_invented_town_and_each_note_short() -> None:
    """Nobody should take its figures for facts."""
    assert len(load_library()) == 16
    for note in load_library().values():
        assert "an invented town" in note.source
        assert 150 <= len(note.body.split()) <= 400


@pytest.mark.parametrize(
    ("query", "name", "words"),
    [
        ("How hot did it get?", "heat-survey", "46 °c"),
        ("What does a trench cost?", "prices", "1,150 crowns"),
        ("who is Mr Osei", "bucket-brigade", "bakery"),
        ("how much water does a young tree need?", "watering", "sixty litres"),
        ("Add a paragraph on salt", "salt-and-wind", "salt"),
    ],
)
def test_a_search_finds_the_note_and_its_sentence(query: str, name: str, words: str) -> None:
    """What people ask, in their words."""
    hit = search_notes(query)[0]
    assert hit.name == name
    assert words in hit.sentence.lower()


def test_a_search_for_what_is_not_there_finds_nothing() -> None:
    """No guess is better than a bad one."""
    assert search_notes("penguins") == []
    assert search_notes("") == []


async def test_a_note_that_does_not_exist_is_refused_with_those_that_do() -> None:
    """A real model mistypes names."""
    assert (await read_note("prices")).startswith("# What a street tree costs")
    with pytest.raises(LookupError, match="there are: ash-dieback"):
        await read_note("penguins")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("How hot did it get?", "46 °C"),
        ("How much does a field maple cost?", "field maple 260"),
        ("What do the traders want?", "against works in July"),
        ("Which penguins swim under the ice in July?", None),
        ("What is it?", None),
    ],
)
def test_an_answer_has_to_do_with_the_question(question: str, words: str | None) -> None:
    """One word in common is not enough, unless there is only one."""
    found = find_answer(question, [hit.name for hit in search_notes(question)])
    assert (found is None) == (words is None)
    if found is not None and words is not None:
        assert words in found[1]


def test_best_sentences_come_in_the_order_of_the_note() -> None:
    """They are read as a paragraph."""
    note = load_library()["watering"]
    found = best_sentences(note, "volunteers lost trees in a dry June", 3)
    assert found == sorted(found, key=note.sentences.index)
    assert len(found) == 3


def test_the_checker_compares_figures_with_the_nearest_sentence() -> None:
    """The wrong figure of the draft is found by looking, not by knowing."""
    assert _check_claim("A connected trench costs 1,150 crowns for each tree", "prices")[0]
    holds, said = _check_claim("A connected trench costs 1,510 crowns for each tree", "prices")
    assert not holds
    assert "1,150" in said
    assert not _check_claim("Penguins like trees", "")[0]


# ── the analysis ─────────────────────────────────────────────────────────────────────────────


def test_the_analysis_finds_the_same_with_and_without_a_pause() -> None:
    """What was saved is where it goes on, and the result does not show it."""
    saved: list[Json] = []
    whole = call()
    object.__setattr__(whole, "saver", saved.append)
    found = find_themes(whole, rounds=20)
    assert len(saved) == 2
    assert find_themes(call(progress=saved[0]), rounds=20) == found
    assert all(name in str(found) for name in load_library())
    assert all(0 <= float(str(theme["sure"])) <= 1 for theme in found)


# ── the papers ───────────────────────────────────────────────────────────────────────────────


async def test_an_undo_restores_the_text_from_before(tmp_path: Path) -> None:
    """Also of a section that replaced another; and twice is once."""
    papers = DemoFiles(tmp_path)
    await papers._write(call("1"), "Cost", "Too much.")
    first = papers.draft_path("run_a").read_text()
    result = await papers._write(call("2"), "Cost", "Just right.")
    assert result["sections"] == ["Cost"]
    again = await papers._write(call("2"), "Cost", "Just right.")
    assert again == result, "a call that is made again after a crash changes nothing"
    await papers._unwrite(call("2"), {}, None)
    await papers._unwrite(call("2"), {}, None)
    assert papers.draft_path("run_a").read_text() == first == "## Cost\n\nToo much.\n"
    await papers._unwrite(call("never made"), {}, None)
    await papers._unwrite(call("1"), {}, None)
    assert not papers.draft_path("run_a").exists()
    assert await papers._read(call()) == ""


async def test_a_lock_is_for_one_run_and_released_by_its_holder(tmp_path: Path) -> None:
    """Nobody else's release takes it away."""
    papers = DemoFiles(tmp_path)
    await papers._lock(call("1"))
    await papers._lock(call("1"))
    with pytest.raises(RuntimeError, match="locked by run_a"):
        await papers._lock(call("2", run="run_b"))
    await papers._unlock(call("2", run="run_b"), {}, None)
    with pytest.raises(RuntimeError):
        await papers._lock(call("2", run="run_b"))
    await papers._unlock(call("1"), {}, None)
    await papers._lock(call("2", run="run_b"))
    left = [path.name async for path in anyio.Path(tmp_path).iterdir()]
    assert left == ["briefing.lock"]


async def test_a_mail_carries_the_draft_and_is_found_again_by_its_key(tmp_path: Path) -> None:
    """After a crash nobody has to be asked whether it left."""
    papers = DemoFiles(tmp_path)
    assert await papers._was_sent(call(), {}) is NOT_DONE
    await papers._write(call("0"), "Bäume", "Fünfzehn.")
    sent = await papers._send(call(), "ada@example.org", "Trees", "See below.")
    assert await papers._was_sent(call(), {}) == sent
    (file,) = (tmp_path / "outbox").iterdir()
    mail = message_from_string(file.read_text())
    assert (mail["To"], mail["Subject"]) == ("ada@example.org", "Trees")
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert "See below.\n\n## Bäume\n\nFünfzehn." in body.decode()
