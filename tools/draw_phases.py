"""Draw the phases of a run and their transitions as SVG.

The positions are chosen by hand. The arrows come from the transition table: an arrow that only
one of the two has is an error.
"""

from math import hypot
from typing import Final, NamedTuple

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.transitions import ADVANCE_TABLE, INPUT_TABLE, Input
from midrun.core.values import Phase

WIDTH, HEIGHT = 1040, 430
BOX: Final = (112, 38)

PLACES: Final = {
    Phase.QUEUED: (110, 100),
    Phase.RUNNING: (420, 100),
    Phase.WAITING: (110, 245),
    Phase.PAUSING: (420, 245),
    Phase.PAUSED: (265, 365),
    Phase.FAILED: (620, 175),
    Phase.COMPLETED: (800, 60),
    Phase.CANCELLING: (800, 175),
    Phase.CANCELLED: (950, 175),
    Phase.HALTED: (800, 320),
}
LIVE: Final = (24, 14, 676, 398)
"""The frame around the phases from which a run may be cancelled or halted."""

LOOKS: Final = {
    Phase.RUNNING: "#0b5cad",
    Phase.PAUSING: "#7a4d00",
    Phase.PAUSED: "#7a4d00",
    Phase.WAITING: "#6b2fb3",
    Phase.CANCELLING: "#a3210f",
    Phase.CANCELLED: "#a3210f",
    Phase.FAILED: "#a3210f",
    Phase.HALTED: "#a3210f",
    Phase.COMPLETED: "#0f6b3a",
}
ASKED_FOR: Final = frozenset({Phase.PAUSING, Phase.CANCELLING})
"""Phases drawn with a dashed line, as on the page: requested, not reached."""

WORDS: Final[dict[type[Input], str]] = {
    c.Pause: "pause",
    c.Resume: "resume",
    c.Answer: "answer",
    c.RetryUndo: "retry undo",
    v.TakeLease: "a worker takes it",
    v.StandDown: "the worker leaves",
    v.FailRun: "fails",
}
"""Inputs that change the phase, with the label of their arrows."""

PHASE_ENDS: Final = {
    (Phase.RUNNING, Phase.COMPLETED): "done",
    (Phase.RUNNING, Phase.WAITING): "asks",
    (Phase.RUNNING, Phase.PAUSED): "cap",
    (Phase.PAUSING, Phase.PAUSED): "nothing runs",
    (Phase.CANCELLING, Phase.CANCELLED): "cleanup done",
}


class Arrow(NamedTuple):
    """The bend of an arrow to its left, and the position of its label."""

    bend: int = 0
    at: float = 0.5


ARROWS: Final = {
    (Phase.QUEUED, Phase.RUNNING): Arrow(-26),
    (Phase.RUNNING, Phase.QUEUED): Arrow(-26),
    (Phase.QUEUED, Phase.PAUSED): Arrow(at=0.4),
    (Phase.RUNNING, Phase.PAUSING): Arrow(30),
    (Phase.PAUSING, Phase.RUNNING): Arrow(14, at=0.4),
    (Phase.RUNNING, Phase.WAITING): Arrow(at=0.62),
    (Phase.RUNNING, Phase.PAUSED): Arrow(at=0.62),
    (Phase.RUNNING, Phase.FAILED): Arrow(),
    (Phase.PAUSING, Phase.FAILED): Arrow(),
    (Phase.RUNNING, Phase.COMPLETED): Arrow(),
    (Phase.PAUSING, Phase.PAUSED): Arrow(at=0.45),
    (Phase.WAITING, Phase.QUEUED): Arrow(),
    (Phase.WAITING, Phase.PAUSED): Arrow(),
    (Phase.PAUSED, Phase.QUEUED): Arrow(-44, at=0.3),
    (Phase.FAILED, Phase.QUEUED): Arrow(-98, at=0.3),
    (Phase.CANCELLING, Phase.CANCELLED): Arrow(-30),
    (Phase.CANCELLED, Phase.CANCELLING): Arrow(-30),
}

STYLE: Final = (
    "text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#333b47}"
    ".phase{font-size:15px;font-weight:600}"
    ".live{fill:#f5f7fa;stroke:#c9d0da;stroke-dasharray:3 5}"
    ".to{fill:none;stroke:#5b6472;stroke-width:1.4;marker-end:url(#tip)}"
    ".under{stroke:#fff;stroke-width:4;stroke-linejoin:round;paint-order:stroke}"
)
TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#5b6472"/></marker>'
)


