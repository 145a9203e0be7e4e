"""The game that the bare core must survive: one run, one move at a time, by anyone."""

from collections.abc import Iterable

from msgspec.structs import replace

from midrun.core import driver_inputs as v
from midrun.core import effects as o
from midrun.core.controls import Control
from midrun.core.driver_inputs import DriverInput
from midrun.core.entries import CallDone, CallStarted, LateResult, UndoDone
from midrun.core.run_head import build_head
from midrun.core.scheduler import find_wake_time, plan_effects
from midrun.core.state import State
from midrun.core.transitions import (
    GUARD_REFUSALS,
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    Verdict,
)
from midrun.core.values import DRIVABLE_PHASES, Phase, Reply
from midrun.testing.scenario import given
from midrun.verify.journal import check_journal
from tests.unit.core import wild
from tests.unit.core.wild import Pick

COMMON = {"fenced", "lease_lost", "request_id_reused"}
NO_OPS = {"duplicate_request"}
ROUNDS_MAX = 300
MOSTLY = (True, True, False)


class Game:
    """A run of the bare core, and what every request was told."""

    def __init__(self, pick: Pick) -> None:
        self.run = given(wild.spec(pick))
        self.habits = wild.habits(pick)
        self.told: dict[str, tuple[Control, Verdict]] = {}

    @property
    def state(self) -> State:
        """Where the run stands."""
        return self.run.state

    # ── the moves ─────────────────────────────────────────────────────────────────────────

    def ask(self, pick: Pick) -> None:
        """Somebody asks for something."""
        self._ask(wild.wish(pick, self.state, self.run.now, self.habits))

    def ask_again(self, pick: Pick) -> None:
        """Somebody did not hear the reply, and sends the same once more."""
        if self.told:
            self._ask(self.told[pick(sorted(self.told))][0])

    def drive(self, pick: Pick) -> None:
        """A live driver goes on: what is in flight ends, or what is ordered is done."""
        state = self.state
        revival = wild.revival(pick, state)
        if revival is not None and pick((True, False)):
            self._ask(revival)
        elif not state.is_leased:
            self.give(v.TakeLease(holder="one"))
        elif state.cleanup_in_flight is not None and pick(MOSTLY):
            self.give(wild.undo_ending(pick, state))
        elif bool(state.in_flight) and pick(MOSTLY):
            call = state.calls[pick(state.in_flight) - 1]
            if call.call_kind != "model" and pick((False, False, False, True)):
                self.give(wild.asking(pick, state, call, self.run.now))
            else:
                self.give(wild.ending(pick, state, call))
        elif orders := plan_effects(state):
            self.perform(pick, pick(orders))

    def crash(self, _: Pick) -> None:
        """The driver is dead, and another one takes the run."""
        self.give(v.TakeLease(holder="two"))

    def disturb(self, pick: Pick) -> None:
        """Evidence comes that nobody ordered, or from nobody."""
        self.give(wild.finding(pick, self.state))

    def come_late(self, pick: Pick) -> None:
        """A driver that was only slow reports an attempt it made before it lost the run."""
        made = [r for r in self.run.records if isinstance(r.entry, CallStarted)]
        gone = [r for r in made if r.epoch != self.state.epoch or not self.state.is_leased]
        if gone:
            record = pick(gone[::-1])
            assert isinstance(record.entry, CallStarted)
            assert record.epoch is not None
            call, attempt = record.entry.call, record.entry.attempt
            self.give(
                v.ReportLateResult(
                    result=LateResult(call=call, attempt=attempt, epoch=record.epoch)
                )
            )

    def wait(self, pick: Pick) -> None:
        """Time passes."""
        self.run = self.run.later(pick((0, 1, 6, 40)))
        self.give(v.Wake())

    # ── what must hold ────────────────────────────────────────────────────────────────────

    def give(self, one: Input) -> Verdict:
        """Give the core one input, and see that its answer was foreseen."""
        before = self.state
        cell = INPUT_TABLE[type(one)][before.phase]
        self.run = self.run.when(one)
        verdict = self.run.verdict
        assert verdict is not None
        if isinstance(verdict, Accepted):
            assert self.state.phase in cell.next_phases, f"{one} led to {self.state.phase}"
        elif isinstance(verdict, NoChange):
            foreseen = {cell.no_change_name, *NO_OPS, *self._heard(one)}
            assert verdict.name in foreseen, f"{one} in {before.phase}: {verdict}"
        else:
            foreseen = {
                cell.refusal_name,
                *GUARD_REFUSALS.get(type(one), ()),
                *COMMON,
                *self._heard(one),
            }
            assert verdict.reason in foreseen, f"{one} in {before.phase}: {verdict}"
        plan_effects(self.state)
        build_head(self.state)
        return verdict

    def _heard(self, one: Input) -> Iterable[str]:
        heard = self.state.requests.get(getattr(one, "request", ""))
        return {heard.verdict_name} if heard else ()

    def _ask(self, control: Control) -> None:
        """Ask, and see that a repeat hears the first outcome and changes nothing."""
        told = self.told.get(control.request)
        verdict = self.give(control)
        if not control.request:
            return
        if told is None:
            self.told[control.request] = (control, verdict)
            return
        first, heard = told
        assert not verdict.entries
        if first != control:
            assert getattr(verdict, "reason", "") == "request_id_reused"
        elif isinstance(heard, Accepted):
            assert isinstance(verdict, NoChange), f"{control} was applied twice"
            assert verdict.name == "duplicate_request"
        else:
            assert replace(verdict, entries=()) == replace(heard, entries=())

    def perform(self, pick: Pick, order: o.DriverEffect) -> None:
        """Do at once what is ordered: who has seen everything is never refused."""
        evidence: DriverInput | None = wild.performed(pick, order, self.state)
        if evidence is None:
            self.run = self.run.at(max(self.run.now, find_wake_time(self.state) or 0))
            evidence = v.Wake()
        verdict = self.give(evidence)
        assert isinstance(verdict, Accepted), f"{order} was refused: {verdict}"

    def check(self) -> None:
        """The journal is sound, and means what the machine thinks it means."""
        problems = check_journal(self.run.records, state=self.state)
        assert not problems, "\n".join(map(str, problems))

    def bring_to_rest(self, pick: Pick) -> None:
        """No more faults, and a live driver: the run comes to rest."""
        if self.state.phase in DRIVABLE_PHASES:
            self.give(v.TakeLease(holder="last"))
        for _ in range(ROUNDS_MAX):
            state = self.state
            if state.phase not in DRIVABLE_PHASES:
                break
            if not state.is_leased:
                self.give(v.TakeLease(holder="last"))
            elif state.cleanup_in_flight:
                number, action = state.cleanup_in_flight
                outcome = UndoDone(call=state.calls[number - 1].id, action=action)
                self.give(v.CloseUndo(epoch=state.epoch, outcome=outcome))
            elif state.in_flight:
                call = state.calls[state.in_flight[0] - 1]
                reply = Reply(text="That is all.") if call.call_kind == "model" else None
                done = CallDone(call=call.id, reply=reply)
                self.give(v.CloseCall(epoch=state.epoch, outcome=done))
            else:
                orders = plan_effects(state)
                assert orders, f"nothing in flight and nothing ordered in {state.phase}"
                self.perform(pick, orders[0])
        assert self.state.phase not in DRIVABLE_PHASES, "it never came to rest"
        if self.state.cancel_request is not None:
            assert self.state.phase in {Phase.CANCELLED, Phase.HALTED}
        assert not self.state.is_leased or self.state.phase is Phase.HALTED
