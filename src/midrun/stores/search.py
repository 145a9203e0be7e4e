"""The words of runs, for the search: their task, agent, labels and output.

All stores split texts into words here, and not in the database. So a search finds the same runs
in every store: those that have, for each word of the search, a word that begins with it. Case
and accents do not matter. In scripts without spaces between words each character is a word.

Words are stored when a run begins and when it ends, with the entries and in the same
transaction. Other appends do not touch the index. Entries are redacted before they reach a
store, so no secret is indexed.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from midrun.core.entries import Entry, RunCancelled, RunCompleted, RunStarted

INDEXED_MAX_CHARS: Final = 8_000
"""The characters of one text that are indexed; the rest cannot be found."""

SEARCH_MAX_WORDS: Final = 12
WORD_MAX_CHARS: Final = 40

# Kana, Han and Hangul have no spaces between words; every other word is a run of letters and
# digits.
_WORD: Final = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]"
    r"|(?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff])[^\W_])+"
)


def split_words(text: str) -> list[str]:
    """Return the different words of `text`, without case and accents, in order."""
    # NFKD splits Hangul syllables and accented letters; NFC joins the syllables again.
    plain = unicodedata.normalize("NFKD", text[:INDEXED_MAX_CHARS].casefold())
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    # The same function makes the words of the index and of a search, in all stores: what
    # differs between databases (languages, stemming, accents) must not decide what is found.
    words = _WORD.findall(unicodedata.normalize("NFC", plain))
    return list(dict.fromkeys(word[:WORD_MAX_CHARS] for word in words))


def collect_words(entries: Iterable[Entry], *, has_texts: bool = True) -> str:
    """Return the words of entries that begin or end a run, joined by spaces; else "".

    An encrypted store leaves out the texts (`has_texts`): the index is not encrypted.
    """
    texts: list[str] = []
    for entry in entries:
        match entry:
            case RunStarted():
                texts += [entry.task] if has_texts else []
                texts += [entry.agent, *entry.labels]
                texts += [speaker.agent for speaker in entry.handoffs]
            case RunCompleted() if has_texts:
                texts.append(entry.output)
            case RunCancelled() if has_texts:
                texts.append(entry.partial)
            case _:
                continue
    return " ".join(dict.fromkeys(word for text in texts for word in split_words(text)))


def parse_search(text: str) -> tuple[str, ...]:
    """Return the words that a run must have; of a long search, the first ones."""
    return tuple(split_words(text)[:SEARCH_MAX_WORDS])


def match_words(indexed: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tell whether each of the words `wanted` begins one of the words `indexed`."""
    return bool(wanted) and all(any(w.startswith(one) for w in indexed) for one in wanted)


def format_fts5_query(wanted: Sequence[str]) -> str:
    """Return the query of SQLite's FTS5. The words have letters and digits only."""
    return " AND ".join(f'"{word}"*' for word in wanted)


def format_tsquery(wanted: Sequence[str]) -> str:
    """Return the query of Postgres. The words have letters and digits only."""
    return " & ".join(f"'{word}':*" for word in wanted)
