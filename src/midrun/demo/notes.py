"""The library: sixteen notes about the street trees of an invented town, and a BM25 search."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import log
from typing import Final

from msgspec import Struct

from midrun.agents.tool import tool

K1: Final = 1.4  # BM25: saturation of repeated words
B: Final = 0.6  # BM25: penalty for long notes
TITLE: Final = 3  # weight of a word in the title
HITS: Final = 6
ENOUGH: Final = 1 / 2  # share of a question's words that a sentence must have to answer it

_WORD: Final = re.compile(r"[a-z0-9]+(?:[.,]\d+)*")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9])")
_EVERYDAY: Final = frozenset(
    _WORD.findall(
        "a about all also am an and any are as at be been but by can could did do does for "
        "from get had has have he her his how i if in into is it its just let like many me "
        "more most much my no not of off on one only or our out over please she should so some "
        "such tell than that the their them then there these they this those to too up us use "
        "was we were what when where which who why will with would write you your add include "
        "know mention say section"
    )
)
_SAME: Final = {  # words of questions → words of the notes
    "hot": "heat",
    "hotter": "heat",
    "hottest": "heat",
    "temperature": "heat",
    "degree": "heat",
    "c": "heat",  # of °C
    "warm": "heat",
    "cheap": "cost",
    "expensive": "cost",
    "price": "cost",
    "money": "cost",
    "pay": "cost",
}


class Note(Struct, frozen=True):
    """One note. `name` identifies it; its first sentence is its summary."""

    name: str
    title: str
    source: str
    body: str

    @property
    def sentences(self) -> list[str]:
        """The sentences of the body."""
        return [
            sentence
            for paragraph in self.body.split("\n\n")
            for sentence in _SENTENCE.split(" ".join(paragraph.split()))
        ]

    @property
    def gist(self) -> str:
        """The first sentence, a summary of the note."""
        return self.sentences[0]


class Hit(Struct, frozen=True):
    """A note that was found, with its best sentence and its score."""

    name: str
    title: str
    sentence: str
    score: float


@cache
def library() -> dict[str, Note]:
    """Return the notes by name."""
    folder = files("midrun.demo").joinpath("library")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".md"))
    return {
        note.name: note
        for note in (_note(name, folder.joinpath(name).read_text("utf-8")) for name in found)
    }


def words_of(text: str) -> list[str]:
    """Return the significant words of a text, in normal form."""
    words = (_singular(word) for word in _WORD.findall(text.lower()) if word not in _EVERYDAY)
    return [_SAME.get(word, word) for word in words]


def search(query: str, limit: int = HITS) -> list[Hit]:
    """Return the notes that match the query, best first (BM25)."""
    wanted = set(words_of(query))
    counts, rarity, usual = _index()
    hits = []
    for name, note in library().items():
        score = sum(
            rarity[word] * _weight(counts[name][word], counts[name].total() / usual)
            for word in wanted
            if counts[name][word]
        )
        if score:
            sentence = best_sentences(note, query, 1)[0]
            hits.append(Hit(name, note.title, sentence, round(score, 2)))
    return sorted(hits, key=lambda hit: (-hit.score, hit.name))[:limit]


def best_sentences(note: Note, query: str, count: int) -> list[str]:
    """Return the sentences of a note that fit a query best, in the order of the note."""
    ranked = sorted(note.sentences, key=lambda sentence: -fit(sentence, query))[:count]
    return [sentence for sentence in note.sentences if sentence in ranked]


def fit(sentence: str, query: str) -> float:
    """Return the score of a sentence for a query: the rarity of their shared words."""
    rarity = _index()[1]
    return sum(rarity.get(word, 0.0) for word in set(words_of(sentence)) & set(words_of(query)))


def answer(question: str, names: Iterable[str]) -> tuple[Note, str] | None:
    """Return the best answer to a question from the named notes, with its note, or None."""
    asked = set(words_of(question))
    found: list[tuple[float, Note, str]] = []
    for note in (library()[name] for name in names if name in library()):
        for sentence in note.sentences:
            words = asked & set(words_of(f"{note.title} {sentence}"))
            if words and len(words) >= ENOUGH * len(asked):
                found.append((fit(f"{note.title} {sentence}", question), note, sentence))
    if not found:
        return None
    _, note, best = max(found, key=lambda one: one[0])
    others = [line for line in best_sentences(note, question, 2) if fit(line, question)]
    said = [line for line in note.sentences if line in {best, *others}]
    return note, " ".join(said)


@tool(read_only=True)
async def search_library(query: str) -> list[dict[str, str]]:
    """Search the notes of the library, in full text.

    Args:
        query: A few words.
    """
    return [
        {"name": hit.name, "title": hit.title, "sentence": hit.sentence}
        for hit in search(query)
    ]


@tool(read_only=True)
async def read_note(name: str) -> str:
    """Read one note of the library.

    Args:
        name: Its name, as `search_library` gives it.
    """
    note = library().get(name)
    if note is None:
        raise LookupError(f"there is no note {name}; there are: {', '.join(library())}")
    return f"# {note.title}\n\n{note.body}"


def _note(file: str, text: str) -> Note:
    title, source, body = text.strip().split("\n\n", 2)
    return Note(file.removesuffix(".md"), title.removeprefix("# "), source.strip("*"), body)


@cache
def _index() -> tuple[dict[str, Counter[str]], dict[str, float], float]:
    """Return the word counts of each note, the rarity of each word, and the mean length."""
    notes = library()
    counts = {
        name: Counter(words_of(note.body) + TITLE * words_of(note.title))
        for name, note in notes.items()
    }
    known = Counter(word for counted in counts.values() for word in counted)
    rarity = {word: log(1 + len(notes) / times) for word, times in known.items()}
    return counts, rarity, sum(c.total() for c in counts.values()) / len(counts)


def _weight(times: int, length: float) -> float:
    return times * (K1 + 1) / (times + K1 * (1 - B + B * length))


def _singular(word: str) -> str:
    keeps = len(word) <= 3 or word.endswith(("ss", "us", "is"))  # noqa: PLR2004 - "gas", "bus"
    return word if keeps else word.removesuffix("s")
