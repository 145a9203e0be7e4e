"""The tools of the demo, each on its own."""

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


def make_call(key: str = "k1", *, run: str = "run_a", progress: Json = None) -> Call:
    """Return a call whose notes, saves and artifacts are discarded."""
    return Call(
        key=key,
        original=key,
        run_id=run,
        epoch=1,
        attempt=1,
        progress=progress,
        shower=lambda _: None,
        saver=lambda _: None,
        noter=lambda _: None,
    )


# ── the library ──────────────────────────────────────────────────────────────


def test_each_note_is_short_and_names_an_invented_town() -> None:
    """The figures must not be taken for facts."""
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
    hit = search_notes(query)[0]
    assert hit.name == name
    assert words in hit.sentence.lower()


def test_a_search_without_a_match_returns_nothing() -> None:
    assert search_notes("penguins") == []
    assert search_notes("") == []


async def test_the_error_for_an_unknown_note_lists_the_notes() -> None:
    """A real model misspells names."""
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
def test_an_answer_is_found_only_if_it_matches_the_question(
    question: str, words: str | None
) -> None:
    """One common word is enough only if the question has a single one."""
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


def test_the_fact_check_compares_figures_with_the_most_similar_sentence() -> None:
    """The wrong figure of the draft is not hard-coded."""
    assert _check_claim("A connected trench costs 1,150 crowns for each tree", "prices")[0]
    holds, source = _check_claim(
        "A connected trench costs 1,510 crowns for each tree", "prices"
    )
    assert not holds
    assert "1,150" in source
    assert not _check_claim("Penguins like trees", "")[0]


# ── the analysis ─────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_analysis_has_the_same_result_with_and_without_a_pause() -> None:
    """It continues from the saved progress."""
    saved: list[Json] = []
    whole = make_call()
    object.__setattr__(whole, "saver", saved.append)
    found = find_themes(whole, rounds=20)
    assert len(saved) == 2
    assert find_themes(make_call(progress=saved[0]), rounds=20) == found
    assert all(name in str(found) for name in load_library())
    assert all(0 <= float(str(theme["sure"])) <= 1 for theme in found)


# ── draft, lock and mail ─────────────────────────────────────────────────────


async def test_an_undo_restores_the_previous_draft(tmp_path: Path) -> None:
    """Also for a section that replaced another. A second undo changes nothing."""
    files = DemoFiles(tmp_path)
    await files._write(make_call("1"), "Cost", "Too much.")
    first = files.draft_path("run_a").read_text()
    result = await files._write(make_call("2"), "Cost", "Just right.")
    assert result["sections"] == ["Cost"]
    again = await files._write(make_call("2"), "Cost", "Just right.")
    assert again == result, "a call that is made again after a crash changes nothing"
    await files._unwrite(make_call("2"), {}, None)
    await files._unwrite(make_call("2"), {}, None)
    assert files.draft_path("run_a").read_text() == first == "## Cost\n\nToo much.\n"
    await files._unwrite(make_call("never made"), {}, None)
    await files._unwrite(make_call("1"), {}, None)
    assert not files.draft_path("run_a").exists()
    assert await files._read(make_call()) == ""


async def test_only_the_run_that_holds_the_lock_releases_it(tmp_path: Path) -> None:
    files = DemoFiles(tmp_path)
    await files._lock(make_call("1"))
    await files._lock(make_call("1"))
    with pytest.raises(RuntimeError, match="locked by run_a"):
        await files._lock(make_call("2", run="run_b"))
    await files._unlock(make_call("2", run="run_b"), {}, None)
    with pytest.raises(RuntimeError):
        await files._lock(make_call("2", run="run_b"))
    await files._unlock(make_call("1"), {}, None)
    await files._lock(make_call("2", run="run_b"))
    left = [path.name async for path in anyio.Path(tmp_path).iterdir()]
    assert left == ["briefing.lock"]


async def test_a_mail_has_its_body_and_its_check_finds_it_by_key(tmp_path: Path) -> None:
    """After a crash the check shows whether the mail was sent."""
    files = DemoFiles(tmp_path)
    assert await files._was_sent(make_call(), {}) is NOT_DONE
    text = "See below.\n\n## Bäume\n\nFünfzehn."
    sent = await files._send(make_call(), "ada@example.org", "Trees", text)
    assert await files._was_sent(make_call(), {}) == sent
    (file,) = (tmp_path / "outbox").iterdir()
    mail = message_from_string(file.read_text())
    assert (mail["To"], mail["Subject"]) == ("ada@example.org", "Trees")
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert text in body.decode()
