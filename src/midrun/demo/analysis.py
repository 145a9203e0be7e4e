"""The analysis: group the notes by topic. It takes seconds, to be paused and cancelled.

Notes that share rare words are close to each other; the best groups are found by trying all of
them. This is repeated with a random fifth of the words left out. Notes that stay together in
most rounds are a theme; the others came together by chance.

A blocking function at the top level of a module runs in a process of its own, so a cancel can
kill it at once. It saves its progress, so a pause can stop it and a resume continues it.
"""

from collections import Counter
from itertools import combinations
from math import log, sqrt
from random import Random
from typing import Final, TypeAlias

from midrun.agents.tool import tool
from midrun.agents.tool_context import Call
from midrun.core.values import Json
from midrun.demo.notes import load_library, significant_words

SAVE_EVERY_ROUNDS: Final = 10
"""Rounds between two saves of the progress: at most this many are lost."""

WORDS_KEPT_SHARE: Final = 0.8
"""Share of the words that are used in a round."""

COMMON_WORD_SHARE: Final = 0.3
"""A word that appears in more than this share of the notes is ignored."""

NotePair: TypeAlias = tuple[str, str]
WeightsByNote: TypeAlias = dict[str, dict[str, float]]  # by name: each word with its weight
DistancesByNote: TypeAlias = dict[str, dict[str, float]]


@tool(read_only=True, title="Group the notes by theme")
def find_themes(call: Call, groups: int = 5, rounds: int = 150) -> list[dict[str, Json]]:  # noqa: D417 - models do not see the call
    """Find out which notes of the library belong together. Takes some seconds.

    Args:
        groups: Into how many themes.
        rounds: How often to try it, each time with other words left out.
    """
    notes = _weigh_words()
    together = _decode_progress(call.progress)
    done = together.pop(_ROUNDS_KEY, 0)
    for number in range(done, rounds):
        for group in _group_notes(
            _measure_distances(_drop_random_words(notes, number)), groups
        ):
            together.update(combinations(sorted(group), 2))
        if (number + 1) % SAVE_EVERY_ROUNDS == 0:
            _ = call.note(f"{number + 1} of {rounds} rounds")
            _ = call.save(_encode_progress(together, number + 1))
    return _build_themes(notes, together, groups, rounds)


_ROUNDS_KEY: Final = ("", "")  # the key of the number of rounds, stored beside the pairs


def _decode_progress(progress: Json) -> Counter[NotePair]:
    """Decode the saved progress: how often each pair came together, and the rounds so far."""
    if not isinstance(progress, dict):
        return Counter()
    pairs = (key.partition(" ") for key in progress)
    times = (value for value in progress.values() if isinstance(value, int))
    return Counter({(one, other): n for (one, _, other), n in zip(pairs, times, strict=True)})


def _encode_progress(together: Counter[NotePair], rounds: int) -> Json:
    return {" ": rounds} | {f"{one} {other}": n for (one, other), n in together.items()}


def _weigh_words() -> WeightsByNote:
    """Return the characteristic words of each note, with their weights (TF-IDF)."""
    counts = {
        note.name: Counter(
            word for word in significant_words(note.body) if not word[0].isdigit()
        )
        for note in load_library().values()
    }
    known = Counter(word for words in counts.values() for word in words)
    telling = {
        w: log(len(counts) / n)
        for w, n in known.items()
        if 1 < n < COMMON_WORD_SHARE * len(counts)
    }
    return {
        name: {w: (1 + log(n)) * telling[w] for w, n in words.items() if w in telling}
        for name, words in counts.items()
    }


def _drop_random_words(notes: WeightsByNote, number: int) -> WeightsByNote:
    """Return the notes with the words of this round; the same after a resume."""
    chance = Random(number)  # noqa: S311 - no secret depends on it
    words = sorted({word for weights in notes.values() for word in weights})
    kept = {word for word in words if chance.random() < WORDS_KEPT_SHARE}
    return {
        name: {word: weight for word, weight in weights.items() if word in kept}
        for name, weights in notes.items()
    }


def _measure_distances(notes: WeightsByNote) -> DistancesByNote:
    """Return the cosine distance of each pair: 0 is equal, 1 has no word in common."""
    even = {}
    for name, weights in notes.items():
        length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        even[name] = {word: weight / length for word, weight in weights.items()}
    return {
        one: {
            other: 1 - sum(weight * theirs.get(word, 0.0) for word, weight in mine.items())
            for other, theirs in even.items()
        }
        for one, mine in even.items()
    }


def _group_notes(between: DistancesByNote, groups: int) -> list[list[str]]:
    """Return the best grouping: try all sets of centres, assign each note to its nearest."""
    rows = list(between.values())
    centres = min(
        combinations(between, min(groups, len(between))),
        key=lambda tried: sum([min([row[centre] for centre in tried]) for row in rows]),
    )
    found: dict[str, list[str]] = {centre: [] for centre in centres}
    for name, row in between.items():
        found[min(centres, key=row.__getitem__)].append(name)
    return list(found.values())


def _build_themes(
    notes: WeightsByNote, together: Counter[NotePair], groups: int, rounds: int
) -> list[dict[str, Json]]:
    """Return the groups with their shared words, and the share of rounds that confirm them."""
    found: list[dict[str, Json]] = []
    for group in _group_notes(_measure_distances(notes), groups):
        words: Counter[str] = Counter()
        for name in group:
            words.update(notes[name])
        shared = [
            word for word, _ in words.most_common() if _count_sharers(notes, group, word) > 1
        ]
        held = [together[pair] / rounds for pair in combinations(sorted(group), 2)]
        sure = round(sum(held) / len(held), 2) if held else 1.0
        found.append(
            {"notes": list[Json](group), "words": list[Json](shared[:4]), "sure": sure}
        )
    return sorted(found, key=lambda theme: str(theme["sure"]), reverse=True)


def _count_sharers(notes: WeightsByNote, group: list[str], word: str) -> int:
    return sum(word in notes[name] for name in group)
