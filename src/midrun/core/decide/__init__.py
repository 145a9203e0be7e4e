"""`decide`: what an input means now. Total: it accepts, calls it done, or refuses by name.

The table speaks first; a ruling adds what the table cannot know. A request id is applied at
most once: a repeat hears what the first one was told, from whatever process it comes.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.controls import Cancel, Control, Pause, Resume, Wish
from midrun.core.decide import asks, calls, controls, conversation, lifecycle
from midrun.core.decide.shared import asked, digest
from midrun.core.decision import Accepted, Already, Refused, Rulings, Verdict
from midrun.core.driver_inputs import Fenced
from midrun.core.entries import RequestNoted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.transitions import ACCEPTS, Input
from midrun.core.values import Phase

RULINGS: Final[Rulings] = {
    **controls.RULINGS,
    **asks.RULINGS,
    **conversation.RULINGS,
    **calls.RULINGS,
    **lifecycle.RULINGS,
}


def decide(state: State, given: Input, now: Micros) -> Verdict:
    """Return what `given` means for a run in `state`, as entries, a no-op or a refusal.

    The entries must be appended after exactly `state.seq`, all or none. `now` is the store's
    time: the core has no clock. User data in `given` must have passed `codec.strict`.
    """
    now = Micros(max(now, state.at))  # a journal's time never runs backwards, nor does ours
    if isinstance(given, Wish):
        return _asked_for(state, given, now)
    if isinstance(given, Fenced) and (given.epoch != state.epoch or not state.leased):
        reason = "fenced" if given.epoch != state.epoch else "lease_lost"
        return Refused(reason=reason, seq=state.since, by=state.since_by)
    return _ruled(state, given, now)


def _asked_for(state: State, control: Control, now: Micros) -> Verdict:
    """Apply a request id at most once, and keep what it was told."""
    heard = state.heard.get(control.request) if control.request else None
    if heard is None and _is_stale(state, control):
        # Not kept: whoever looks again may ask again, under the same id.
        return Refused(reason="stale_revision", seq=state.control_rev)
    if not control.request:
        return _ruled(state, control, now)
    if heard is None:
        verdict = _ruled(state, control, now)
        if isinstance(verdict, Accepted):
            return verdict
        name = verdict.name if isinstance(verdict, Already) else verdict.reason
        refused = isinstance(verdict, Refused)
        note = RequestNoted(
            verdict=name,
            refused=refused,
            since=verdict.seq,
            since_by=verdict.by,
            **asked(control),
        )
        return replace(verdict, entries=(note,))
    if heard.digest != digest(control):
        return Refused(reason="request_id_reused", seq=heard.seq)
    if heard.refused:
        return Refused(reason=heard.verdict, seq=heard.since, by=heard.since_by)
    name = heard.verdict or "duplicate_request"
    return Already(name=name, seq=heard.since, by=heard.since_by)


def _is_stale(state: State, control: Control) -> bool:
    """Tell whether a wish is about what is no more; a stop is never too late to be heard."""
    seen, stops = control.seen, isinstance(control, Pause | Cancel)
    return seen is not None and seen != state.control_rev and not stops


def _ruled(state: State, given: Input, now: Micros) -> Verdict:
    """Ask the table, then the ruling."""
    cell = ACCEPTS[type(given)][state.phase]
    if cell.to:
        return RULINGS[type(given)](state, given, now)
    if cell.refused:
        ask = state.ask(getattr(given, "ask", ""))
        if ask is not None and ask.closed:  # whoever comes too late learns who was first
            return Refused(reason=cell.refused, seq=ask.closed_seq, by=ask.by)
        return Refused(reason=cell.refused, seq=state.since, by=state.since_by)
    if isinstance(given, Resume) and given.instruction:
        # Nobody's words are lost in a no-op: the sender may send them as a redirect.
        return Refused(reason="not_paused", seq=state.since, by=state.since_by)
    if state.cancel is not None and state.phase is Phase.CANCELLING:
        return Already(name=cell.already, seq=state.cancelled_at, by=state.cancel.by)
    return Already(name=cell.already, seq=state.since, by=state.since_by)
