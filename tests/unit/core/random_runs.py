"""A run that gets random inputs: controls, driver inputs, crashes, late results and time.

Every choice is made by a `Choose`, so that Hypothesis (which shrinks) and `random.Random`
(which is fast) can produce the same runs.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec.structs import replace

from midrun.core import controls as c
from midrun.core import driver_inputs as v
from midrun.core.controls import Control
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    LateResult,
    RunStarted,
    UndoDone,
    UndoFailed,
    UndoUnknown,
)
from midrun.core.ids import MICROS_PER_SECOND, AskId, CallId, Epoch, FrameId, Micros, Seq
from midrun.core.run_head import build_head
from midrun.core.scheduler import (
    AbortCall,
    CheckCall,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    RunProgram,
    advance,
    find_retry_time,
    find_wake_time,
    list_effects,
    start_all,
)
from midrun.core.state import CallState, State
from midrun.core.stops import (
    Custom,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    TextMention,
    measure_caps,
)
from midrun.core.transcript import Transcript
from midrun.core.transitions import (
    ADVANCE_TABLE,
    GUARD_REFUSALS,
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    Verdict,
)
from midrun.core.values import (
    DRIVABLE_PHASES,
    Actor,
    CleanupAction,
    Effect,
    FileRef,
    Phase,
    PlanItem,
    Reply,
    RequestedCall,
    Spend,
    Traits,
)
from midrun.testing.scenario import given
from midrun.verify.journal import check_journal

T = TypeVar("T")
Outcome = CallDone | CallFailed | CallAborted | CallUnknown


class Choose(Protocol):
    """A source of choices."""

    def __call__(self, items: Sequence[T], /) -> T:
        """Return one of `items`."""
        ...


ANN, BOB = Actor(name="ann"), Actor(name="bob", role="operator")

USES = (
    RequestedCall(tool="look", args={"at": 1}, traits=Traits(effect=Effect.READ)),
    RequestedCall(tool="put", args={}, traits=Traits(effect=Effect.IDEMPOTENT, undo=True)),
    RequestedCall(tool="mail", args={}),
    RequestedCall(tool="solo", args={}, traits=Traits(sequential=True, retries=0)),
    RequestedCall(tool="draft", args={}, traits=Traits(undo=True)),
    RequestedCall(tool="charge", args={}, traits=Traits(undo=True, undo_unknown=False)),
    RequestedCall(tool="lock", args={}, traits=Traits(release=True)),
    RequestedCall(tool="both", args={}, traits=Traits(undo=True, release=True)),
    RequestedCall(tool="pay", args={}, traits=Traits(check=True, undo=True)),
    RequestedCall(
        tool="send", traits=Traits(approve="block", audience="operator", four_eyes=True)
    ),
    RequestedCall(
        tool="fix", args={}, traits=Traits(approve="block", effect=Effect.IDEMPOTENT)
    ),
    RequestedCall(tool="post", args={}, traits=Traits(approve="queue", undo=True)),
    RequestedCall(tool="child", args={}, kind="child"),
    RequestedCall(tool="none", refused="there is no such tool"),
)
TEXTS = ("", "so", "all done", "more")
TOKENS = (0, 0, 40, 70)
COSTS = (0, 0, 9)
NUMBERS = tuple(range(12))
BOOLEANS = (False, True)
FILES = tuple(
    FileRef(name="plan.md", media_type="text/markdown", size=size, hash=f"{size:064}")
    for size in (1, 2, 99_999_999)
)
ACTIONS: tuple[CleanupAction, ...] = ("undo", "release")
CAPS = {"tokens": 300}
COMMON_REFUSALS = {"fenced", "lease_lost", "request_id_reused"}
COMMON_NO_OPS = {"duplicate_request"}
ROUNDS_MAX = 300
TWO_OF_THREE = (True, True, False)

STOPS = (
    None,
    None,
    None,
    MaxTokens(100),
    MaxSteps(2) | MaxTokens(150),
    MaxCost(usd=0.00002),
    MaxTime(seconds=30),
    MaxToolCalls(2),
    Repeats(2),
    TextMention("done", then="complete") | MaxSteps(3),
    Custom("checks:enough"),
    MaxSteps(1) & ~TextMention("done"),
)

CONTROL_TYPES: tuple[type[Control], ...] = (
    *(c.Pause, c.Resume, c.Redirect, c.Say, c.Say, c.Cancel),
    *(c.Answer, c.Approve, c.Decline) * 2,
    *(c.Halt, c.Lift, c.RaiseCap, c.Withdraw, c.ForcePause, c.RetryUndo, c.AcceptResidue),
    *(c.ResumeFrame, c.DropFrame, c.TakeOver, c.Write, c.UseTool, c.HandBack),
)


def make_run_started(choose: Choose) -> RunStarted:
    """Return the first entry of a random run."""
    return RunStarted(
        agent="clerk",
        task="Sort the mail",
        by="ann",
        stop=choose(STOPS),
        hosted=choose((False, False, False, True)),
        frame_depth=choose((2, 1, 0)),
        frame_ttl=20 * MICROS_PER_SECOND,
        undo_attempts=choose((1, 2)),
        model_attempts=choose((1, 2)),
        window=choose((0, 5)),
        output_retries=choose((0, 2)),
        max_parallel=choose((0, 0, 1, 2)),
    )


def choose_spend(choose: Choose) -> Spend:
    """Return a random amount."""
    return Spend(tokens=choose(TOKENS), cost=choose(COSTS))


def choose_control_types(choose: Choose) -> tuple[type[Control], ...]:
    """Return the controls of one run; a few that repeat get deeper than all of them."""
    chosen = tuple(kind for kind in CONTROL_TYPES if choose(BOOLEANS))
    return chosen or CONTROL_TYPES


def make_control(
    choose: Choose, state: State, now: Micros, types: tuple[type[Control], ...] = CONTROL_TYPES
) -> Control:
    """Return a random control, in most cases one that the phase of `state` accepts."""
    accepted = tuple(kind for kind in types if INPUT_TABLE[kind][state.phase].next_phases)
    use_accepted = bool(accepted) and choose((True, True, True, False))
    kind = choose(accepted if use_accepted else types)
    time_limit = choose((None, None, Micros(now + 5 * MICROS_PER_SECOND)))
    ask = AskId(f"a{max(0, len(state.asks) - choose((0, 0, 1, 2)))}")
    frame = FrameId(f"f{max(0, state.frames_pushed - choose((0, 0, 1)))}")
    fields: dict[type[Control], dict[str, object]] = {
        c.Pause: {"now": choose(BOOLEANS), "until": time_limit},
        c.Resume: {"instruction": choose(TEXTS), "caps": choose(({}, CAPS))},
        c.Redirect: {"text": choose(TEXTS), "when": choose(("next_step", "now"))},
        c.Say: {
            "text": choose(TEXTS),
            "urgency": choose(("next", "now", "later")),
            "due": time_limit,
        },
        c.Answer: {"ask": ask, "value": choose(("yes", "no", "unknown", 7))},
        c.Approve: {"ask": ask, "args": choose((None, {"to": "eve"}))},
        c.Decline: {"ask": ask},
        c.Cancel: {"undo": choose(("in_flight", "all"))},
        c.RaiseCap: {"caps": choose((CAPS, {"tokens": 400}, {"steps": 9}, {"cost": 99}))},
        c.Withdraw: {"seq": Seq(max(0, state.seq - choose((0, 1, 2, 3, 4))))},
        c.ResumeFrame: {"frame": frame},
        c.DropFrame: {"frame": frame},
        c.Write: {"text": choose(TEXTS)},
        c.UseTool: {"use": choose(USES)},
        c.HandBack: {"instruction": choose(TEXTS)},
    }
    request = choose(("", "", "", "", "r1", "r2", "r3", "r4"))
    return kind(by=choose((ANN, BOB)), request_id=request, **fields.get(kind, {}))  # type: ignore[arg-type]  # the fields of `kind`


def make_continuing_control(choose: Choose, state: State) -> Control | None:
    """Return a control that continues a run at rest; None if the run is not at rest."""
    if state.phase is Phase.HALTED:
        return c.Lift(by=BOB)
    if state.phase is Phase.PAUSED and state.taken_over_by:
        return c.HandBack(by=ANN if state.taken_over_by == "ann" else BOB)
    if state.phase in {Phase.PAUSED, Phase.FAILED}:
        cap_name = state.pause.cap_name if state.pause is not None else ""
        bounds = measure_caps(state.stop, state.meter)
        return c.Resume(caps={cap_name: 2 * bounds[cap_name][1] + 90} if cap_name else {})
    if state.phase is not Phase.WAITING or not state.open_asks:
        return None
    ask = state.asks[choose(state.open_asks) - 1]
    if ask.ask_kind == "approval":
        decisions: tuple[Control, ...] = (
            c.Approve(ask=ask.id, by=BOB),
            c.Decline(ask=ask.id, by=BOB),
        )
        return choose(decisions)
    return c.Answer(ask=ask.id, by=BOB, value=choose(("yes", "no", "unknown")))


def make_call_end(choose: Choose, state: State, call: CallState) -> v.CloseCall:
    """Return a random end of a call in flight."""
    reply = None
    if call.call_kind == "model":
        uses = tuple(choose(USES) for _ in range(choose((0, 1, 1, 2, 3))))
        reply = Reply(
            text=choose(TEXTS),
            uses=uses,
            prompt_tokens=choose((0, 9)),
            invalid_output=choose(("", "", "", "no such field")),
        )
    spent = choose((None, choose_spend(choose)))
    done = CallDone(call=call.id, result=1, reply=reply, spent=spent)
    code = "" if call.call_kind == "model" else choose(("", "model_retry"))
    failed = CallFailed(
        call=call.id, error="no", code=code, transient=choose(BOOLEANS), spent=spent
    )
    aborted = CallAborted(call=call.id, text=choose(TEXTS), spent=spent)
    unknown = CallUnknown(call=call.id, why="not_responding")
    outcomes: tuple[Outcome, ...] = (done, done, done, done, failed, aborted, unknown)
    return v.CloseCall(epoch=state.epoch, outcome=choose(outcomes))


def make_undo_end(choose: Choose, state: State) -> v.CloseCleanup:
    """Return a random end of the undo in flight."""
    assert state.cleanup_in_flight is not None
    number, action = state.cleanup_in_flight
    call = CallId(f"c{number}")
    kind = choose((UndoDone, UndoDone, UndoFailed, UndoUnknown))
    return v.CloseCleanup(epoch=state.epoch, outcome=kind(call=call, action=action))


def make_call_report(
    choose: Choose, state: State, call: CallState, now: Micros
) -> v.DriverInput:
    """Return a question or the saved progress of a call in flight."""
    if choose(BOOLEANS):
        if choose(BOOLEANS):
            return v.ShowArtifact(
                epoch=state.epoch, call=call.id, name="plan.md", file=choose(FILES)
            )
        return v.SaveProgress(epoch=state.epoch, call=call.id, progress=3)
    return v.AskPerson(
        epoch=state.epoch,
        call=call.id,
        question="Which one?",
        child=call.call_kind == "child",
        expires=choose((None, Micros(now + 5 * MICROS_PER_SECOND))),
    )


def make_unplanned_input(choose: Choose, state: State) -> v.DriverInput:
    """Return a driver input that no effect asked for; its call may not exist."""
    call = CallId(f"c{choose(NUMBERS)}")
    epoch = choose((state.epoch, state.epoch, Epoch(state.epoch - 1)))
    action: CleanupAction = choose(ACTIONS)
    items = (PlanItem(text="one", state="done"), PlanItem(text="two"))
    inputs: tuple[v.DriverInput, ...] = (
        v.CloseCall(epoch=epoch, outcome=CallDone(call=call)),
        v.CloseCleanup(epoch=epoch, outcome=UndoDone(call=call, action=action)),
        v.AskPerson(epoch=epoch, call=call, question="Which one?"),
        v.CloseChildAsk(ask=AskId(f"a{choose(NUMBERS)}")),
        v.SaveProgress(epoch=epoch, call=call, progress=3),
        v.ShowArtifact(epoch=epoch, call=call, name="plan.md", file=choose(FILES)),
        v.ProposeCall(epoch=epoch, use=choose(USES)),
        v.SetPlan(epoch=epoch, items=items),
        v.RecordStopVerdict(epoch=epoch, name="checks:enough", met=choose(BOOLEANS)),
        v.SettleCall(epoch=epoch, call=call, happened=choose(BOOLEANS)),
        v.FinishHostedAgent(epoch=epoch, output="over"),
        v.FailRun(epoch=epoch, error="boom"),
        v.StandDown(epoch=epoch),
        v.TakeLease(holder="two", held_by_other=True),
    )
    return choose(inputs)


def make_host_input(choose: Choose, state: State) -> v.DriverInput:
    """Return a proposed call or the end of a hosted agent; it ends after its calls."""
    if choose(BOOLEANS) or state.open_calls:
        return v.ProposeCall(epoch=state.epoch, use=choose(USES))
    return v.FinishHostedAgent(epoch=state.epoch, output="hosted")


def make_effect_input(choose: Choose, effect: DriverEffect, state: State) -> v.DriverInput:
    """Return the input of a driver that performs `effect`."""
    epoch = state.epoch
    match effect:
        case CheckCall(call=call):
            return v.SettleCall(epoch=epoch, call=call, happened=choose(BOOLEANS))
        case EvaluateStopCondition(name=name):
            return v.RecordStopVerdict(epoch=epoch, name=name, met=choose(BOOLEANS))
        case AbortCall(call=call) | ControlChild(call=call):
            return v.CloseCall(epoch=epoch, outcome=CallAborted(call=call))
        case RunProgram():
            return make_host_input(choose, state)


class RandomRun:
    """A run of the core without store and driver, and the answers to its requests."""

    def __init__(self, choose: Choose) -> None:
        self.scenario = given(make_run_started(choose))
        self.control_types = choose_control_types(choose)
        self.answers: dict[str, tuple[Control, Verdict]] = {}
        self._earlier = self.scenario.state

    @property
    def state(self) -> State:
        """The state after the last input."""
        return self.scenario.state

    # ── moves ─────────────────────────────────────────────────────────────────────────────

    def send_control(self, choose: Choose) -> None:
        """Send a random control."""
        self._send(make_control(choose, self.state, self.scenario.now, self.control_types))

    def repeat_request(self, choose: Choose) -> None:
        """Send a request again, as a client does whose reply was lost."""
        if self.answers:
            self._send(self.answers[choose(sorted(self.answers))][0])

    def drive(self, choose: Choose) -> None:
        """Continue as a live worker: end a call, perform an effect, or wake a run at rest."""
        state = self.state
        control = make_continuing_control(choose, state)
        if control is not None and choose((True, False)):
            self._send(control)
        elif not state.is_leased:
            self.give(v.TakeLease(holder="one"))
        elif state.cleanup_in_flight is not None and choose(TWO_OF_THREE):
            self.give(make_undo_end(choose, state))
        elif bool(state.in_flight) and choose(TWO_OF_THREE):
            call = state.calls[choose(state.in_flight) - 1]
            if call.call_kind != "model" and choose((False, False, False, True)):
                self.give(make_call_report(choose, state, call, self.scenario.now))
            else:
                self.give(make_call_end(choose, state, call))
        elif not self.advance(choose):
            self.perform(choose)

    def crash_worker(self, _: Choose) -> None:
        """Let another worker take the lease."""
        self.give(v.TakeLease(holder="two"))

    def send_unplanned_input(self, choose: Choose) -> None:
        """Send a driver input that no effect asked for."""
        self.give(make_unplanned_input(choose, self.state))

    def report_late_result(self, choose: Choose) -> None:
        """Report an attempt that started under a lease which is lost now."""
        started = [r for r in self.scenario.records if isinstance(r.entry, CallStarted)]
        lost = [r for r in started if r.epoch != self.state.epoch or not self.state.is_leased]
        if lost:
            record = choose(lost[::-1])
            assert isinstance(record.entry, CallStarted)
            assert record.epoch is not None
            call, attempt = record.entry.call, record.entry.attempt
            self.give(
                v.ReportLateResult(
                    result=LateResult(call=call, attempt=attempt, epoch=record.epoch)
                )
            )

    def wait(self, choose: Choose) -> None:
        """Let time pass, and wake the run."""
        self.scenario = self.scenario.later(choose((0, 1, 6, 40)))
        self.give(v.Wake())

    # ── assertions ────────────────────────────────────────────────────────────────────────

    def give(self, run_input: Input) -> Verdict:
        """Decide one input; the transition table must allow the answer."""
        before = self.state
        cell = INPUT_TABLE[type(run_input)][before.phase]
        self.scenario = self.scenario.when(run_input)
        verdict = self.scenario.verdict
        assert verdict is not None
        if isinstance(verdict, Accepted):
            assert self.state.phase in cell.next_phases, (
                f"{run_input} led to {self.state.phase}"
            )
        elif isinstance(verdict, NoChange):
            allowed = {
                cell.no_change_name,
                *COMMON_NO_OPS,
                *self._journaled_verdicts(run_input),
            }
            assert verdict.name in allowed, f"{run_input} in {before.phase}: {verdict}"
        else:
            allowed = {
                cell.refusal_name,
                *GUARD_REFUSALS.get(type(run_input), ()),
                *COMMON_REFUSALS,
                *self._journaled_verdicts(run_input),
            }
            assert verdict.reason in allowed, f"{run_input} in {before.phase}: {verdict}"
        list_effects(self.state)
        build_head(self.state)
        self._check_same_turns()
        return verdict

    def _check_same_turns(self) -> None:
        """A history that was converted before may be used again only if its turns are equal."""
        now, earlier = Transcript(self.state), Transcript(self._earlier)
        same = now.count_same_turns(earlier)
        assert now[:same] == earlier[:same]
        if len(self.scenario.records) % 8 == 0:
            self._earlier = self.state

    def _journaled_verdicts(self, run_input: Input) -> Iterable[str]:
        request = self.state.requests.get(getattr(run_input, "request_id", ""))
        return {request.verdict_name} if request else ()

    def _send(self, control: Control) -> None:
        """Send a control; a repeat must get the first answer and append no entry."""
        previous = self.answers.get(control.request_id)
        verdict = self.give(control)
        if not control.request_id:
            return
        if previous is None:
            self.answers[control.request_id] = (control, verdict)
            return
        first_control, first_verdict = previous
        assert not verdict.entries
        if first_control != control:
            assert getattr(verdict, "reason", "") == "request_id_reused"
        elif isinstance(first_verdict, Accepted):
            assert isinstance(verdict, NoChange), f"{control} was applied twice"
            assert verdict.name == "duplicate_request"
        else:
            assert replace(verdict, entries=()) == replace(first_verdict, entries=())

    def advance(self, choose: Choose) -> bool:
        """Append the next entries that follow from the journal; False if there are none."""
        before = self.state
        entries = advance(
            before, self.scenario.now, lambda _, __: choose_spend(choose), start_all
        )
        self.scenario = self.scenario.follows(entries)
        if entries:
            assert self.state.phase in ADVANCE_TABLE[before.phase], f"{entries} in {before}"
        return bool(entries)

    def perform(self, choose: Choose) -> None:
        """Perform an effect, or let the time pass for which the run waits.

        A driver that has read all entries is never refused.
        """
        effects = list_effects(self.state)
        if effects:
            effect = choose(effects)
            verdict = self.give(make_effect_input(choose, effect, self.state))
            assert isinstance(verdict, Accepted), f"{effect} was refused: {verdict}"
            return
        times = (find_wake_time(self.state), find_retry_time(self.state, self.scenario.now))
        due_at = min((time for time in times if time is not None), default=Micros(0))
        self.scenario = self.scenario.at(max(self.scenario.now, due_at))
        if due_at == times[0]:
            self.give(v.Wake())

    def assert_sound(self) -> None:
        """Assert that the journal passes every check and folds to the state."""
        problems = check_journal(self.scenario.records, state=self.state)
        assert not problems, "\n".join(map(str, problems))

    def bring_to_rest(self, choose: Choose) -> None:
        """Drive the run without faults; it must come to rest."""
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
                self.give(v.CloseCleanup(epoch=state.epoch, outcome=outcome))
            elif state.in_flight:
                call = state.calls[state.in_flight[0] - 1]
                reply = Reply(text="That is all.") if call.call_kind == "model" else None
                done = CallDone(call=call.id, reply=reply)
                self.give(v.CloseCall(epoch=state.epoch, outcome=done))
            elif not self.advance(choose):
                effects = list_effects(state)
                retry_at = find_retry_time(state, self.scenario.now)
                assert effects or retry_at, f"nothing follows and no effect in {state.phase}"
                self.perform(choose)
        assert self.state.phase not in DRIVABLE_PHASES, "the run did not come to rest"
        if self.state.cancel_request is not None:
            assert self.state.phase in {Phase.CANCELLED, Phase.HALTED}
        assert not self.state.is_leased or self.state.phase is Phase.HALTED
