"""What waits for a listener in another process: joined, bounded, in order."""

from msgspec.structs import replace

from midrun.core.ids import CallId, RunId
from midrun.driver.live import (
    OUTBOX_MAX_CHARS,
    OUTBOX_MAX_DELTAS,
    Delta,
    LiveOutput,
    Outbox,
    unpack_deltas,
)

RUN = RunId("run_1")


def delta(text: str, *, kind: str = "text", run: str = RUN, call: str = "c1") -> Delta:
    """Return a delta."""
    return Delta(run=RunId(run), call=CallId(call), kind=kind, text=text)  # type: ignore[arg-type]  # one of them


def emptied(outbox: Outbox) -> list[Delta]:
    """Return everything that is sent."""
    found: list[Delta] = []
    while outbox:
        found += unpack_deltas(outbox.get_next_message())
        outbox.mark_sent()
    return found


def test_what_a_model_says_in_pieces_is_joined() -> None:
    """A datagram for each token would cost more than the token."""
    outbox = Outbox(1000)
    for word in ("a ", "b ", "c"):
        outbox.add(delta(word))
    assert emptied(outbox) == [delta("a b c")]


def test_runs_that_speak_at_once_are_joined_each_on_its_own() -> None:
    """However they are interleaved."""
    outbox = Outbox(10_000)
    for word in ("a", "b"):
        for run in ("run_1", "run_2"):
            outbox.add(delta(word, run=run))
    assert emptied(outbox) == [delta("ab", run="run_1"), delta("ab", run="run_2")]


def test_what_is_not_the_same_saying_is_not_joined() -> None:
    """Two notes are two lines, and thinking is not text."""
    said = [
        delta("a"),
        delta("b", kind="thinking"),
        delta("c"),
        delta("d", call="c2"),
        delta("e", kind="note"),
        delta("f", kind="note"),
        delta("", kind="not_responding"),
    ]
    outbox = Outbox(10_000)
    for one in said:
        outbox.add(one)
    assert emptied(outbox) == said


def test_no_message_is_longer_than_the_limit() -> None:
    """Whatever JSON makes of the text."""
    for text in ("x" * 5000, "\0" * 5000, "é" * 5000, '"' * 5000):
        outbox = Outbox(1000)
        outbox.add(delta(text))
        found: list[Delta] = []
        while outbox:
            assert len(outbox.get_next_message()) <= 1000
            found += unpack_deltas(outbox.get_next_message())
            outbox.mark_sent()
        assert "".join(one.text for one in found) == text


def test_many_small_ones_share_a_message() -> None:
    """Up to what one holds."""
    outbox = Outbox(1000)
    for n in range(20):
        outbox.add(delta(str(n), kind="note"))
    messages = 0
    while outbox:
        assert len(outbox.get_next_message()) <= 1000
        messages += 1
        outbox.mark_sent()
    assert 1 < messages < 10


def test_what_was_not_taken_is_offered_again_and_nothing_is_lost_behind_it() -> None:
    """While one message waits for room, more may be said."""
    outbox = Outbox(1000)
    outbox.add(delta("a"))
    offered = outbox.get_next_message()
    outbox.add(delta("b"))
    assert outbox.get_next_message() == offered
    assert [one.text for one in emptied(outbox)] == ["a", "b"]


def test_a_listener_that_takes_nothing_has_little_waiting() -> None:
    """It loses all of it then, and whoever tells it knows that it has to begin again."""
    outbox = Outbox(60_000)
    for _ in range(1000):
        assert outbox.add(delta("x" * 1000)) == bool(outbox)
        assert outbox._char_count <= OUTBOX_MAX_CHARS + 1000
    for n in range(1000):
        assert outbox.add(delta(str(n), kind="note")) == bool(outbox)
        assert len(outbox._queue) <= OUTBOX_MAX_DELTAS
    assert emptied(outbox)[-1].text == "999"


def test_a_long_opening_does_not_count_against_what_comes_after_it() -> None:
    """Else who comes late to a long reply would lose it and be told all of it, each time."""
    outbox = Outbox(60_000)
    opening = replace(delta("x" * 2 * OUTBOX_MAX_CHARS), opening=True)
    assert outbox.add(opening)
    assert outbox.add(delta("y"))
    first, *rest = emptied(outbox)
    assert first.opening
    assert not any(part.opening for part in rest), "they go on from the first"
    assert "".join(part.text for part in (first, *rest)) == opening.text + "y"


def test_an_opening_replaces_what_was_said_before_it() -> None:
    """So it is not joined to it; what follows is joined to the opening."""
    outbox = Outbox(60_000)
    for one in (delta("b"), replace(delta("ab"), opening=True), delta("c")):
        assert outbox.add(one)
    assert emptied(outbox) == [delta("b"), replace(delta("abc"), opening=True)]


def test_half_a_character_does_not_stop_the_rest() -> None:
    """A tool may note whatever it likes."""
    outbox = Outbox(1000)
    outbox.add(delta("\ud800", kind="note"))
    outbox.add(delta("fine", kind="note"))
    assert [one.text for one in emptied(outbox)] == ["", "fine"]


def test_a_message_that_is_none_of_ours_is_passed_over() -> None:
    """Another version of midrun may be on the same file."""
    good = b'{"run":"run_1","call":"c1","kind":"text","text":"x"}'
    noise = (
        b"\xff\n{}\n[]\n" + b"[" * 100_000 + b'\n{"run":1,"call":"c","kind":"text"}\n\n' + good
    )
    assert [one.text for one in unpack_deltas(noise)] == ["x"]


def test_without_a_relay_nobody_elsewhere_is_told() -> None:
    """A store in memory has nobody elsewhere."""
    live = LiveOutput()
    live.send(delta("x"))
    assert not live.is_watched(RUN)