def picture() -> str:
    """Return the picture, as SVG.

    Raises:
        ValueError: the table and `ARROWS` differ.
    """
    arrows = _arrows()
    if arrows.keys() != ARROWS.keys():
        raise ValueError(f"the table and the picture differ: {arrows.keys() ^ ARROWS.keys()}")
    x, y, width, height = LIVE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>The phases of a run and the transitions between them</title>",
        f"<style>{STYLE}</style>",
        TIP,
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        f'<rect class="live" x="{x}" y="{y}" width="{width}" height="{height}" rx="14"/>',
        *(_drawn(pair, words) for pair, words in arrows.items()),
        _line((700, 175), (740, 175), "cancel", (720, 165)),
        _line((700, 320), (740, 320), "halt", (720, 310)),
        _line((800, 196), (800, 297), "halt", (818, 250)),
        _line((860, 320), (950, 320), "lift: to its old phase", (945, 343)),
        *(_box(phase) for phase in Phase),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrows() -> dict[tuple[Phase, Phase], str]:
    """Return the transitions of the inputs in `WORDS`, with their labels."""
    made: dict[tuple[Phase, Phase], list[str]] = {}
    for kind, words in WORDS.items():
        for phase, cell in INPUT_TABLE[kind].items():
            for target in cell.next_phases[:1]:
                if target is not phase:
                    made.setdefault((phase, target), []).append(words)
    for phase, targets in ADVANCE_TABLE.items():
        for target in targets:
            if (phase, target) in PHASE_ENDS:
                made.setdefault((phase, target), []).append(PHASE_ENDS[phase, target])
    return {pair: ", ".join(dict.fromkeys(words)) for pair, words in made.items()}


def _drawn(pair: tuple[Phase, Phase], words: str) -> str:
    (x0, y0), (x1, y1) = PLACES[pair[0]], PLACES[pair[1]]
    arrow = ARROWS[pair]
    length = hypot(x1 - x0, y1 - y0)
    side = ((y1 - y0) / length, (x0 - x1) / length)
    middle = (
        (x0 + x1) / 2 + side[0] * 2 * arrow.bend,
        (y0 + y1) / 2 + side[1] * 2 * arrow.bend,
    )
    start, end = _edge((x0, y0), middle), _edge((x1, y1), middle)
    t = arrow.at
    on = [
        (1 - t) ** 2 * a + 2 * t * (1 - t) * m + t**2 * b
        for a, m, b in zip(start, middle, end, strict=True)
    ]
    path = f"M{_xy(start)}Q{_xy(middle)} {_xy(end)}"
    return f'<path class="to" d="{path}"/>{_text(words, (on[0], on[1] + 4))}'


def _edge(box: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point where a line from the middle of a box leaves it."""
    dx, dy = towards[0] - box[0], towards[1] - box[1]
    reach = min(
        (BOX[0] / 2 + 4) / abs(dx) if dx else 9.0, (BOX[1] / 2 + 4) / abs(dy) if dy else 9.0
    )
    return box[0] + dx * reach, box[1] + dy * reach


def _line(
    start: tuple[float, float],
    end: tuple[float, float],
    words: str,
    where: tuple[float, float],
) -> str:
    return f'<path class="to" d="M{_xy(start)}L{_xy(end)}"/>{_text(words, where)}'


def _text(words: str, where: tuple[float, float]) -> str:
    return f'<text class="under" x="{where[0]:.0f}" y="{where[1]:.0f}">{words}</text>'


def _box(phase: Phase) -> str:
    x, y = PLACES[phase]
    look, (width, height) = LOOKS.get(phase, "#555b66"), BOX
    dashed = ' stroke-dasharray="5 4"' if phase in ASKED_FOR else ""
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" '
        f'height="{height}" rx="19" fill="#fff" stroke="{look}" stroke-width="2"{dashed}/>'
        f'<text class="phase" x="{x}" y="{y + 5}" style="fill:{look}">{phase}</text>'
    )


def _xy(point: tuple[float, float]) -> str:
    return f"{point[0]:.0f} {point[1]:.0f}"
