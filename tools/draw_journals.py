"""Draw journals of `tests/journals` as SVG: the entries, and the phase after each.

The phases come from `evolve`, the sentences from `describe_entry`, the links from `HashChain`.
So a picture cannot show an order of events that the code does not have.
"""

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from midrun.codec.hash_chain import HashChain
from midrun.codec.journal import decode_lines, format_record
from midrun.core.entries import Record
from midrun.core.evolve import evolve
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.text.entries import describe_entry
from tools.draw_phases import ASKED_FOR, LOOKS
from tools.golden.facts import RUN

ROOT: Final = Path(__file__).parent.parent
JOURNALS: Final = ROOT / "tests" / "journals"
CONCEPTS: Final = ROOT / "docs" / "concepts"

PICTURES: Final = {
    "pause": ("pause_and_resume_with_an_instruction", "The journal of a run that is paused"),
    "cancel": ("cancel_undoes_what_is_in_flight", "The journal of a run that is cancelled"),
    "crash": (
        "crash_and_an_unknown_call_settled_by_a_person",
        "The journal of a run whose worker dies",
    ),
}
"""Name of the picture → the journal, and the title of the picture."""

ANATOMY: Final = "entry"
ANATOMY_SEQS: Final = (5, 6)  # a call begins, a person asks for a pause

WIDTH: Final = 1040
ROW: Final = 30
TOP: Final = 44
SENTENCE_MAX_CHARS: Final = 76
STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#333b47}"
    ".head{font-weight:600;fill:#5b6472}"
    ".seq{text-anchor:end;fill:#5b6472}"
    ".kind{font:600 12px ui-monospace,monospace;text-anchor:middle}"
    ".code{font:10px ui-monospace,monospace}"
    ".phase{font-weight:600;text-anchor:middle}"
)
PERSON: Final = "#6b2fb3"
WORKER: Final = "#0b5cad"


class Row(NamedTuple):
    """One entry as it is drawn."""

    seq: int
    kind: str
    sentence: str
    is_by_worker: bool
    phase: Phase


def draw_pictures() -> dict[str, str]:
    """Return the SVG of each picture, by its name."""
    pictures = {
        name: draw_journal(_read_records(journal), title)
        for name, (journal, title) in PICTURES.items()
    }
    return pictures | {ANATOMY: draw_entry(_read_records(PICTURES["pause"][0]))}


def draw_journal(records: list[Record], title: str) -> str:
    """Draw every entry of a journal, one below the other, with the phases beside them."""
    rows = list(_list_rows(records))
    height = TOP + ROW * len(rows) + 14
    parts = [
        _open_svg(height, title),
        *_heads(),
        *_phases(rows),
        *(_entry(row, TOP + ROW * index) for index, row in enumerate(rows)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_entry(records: list[Record]) -> str:
    """Draw two stored lines with the links of the hash chain between them."""
    lines = [format_record(record) for record in records]
    chain = HashChain()
    parts = [_open_svg(196, "Two lines of a journal and the links of their hash chain")]
    for index, seq in enumerate(ANATOMY_SEQS):
        before = chain.compute_head(RUN, lines[: seq - 1]).hex()[:8]
        after = chain.compute_head(RUN, lines[:seq]).hex()[:8]
        y, title = 20 + 88 * index, f"link {seq} = sha256(link {seq - 1} + this line):"
        parts += [
            f'<rect x="16" y="{y}" width="1008" height="68" rx="8" fill="#f5f7fa"/>',
            f'<text class="code" x="30" y="{y + 27}">{escape(lines[seq - 1].decode())}</text>',
            f'<text x="30" y="{y + 52}">{title}</text>',
            f'<text class="code" x="290" y="{y + 52}">{before}… → {after}…</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _read_records(journal: str) -> list[Record]:
    return decode_lines(RUN, (JOURNALS / f"{journal}.jsonl").read_bytes().splitlines())


def _list_rows(records: list[Record]) -> Iterator[Row]:
    state = State(run=RUN)
    for record in records:
        after = evolve(state, record.entry, record.at)
        sentence = describe_entry(record.entry, state, after).sentence
        if len(sentence) > SENTENCE_MAX_CHARS:
            sentence = sentence[: SENTENCE_MAX_CHARS - 1] + "…"
        kind = type(record.entry).__name__
        yield Row(record.seq, kind, sentence, record.epoch is not None, after.phase)
        state = after


def _open_svg(height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#fff"/>'
    )


def _heads() -> Iterator[str]:
    heads = {20: "phase", 176: "by a control", 316: "by the worker", 480: "the entry in words"}
    for x, head in heads.items():
        yield f'<text class="head" x="{x}" y="26">{head}</text>'


def _phases(rows: list[Row]) -> Iterator[str]:
    """Draw one bar for the entries after which the run is in the same phase."""
    for phase, group in groupby(enumerate(rows), key=lambda pair: pair[1].phase):
        indexes = [index for index, _ in group]
        y, height = TOP + ROW * indexes[0], ROW * len(indexes)
        look = LOOKS.get(phase, "#555b66")
        dashed = ' stroke-dasharray="5 4"' if phase in ASKED_FOR else ""
        yield (
            f'<rect x="16" y="{y + 2}" width="104" height="{height - 4}" rx="8" fill="#fff" '
            f'stroke="{look}" stroke-width="2"{dashed}/>'
            f'<text class="phase" x="68" y="{y + height / 2 + 5:.0f}" '
            f'style="fill:{look}">{phase}</text>'
        )


def _entry(row: Row, y: int) -> str:
    x, look = (310, WORKER) if row.is_by_worker else (170, PERSON)
    return (
        f'<text class="seq" x="152" y="{y + 20}">{row.seq}</text>'
        f'<rect x="{x}" y="{y + 3}" width="134" height="{ROW - 6}" rx="6" fill="{look}" '
        f'fill-opacity=".1" stroke="{look}"/>'
        f'<text class="kind" x="{x + 67}" y="{y + 19}" style="fill:{look}">{row.kind}</text>'
        f'<text x="480" y="{y + 20}">{escape(row.sentence)}</text>'
    )


if __name__ == "__main__":
    for name, picture in draw_pictures().items():
        (CONCEPTS / f"{name}.svg").write_text(picture)
