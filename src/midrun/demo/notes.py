"""The library: sixteen notes about the street trees of an invented town, and a BM25 search."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import log
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from midrun.agents.tool import tool

BM25_K1: Final = 1.4  # BM25: saturation of repeated words
BM25_B: Final = 0.6  # BM25: penalty for long notes
TITLE_WEIGHT: Final = 3  # weight of a word in the title
MAX_HITS: Final = 6
ANSWER_WORD_SHARE: Final = 1 / 2  # of a question's words, which its answer must have

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
_SYNONYMS: Final = dict.fromkeys(  # words of questions → words of the notes; c is from °C
    ("hot", "hotter", "hottest", "temperature", "degree", "c", "warm"), "heat"
) | dict.fromkeys(("cheap", "expensive", "price", "money", "pay"), "cost")


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


class SearchHit(Struct, frozen=True):
    """A note that was found, with its best sentence."""

    name: str
    title: str
    sentence: str


@cache
def load_library() -> dict[str, Note]:
    """Return the notes by name."""
    notes = {}
    for file in files("midrun.demo").joinpath("library").iterdir():
        if file.name.endswith(".md"):
            title, source, body = file.read_text("utf-8").strip().split("\n\n", 2)
            name = file.name.removesuffix(".md")
            notes[name] = Note(name, title.removeprefix("# "), source.strip("*"), body)
    return dict(sorted(notes.items()))


def significant_words(text: str) -> list[str]:
    """Return the significant words of a text, in normal form."""
    words = (
        _to_singular(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS
    )
    return [_SYNONYMS.get(word, word) for word in words]


def search_notes(query: str) -> list[SearchHit]:
    """Return the notes that match the query, best first (BM25)."""
    wanted = set(significant_words(query))
    counts, rarity, usual = _build_index()
    scores = {
        name: sum(
            rarity[word] * _bm25_weight(counted[word], counted.total() / usual)
            for word in wanted
            if counted[word]
        )
        for name, counted in counts.items()
    }
    ranked = sorted(scores, key=lambda name: (-round(scores[name], 2), name))
    found = [load_library()[name] for name in ranked if scores[name]][:MAX_HITS]
    return [SearchHit(n.name, n.title, best_sentences(n, query, 1)[0]) for n in found]


def best_sentences(note: Note, query: str, count: int) -> list[str]:
    """Return the sentences of a note that fit a query best, in the order of the note."""
    ranked = sorted(note.sentences, key=lambda sentence: -score_sentence(sentence, query))
    return [sentence for sentence in note.sentences if sentence in ranked[:count]]


def score_sentence(sentence: str, query: str) -> float:
    """Return the score of a sentence for a query: the rarity of their shared words."""
    shared = set(significant_words(sentence)) & set(significant_words(query))
    return sum(_build_index()[1].get(word, 0.0) for word in shared)


def find_answer(question: str, names: Iterable[str]) -> tuple[Note, str] | None:
    """Return the best answer to a question from the named notes, with its note, or None."""
    asked = set(significant_words(question))
    found: list[tuple[float, Note, str]] = []
    for note in (load_library()[name] for name in names if name in load_library()):
        for sentence in note.sentences:
            text = f"{note.title} {sentence}"
            words = asked & set(significant_words(text))
            if words and len(words) >= ANSWER_WORD_SHARE * len(asked):
                found.append((score_sentence(text, question), note, sentence))
    if not found:
        return None
    _, note, best = max(found, key=lambda one: one[0])
    others = [o for o in best_sentences(note, question, 2) if score_sentence(o, question)]
    return note, " ".join(line for line in note.sentences if line in {best, *others})


@tool(read_only=True, title="Search the library for {query}")
async def search_library(query: str) -> list[dict[str, str]]:
    """Search the notes of the library, in full text.

    Args:
        query: A few words.
    """
    return [asdict(hit) for hit in search_notes(query)]


@tool(read_only=True, title="Read the note {name}")
async def read_note(name: str) -> str:
    """Read one note of the library.

    Args:
        name: Its name, as `search_library` gives it.
    """
    note = load_library().get(name)
    if note is None:
        raise LookupError(f"there is no note {name}; there are: {', '.join(load_library())}")
    return f"# {note.title}\n\n{note.body}"


@cache
def _build_index() -> tuple[dict[str, Counter[str]], dict[str, float], float]:
    """Return the word counts of each note, the rarity of each word, and the mean length."""
    notes = load_library()
    counts = {
        name: Counter(significant_words(f"{note.body} {TITLE_WEIGHT * f'{note.title} '}"))
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
