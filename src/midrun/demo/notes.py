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

BM25_K1: Final = 1.4  # BM25: saturation of repeated words
BM25_B: Final = 0.6  # BM25: penalty for long notes
TITLE_WEIGHT: Final = 3  # weight of a word in the title
MAX_HITS: Final = 6
ANSWER_WORD_SHARE: Final = (
    1 / 2
)  # share of a question's words that a sentence must have to answer it

_WORD: Final = re.compile(r"[a-z0-9]+(?:[.,]\d+)*")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9])")
_STOP_WORDS: Final = frozenset(
    _WORD.findall(
        "a about all also am an and any are as at be been but by can could did do does for "
        "from get had has have he her his how i if in into is it its just let like many me "
        "more most much my no not of off on one only or our out over please she should so some "
        "such tell than that the their them then there these they this those to too up us use "
        "was we were what when where which who why will with would write you your add include "
        "know mention say section"
    )
)
_SYNONYMS: Final = {  # words of questions → words of the notes
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
    def summary(self) -> str:
        """The first sentence, a summary of the note."""
        return self.sentences[0]


class SearchHit(Struct, frozen=True):
    """A note that was found, with its best sentence and its score."""

    name: str
    title: str
    sentence: str
    score: float


@cache
def load_library() -> dict[str, Note]:
    """Return the notes by name."""
    folder = files("midrun.demo").joinpath("library")
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".md"))
    return {
        note.name: note
        for note in (
            _parse_note(name, folder.joinpath(name).read_text("utf-8")) for name in found
        )
    }


def significant_words(text: str) -> list[str]:
    """Return the significant words of a text, in normal form."""
    words = (
        _to_singular(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS
    )
    return [_SYNONYMS.get(word, word) for word in words]


def search_notes(query: str, limit: int = MAX_HITS) -> list[SearchHit]:
    """Return the notes that match the query, best first (BM25)."""
    wanted = set(significant_words(query))
    counts, rarity, usual = _build_index()
    hits = []
    for name, note in load_library().items():
        score = sum(
            rarity[word] * _bm25_weight(counts[name][word], counts[name].total() / usual)
            for word in wanted
            if counts[name][word]
        )
        if score:
            sentence = best_sentences(note, query, 1)[0]
            hits.append(SearchHit(name, note.title, sentence, round(score, 2)))
    return sorted(hits, key=lambda hit: (-hit.score, hit.name))[:limit]


def best_sentences(note: Note, query: str, count: int) -> list[str]:
    """Return the sentences of a note that fit a query best, in the order of the note."""
    ranked = sorted(note.sentences, key=lambda sentence: -score_sentence(sentence, query))[
        :count
    ]
    return [sentence for sentence in note.sentences if sentence in ranked]


def score_sentence(sentence: str, query: str) -> float:
    """Return the score of a sentence for a query: the rarity of their shared words."""
    rarity = _build_index()[1]
    return sum(
        rarity.get(word, 0.0)
        for word in set(significant_words(sentence)) & set(significant_words(query))
    )


def find_answer(question: str, names: Iterable[str]) -> tuple[Note, str] | None:
    """Return the best answer to a question from the named notes, with its note, or None."""
    asked = set(significant_words(question))
    found: list[tuple[float, Note, str]] = []
    for note in (load_library()[name] for name in names if name in load_library()):
        for sentence in note.sentences:
            words = asked & set(significant_words(f"{note.title} {sentence}"))
            if words and len(words) >= ANSWER_WORD_SHARE * len(asked):
                found.append(
                    (score_sentence(f"{note.title} {sentence}", question), note, sentence)
                )
    if not found:
        return None
    _, note, best = max(found, key=lambda one: one[0])
    others = [
        line for line in best_sentences(note, question, 2) if score_sentence(line, question)
    ]
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
        for hit in search_notes(query)
    ]


@tool(read_only=True)
async def read_note(name: str) -> str:
    """Read one note of the library.

    Args:
        name: Its name, as `search_library` gives it.
    """
    note = load_library().get(name)
    if note is None:
        raise LookupError(f"there is no note {name}; there are: {', '.join(load_library())}")
    return f"# {note.title}\n\n{note.body}"


def _parse_note(file: str, text: str) -> Note:
    title, source, body = text.strip().split("\n\n", 2)
    return Note(file.removesuffix(".md"), title.removeprefix("# "), source.strip("*"), body)


@cache
def _build_index() -> tuple[dict[str, Counter[str]], dict[str, float], float]:
    """Return the word counts of each note, the rarity of each word, and the mean length."""
    notes = load_library()
    counts = {
        name: Counter(
            significant_words(note.body) + TITLE_WEIGHT * significant_words(note.title)
        )
        for name, note in notes.items()
    }
    known = Counter(word for counted in counts.values() for word in counted)
    rarity = {word: log(1 + len(notes) / times) for word, times in known.items()}
    return counts, rarity, sum(c.total() for c in counts.values()) / len(counts)


def _bm25_weight(times: int, length: float) -> float:
    return times * (BM25_K1 + 1) / (times + BM25_K1 * (1 - BM25_B + BM25_B * length))


def _to_singular(word: str) -> str:
    keeps = len(word) <= 3 or word.endswith(("ss", "us", "is"))  # noqa: PLR2004 - "gas", "bus"
    return word if keeps else word.removesuffix("s")
