"""Commands: what became of what people asked, read from a journal."""

from midrun.core import entries as e
from midrun.core.entries import Entry, Record
from midrun.core.ids import Micros, Seq
from midrun.core.values import Decision
from midrun.server.commands import read_commands

START = e.RunStarted(agent="a", task="t", by="ann")


def _records(*entries: Entry) -> list[Record]:
    """Return a journal in which every entry has a time of its own."""
    return [
        Record(seq=Seq(n), at=Micros(n), entry=entry)
        for n, entry in enumerate((START, *entries), 1)
    ]


def _fates(*entries: Entry) -> list[tuple[str, str]]:
    return [(found.kind, found.status) for found in read_commands(_records(*entries))]


def test_a_pause_is_accepted_until_the_run_is_paused() -> None:
    """The one difference that a surface must never blur."""
    asked = e.PauseRequested(by="ann")
    assert _fates(asked) == [("pause", "accepted")]
    assert _fates(asked, e.RunPaused()) == [("pause", "applied")]


def test_a_pause_that_something_else_overtook_is_not_called_applied() -> None:
    """It was withdrawn, or the run went elsewhere first."""
    asked = e.PauseRequested(by="ann")
    withdrawn = e.PauseWithdrawn(by="bob")
    assert _fates(asked, withdrawn) == [("pause", "withdrawn"), ("resume", "applied")]
    assert _fates(asked, e.CancelRequested(by="bob")) == [
        ("pause", "superseded"),
        ("cancel", "accepted"),
    ]


def test_words_are_applied_or_come_back() -> None:
    """By the seq they were said at, so that two redirects are not mistaken for one another."""
    one, two = e.RedirectRequested(text="1", by="a"), e.RedirectRequested(text="2", by="a")
    applied = e.RedirectApplied(redirect=Seq(3))
    returned = e.RedirectClosed(redirect=Seq(2), why="returned", text="1")
    found = read_commands(_records(one, two, applied, returned))
    assert [(c.text, c.status, c.settled) for c in found] == [
        ("1", "returned", 5),
        ("2", "applied", 4),
    ]


def test_a_message_is_applied_when_it_is_taken_up() -> None:
    """Whether it suspends a thought or not."""
    said = e.MessageReceived(text="?", by="a")
    assert _fates(said, e.MessageTaken(message=Seq(2))) == [("say", "applied")]


def test_the_resumption_that_a_redirect_brings_is_no_command_of_its_own() -> None:
    """Nobody pressed it."""
    entries: list[Entry] = [
        START,
        e.RedirectRequested(text="go", by="ann"),
        e.RunResumed(by="ann"),
    ]
    together = [
        Record(seq=Seq(n), at=Micros(1), entry=entry) for n, entry in enumerate(entries, 1)
    ]
    assert [c.kind for c in read_commands(together)] == ["redirect"]


def test_what_the_runtime_does_by_itself_is_nobodys_command() -> None:
    """A held pause that lets go, a cap that was reached."""
    assert _fates(e.RunResumed(), e.CapReached(stop="x"), e.PauseRequested(why="cap")) == []


def test_a_refused_request_is_kept_with_its_reason() -> None:
    """Whoever asks again hears the same."""
    noted = e.RequestNoted(verdict="is_completed", refused=True, by="ann", request="r")
    (found,) = read_commands(_records(noted))
    assert (found.status, found.problem) == ("failed", "is_completed")


def test_a_decision_is_applied_at_once() -> None:
    """The journal has it, and that is all there is to it."""
    decided = e.AskAnswered(
        ask="a1",  # type: ignore[arg-type]  # an id is a string with a name
        decision=Decision(choice="approve"),
        by="ann",
    )
    assert _fates(decided) == [("answer", "applied")]
