"""The bare core under everything at once: random controls, evidence, crashes, and time.

No store, no driver: `decide`, `evolve` and `plan` alone, fed with what people, live drivers,
dead ones and the clock may bring, in turn and out of turn. After every input the table must
have foreseen the answer; in the end the journal must be sound, and a live driver must be able
to bring the run to rest.
"""

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from midrun.core import evidence as v
from midrun.core import orders as o
from midrun.core.controls import Control
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallStarted,
    LateResult,
    Record,
    RunStarted,
    UndoDone,
)
from midrun.core.evidence import Fenced
from midrun.core.head import head_of
from midrun.core.ids import SECOND, Epoch, Micros, Seq
from midrun.core.machine import fold, plan, wake_at
from midrun.core.state import State
from midrun.core.table import ACCEPTS, GUARDS, Input
from midrun.core.values import DRIVABLE, Phase, Reply, Spend
from midrun.core.verdicts import Accepted, Already, Verdict
from midrun.testing.journals import RUN, Scenario, given
from midrun.verify.journal import check_journal
from tests.core import wild

COMMON = {"fenced", "lease_lost", "request_id_reused"}
NO_OPS = {"nothing_due", "duplicate_request"}
STEPS_MAX = 300


class BareCore(RuleBasedStateMachine):
    """One run, and everything that may be done to it."""

    run: Scenario

    @initialize(spec=wild.SPECS)
    def begin(self, spec: RunStarted) -> None:
        self.run = given(spec)
        self.told: dict[str, tuple[Control, Verdict]] = {}

    @property
    def state(self) -> State:
        return self.run.state

    # ── what people ask ───────────────────────────────────────────────────────────────────

    @rule(data=st.data())
    def somebody_asks(self, data: st.DataObject) -> None:
        control = data.draw(wild.wishes(self.state, self.run.now), label="control")
        told = self.told.get(control.request) if control.request else None
        verdict = self._give(control)
        if told is not None:
            self._same_as_before(control, verdict, told)
        elif control.request:
            self.told[control.request] = (control, verdict)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def somebody_asks_again(self, data: st.DataObject) -> None:
        told = self.told[data.draw(st.sampled_from(sorted(self.told)))]
        self._same_as_before(told[0], self._give(told[0]), told)

    def _same_as_before(
        self, control: Control, verdict: Verdict, told: tuple[Control, Verdict]
    ) -> None:
        """A repeat hears the first outcome and changes nothing."""
        first, heard = told
        assert not verdict.entries
        if first != control:
            assert getattr(verdict, "reason", "") == "request_id_reused"
        elif isinstance(heard, Accepted):
            assert isinstance(verdict, Already)
            assert verdict.name == "duplicate_request"
        else:
            assert replace(verdict, entries=()) == replace(heard, entries=())

    # ── what a driver that is alive brings ────────────────────────────────────────────────

    @rule()
    def a_driver_takes_the_run(self) -> None:
        self._give(v.TakeLease(holder="one"))

    @precondition(lambda self: self.state.leased)
    @rule(data=st.data(), pick=wild.NUMBERS)
    def the_driver_does_what_is_ordered(self, data: st.DataObject, pick: int) -> None:
        orders = plan(self.state)
        if orders:
            order = orders[pick % len(orders)]
            reserve = data.draw(wild.SPENDS)
            self._perform(order, reserve, happened=data.draw(st.booleans()))

    @precondition(lambda self: self.state.leased and self.state.in_flight)
    @rule(data=st.data(), pick=wild.NUMBERS)
    def a_call_ends(self, data: st.DataObject, pick: int) -> None:
        flying = self.state.in_flight
        call = self.state.calls[flying[pick % len(flying)] - 1]
        ending = data.draw(wild.endings(call), label="ending")
        self._give(replace(ending, epoch=self.state.epoch))

    @precondition(lambda self: self.state.leased and self.state.in_flight)
    @rule(pick=wild.NUMBERS, expires=st.booleans(), asks=st.booleans())
    def a_call_asks_or_saves(self, pick: int, *, expires: bool, asks: bool) -> None:
        flying = self.state.in_flight
        call = self.state.calls[flying[pick % len(flying)] - 1]
        if call.call_kind == "model":
            return
        epoch = self.state.epoch
        if not asks:
            self._give(v.SaveProgress(epoch=epoch, call=call.id, progress=pick))
            return
        until = Micros(self.run.now + 5 * SECOND) if expires else None
        child = call.call_kind == "child"
        self._give(v.AskPerson(epoch=epoch, call=call.id, child=child, expires=until))

    @precondition(lambda self: self.state.leased and self.state.cleaning)
    @rule(data=st.data())
    def an_undo_ends(self, data: st.DataObject) -> None:
        ending = data.draw(wild.undo_endings(self.state), label="ending")
        self._give(replace(ending, epoch=self.state.epoch))

    # ── what comes late, out of turn, or with time ────────────────────────────────────────

    @rule(data=st.data(), old=st.booleans())
    def evidence_comes_out_of_turn(self, data: st.DataObject, *, old: bool) -> None:
        finding = data.draw(wild.findings(self.state, self.run.now), label="finding")
        if old and isinstance(finding, Fenced):
            finding = replace(finding, epoch=Epoch(self.state.epoch - 1))
        self._give(finding)

    @rule(pick=wild.NUMBERS)
    def a_dead_driver_was_only_slow(self, pick: int) -> None:
        """It reports an attempt that it made before it lost the run."""
        made = [r for r in self.run.records if isinstance(r.entry, CallStarted)]
        gone = [r for r in made if r.epoch != self.state.epoch or not self.state.leased]
        if gone:
            record = gone[-1 - pick % len(gone)]
            assert isinstance(record.entry, CallStarted)
            assert record.epoch is not None
            late = LateResult(
                call=record.entry.call, attempt=record.entry.attempt, epoch=record.epoch
            )
            self._give(v.Late(result=late))

    @rule(seconds=st.sampled_from([0, 1, 6, 40]))
    def time_passes(self, seconds: int) -> None:
        self.run = self.run.later(seconds)
        self._give(v.Wake())

    # ── what must hold ────────────────────────────────────────────────────────────────────

    def _give(self, one: Input) -> Verdict:
        """Give the core one input, and see that its answer was foreseen."""
        before = self.state
        cell = ACCEPTS[type(one)][before.phase]
        self.run = self.run.when(one)
        verdict = self.run.verdict
        assert verdict is not None
        if isinstance(verdict, Accepted):
            assert self.state.phase in cell.to, f"{one} led to {self.state.phase}"
        elif isinstance(verdict, Already):
            foreseen = {cell.already, *NO_OPS, *self._heard(one)}
            assert verdict.name in foreseen, f"{one} in {before.phase}: {verdict}"
        else:
            foreseen = {cell.refused, *GUARDS.get(type(one), ()), *COMMON, *self._heard(one)}
            assert verdict.reason in foreseen, f"{one} in {before.phase}: {verdict}"
        plan(self.state)
        wake_at(self.state)
        head_of(self.state)
        return verdict

    def _heard(self, one: Input) -> Iterable[str]:
        heard = self.state.heard.get(getattr(one, "request", ""))
        return {heard.verdict} if heard else ()

    def _perform(self, order: o.Order, reserve: Spend, *, happened: bool) -> None:
        """Do at once what is ordered: an order is never refused to who has seen everything."""
        evidence = _evidence(order, self.state, reserve, happened=happened)
        if evidence is None:
            self.run = self.run.at(max(self.run.now, wake_at(self.state) or 0))
            evidence = v.Wake()
        verdict = self._give(evidence)
        assert isinstance(verdict, Accepted), f"{order} was refused: {verdict}"

    def teardown(self) -> None:
        """Whatever happened: the journal is sound, and a live driver brings the run to rest."""
        if not hasattr(self, "run"):
            return
        self._sound(self.run.records)
        if self.state.phase is Phase.QUEUED or self.state.phase in DRIVABLE:
            self._give(v.TakeLease(holder="last"))
        for _ in range(STEPS_MAX):
            if self.state.phase not in DRIVABLE or not self.state.leased:
                break
            self._drive_on()
        assert not self.state.leased or self.state.phase is Phase.HALTED, (
            "it never came to rest"
        )
        self._sound(self.run.records)

    def _drive_on(self) -> None:
        state = self.state
        if state.cleaning:
            number, action = state.cleaning
            call = state.calls[number - 1].id
            outcome = UndoDone(call=call, action=action)
            self._give(v.CloseUndo(epoch=state.epoch, outcome=outcome))
        elif state.in_flight:
            call_ = state.calls[state.in_flight[0] - 1]
            reply = Reply(text="That is all.") if call_.call_kind == "model" else None
            done = CallDone(call=call_.id, reply=reply)
            self._give(v.Close(epoch=state.epoch, outcome=done))
        else:
            orders = plan(state)
            assert orders, f"nothing is in flight and nothing is ordered in {state.phase}"
            self._perform(orders[0], Spend(), happened=True)

    def _sound(self, records: tuple[Record, ...]) -> None:
        assert not (problems := check_journal(records)), "\n".join(map(str, problems))
        assert fold(RUN, records) == self.state


def _evidence(
    order: o.Order, state: State, reserve: Spend, *, happened: bool
) -> v.Evidence | None:
    """Return what a driver brings that performs `order`; None if it can only wait."""
    epoch = state.epoch
    match order:
        case o.Advance():
            return v.Advanced(epoch=epoch)
        case o.CallModel(call=call) | o.CallTool(call=call):
            return v.Start(epoch=epoch, call=call, seen=Seq(state.seq), reserve=reserve)
        case o.CheckCall(call=call):
            return v.SettleCall(epoch=epoch, call=call, happened=happened)
        case o.Judge(name=name):
            return v.GiveVerdict(epoch=epoch, name=name, met=happened)
        case o.AbortCall(call=call) | o.ControlChild(call=call):
            return v.Close(epoch=epoch, outcome=CallAborted(call=call))
        case o.Undo(call=call, action=action) | o.Release(call=call, action=action):
            return v.StartUndo(epoch=epoch, call=call, action=action)
        case o.RunHost():
            return v.Finish(epoch=epoch, output="hosted")
        case o.Settle():
            return v.Settled(epoch=epoch)
        case o.Park():
            return v.StandDown(epoch=epoch, why="parked")
        case o.WakeAt():
            return None


BareCore.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


@pytest.mark.once
@pytest.mark.slow
class TestBareCore(BareCore.TestCase):
    """Bounded to about twenty seconds; more with `--hypothesis-seed` and a larger count."""
