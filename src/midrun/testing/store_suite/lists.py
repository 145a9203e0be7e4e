"""Lists: all runs, runs that need a worker, runs that are due."""

from datetime import timedelta

import pytest
from msgspec.structs import astuple, replace

from midrun.core.entries import RunCancelled, RunCompleted, RunStarted
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import CursorRefused
from midrun.ports.audit import AUDIT_TEXT_MAX_CHARS, AuditEntry, HasAuditLog
from midrun.ports.store import OwnerUsage, RunQuery, Store
from midrun.testing.store_suite.fixtures import (
    ManualClock,
    StoreSuiteFixtures,
    create_run,
    make_head,
    make_message,
    make_started,
    take_lease,
)

LEASE_TTL = timedelta(seconds=10)

SEARCHES = {
    "invoice": ["b", "a"],
    "INVO": ["b", "a"],  # the beginning of a word, in any case
    "voice": [],  # not its middle
    "cafe invoices": ["b"],  # accents do not matter; all words must be there
    "paid": ["a"],  # the output
    "invoice paid": ["a"],  # task and output together
    "blue:urgent": ["b"],  # labels, and signs between words
    "clerk": ["b", "a"],  # the agent
    "会議": ["c"],  # a script without spaces
    "half": ["c"],  # the partial answer of a cancelled run
    "' OR 1=1 --": [],  # words, and no query language
    "NOT paid*": [],
    "!?": [],
}
"""Text to search for → the runs that have its words."""


async def create_with_head(store: Store, name: str, head: Head) -> RunId:
    """Create a run with this head."""
    run = RunId(name)
    await store.create(run, [make_started()], head=head)
    return run


async def append_with_head(store: Store, run: RunId, after: int, head: Head) -> None:
    """Append an entry that changes the head of a run."""
    await store.append(run, [make_message()], after=Seq(after), lease=None, head=head)


async def list_run_ids(store: Store, query: RunQuery) -> list[str]:
    """Return the ids on all pages."""
    names: list[str] = []
    while True:
        page = await store.list_runs(query)
        assert len(page.items) <= query.limit
        names += [row.run for row in page.items]
        if not page.cursor:
            return names
        query = replace(query, cursor=page.cursor)


class ListTests(StoreSuiteFixtures):
    """Lists are filtered by heads, and paged without gaps."""

    async def test_runs_are_listed_newest_first_with_their_heads(self, store: Store) -> None:
        assert (await store.list_runs(RunQuery())).items == ()
        for n in range(5):
            await create_with_head(
                store, f"r{n}", Head(phase=Phase.QUEUED, task=f"task {n}", step=n)
            )
        page = await store.list_runs(RunQuery(limit=3))
        assert [row.run for row in page.items] == ["r4", "r3", "r2"]
        assert page.items[0].head.task == "task 4"
        assert page.items[0] == await store.get_row(RunId("r4"))
        rest = await store.list_runs(RunQuery(limit=3, cursor=page.cursor))
        assert ([row.run for row in rest.items], rest.cursor) == (["r1", "r0"], "")

    async def test_runs_are_found_by_the_words_of_task_agent_labels_and_output(
        self, store: Store
    ) -> None:
        """The same words find the same runs in every store."""
        started = {
            "a": RunStarted(agent="clerk", task="Check the invoice"),
            "b": RunStarted(
                agent="clerk", task="Invoices of the Café", labels=("blue-urgent",)
            ),
            "c": RunStarted(agent="other", task="来週の会議"),
        }
        for name, entry in started.items():
            await store.create(RunId(name), [entry], head=make_head())
        for name, phase, end in (
            ("a", Phase.COMPLETED, RunCompleted(output="Paid already.")),
            ("c", Phase.CANCELLED, RunCancelled(partial="Half of it")),
        ):
            run = RunId(name)
            lease = await take_lease(store, run, 1, "here")
            await store.append(run, [end], after=Seq(2), lease=lease, head=make_head(phase))
        for search, names in SEARCHES.items():
            found = await list_run_ids(store, RunQuery(search=search, limit=1))
            assert found == names, search

    async def test_a_search_finds_only_the_runs_of_its_other_filters(
        self, store: Store
    ) -> None:
        """The owner is part of the query: a user cannot find runs of others."""
        for number, owner in enumerate(("ada", "bob", "ada")):
            head = Head(phase=Phase.QUEUED, owner=owner, labels=("l",) if number else ())
            await create_with_head(store, f"r{number}", head)
        assert await list_run_ids(store, RunQuery(search="researcher")) == ["r2", "r1", "r0"]
        assert await list_run_ids(store, RunQuery(search="rese", owner="ada")) == ["r2", "r0"]
        assert await list_run_ids(store, RunQuery(search="rese", decider="bob")) == ["r1"]
        query = RunQuery(search="rese", owner="ada", label="l", phases=(Phase.QUEUED,))
        assert await list_run_ids(store, query) == ["r2"]

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            (RunQuery(), ["d", "c", "b", "a"]),
            (RunQuery(phases=(Phase.PAUSED,)), ["d", "b"]),
            (RunQuery(phases=(Phase.QUEUED, Phase.PAUSED, Phase.QUEUED)), ["d", "b", "a"]),
            (RunQuery(phases=(Phase.FAILED,)), []),
            (RunQuery(agent="x"), ["b", "a"]),
            (RunQuery(agent="x", phases=(Phase.PAUSED, Phase.WAITING)), ["b"]),
            (RunQuery(label="l1"), ["c", "a"]),
            (RunQuery(label="l2", phases=(Phase.WAITING,)), ["c"]),
            (RunQuery(thread="t"), ["d", "a"]),
            (RunQuery(thread="t", agent="y"), ["d"]),
            (RunQuery(parent=RunId("a")), ["c"]),
            (RunQuery(parent=RunId("a"), label="l1", attention=True), ["c"]),
            (RunQuery(parent=RunId("a"), label="l9"), []),
            (RunQuery(attention=True), ["d", "c"]),
            (RunQuery(attention=True, label="l1"), ["c"]),
            (RunQuery(owner="ann"), ["d", "a"]),
            (RunQuery(owner="ann", thread="t", agent="y"), ["d"]),
            (RunQuery(owner="ann", phases=(Phase.QUEUED, Phase.WAITING)), ["a"]),
            (RunQuery(decider="ann", attention=True), ["d", "c"]),
            (RunQuery(decider="bob", attention=True), ["c"]),
            (RunQuery(decider="bo"), []),
            (RunQuery(owner="x' OR 1=1 --"), []),
            (RunQuery(agent="x' OR 1=1 --"), []),
            (RunQuery(label="%"), []),
        ],
    )
    async def test_a_filter_leaves_exactly_what_fits(
        self, store: Store, query: RunQuery, names: list[str]
    ) -> None:
        heads = {
            "a": Head(
                phase=Phase.QUEUED, agent="x", labels=("l1", "l2"), thread="t", owner="ann"
            ),
            "b": Head(phase=Phase.PAUSED, agent="x"),
            "c": Head(
                phase=Phase.WAITING,
                agent="y",
                labels=("l2", "l1"),
                parent=RunId("a"),
                attention="ask",
                addressees=("ann", "bob"),
            ),
            "d": Head(phase=Phase.PAUSED, agent="y", thread="t", attention="cap", owner="ann"),
        }
        for name, its in heads.items():
            await create_with_head(store, name, its)
        assert await list_run_ids(store, query) == names
        assert await list_run_ids(store, replace(query, limit=1)) == names

    async def test_paging_sees_every_run_once_while_others_come_and_change(
        self, store: Store
    ) -> None:
        queued = Head(phase=Phase.QUEUED)
        for n in range(20):
            await create_with_head(store, f"r{n}", queued)
        seen: list[str] = []
        cursor = ""
        for turn in range(7):
            page = await store.list_runs(
                RunQuery(phases=(Phase.QUEUED,), limit=3, cursor=cursor)
            )
            seen += [row.run for row in page.items]
            cursor = page.cursor
            await create_with_head(store, f"new{turn}", queued)
            for n in (turn, 19 - turn):  # one on an earlier page, one on a later page
                head = (await store.get_row(RunId(f"r{n}"))).seq
                await append_with_head(store, RunId(f"r{n}"), head, queued)
        assert seen == [f"r{n}" for n in reversed(range(20))]
        assert not cursor

    async def test_runs_of_others_take_no_place_in_a_users_list(self, store: Store) -> None:
        await create_with_head(store, "mine", Head(phase=Phase.QUEUED, owner="ann"))
        for n in range(60):
            await create_with_head(store, f"r{n}", Head(phase=Phase.QUEUED, owner="bob"))
        page = await store.list_runs(RunQuery(owner="ann", limit=5))
        assert ([row.run for row in page.items], page.cursor) == (["mine"], "")

    async def test_the_usage_of_an_owner_is_what_their_runs_take(
        self, store: Store, clock: ManualClock
    ) -> None:
        ours = Head(phase=Phase.RUNNING, owner="ann", cost=7, tokens=9)
        await create_with_head(store, "old", ours)
        clock.move(10)
        since = clock.now
        for name in ("a", "b"):
            await create_with_head(store, name, ours)
        await append_with_head(
            store, RunId("b"), 1, replace(ours, phase=Phase.COMPLETED, cost=30)
        )
        await create_with_head(store, "theirs", Head(phase=Phase.RUNNING, owner="bob", cost=99))
        usage = await store.get_usage("ann", since=since)
        assert (usage.open_runs, usage.runs, usage.cost, usage.tokens) == (2, 2, 37, 18)
        journals = [await store.read_lines(RunId(name)) for name in ("old", "a", "b")]
        assert usage.stored_bytes == sum(len(line) for lines in journals for line, _ in lines)
        without = await store.get_usage("ann", since=since, sizes=False)
        assert without == replace(usage, stored_bytes=0)
        assert usage.oldest_start == since
        assert await store.get_usage("nemo", since=since) == OwnerUsage()
        assert (await store.get_usage("", since=since)).cost == 37 + 99
        assert await store.get_usage("ann", since=since, tenant="acme") == OwnerUsage()
        theirs = Head(phase=Phase.FAILED, owner="ann", tenant="acme", cost=5, tokens=1)
        await create_with_head(store, "acme", theirs)
        for owner in ("ann", ""):
            used = await store.get_usage(owner, since=since, tenant="acme")
            assert (used.open_runs, used.runs, used.cost, used.tokens) == (1, 1, 5, 1)
            (line, _), *_ = await store.read_lines(RunId("acme"))
            assert used.stored_bytes == len(line)
        assert await store.get_usage("ann", since=since) == usage

    @pytest.mark.parametrize("cursor", ["x", "r 1", "r" + "f" * 80, "é", "r1'"])
    async def test_a_cursor_that_no_list_gave_out_is_refused(
        self, store: Store, cursor: str
    ) -> None:
        with pytest.raises(CursorRefused):
            await store.list_runs(RunQuery(cursor=cursor))

    async def test_a_list_is_asked_for_some_of_its_runs(self, store: Store) -> None:
        """Every limit is accepted, however large."""
        for n in range(3):
            await create_with_head(store, f"r{n}", Head(phase=Phase.QUEUED, wake_at=Micros(1)))
        for limit in (0, -1, -(2**63)):
            with pytest.raises(ValueError, match="limit"):
                await store.list_runs(RunQuery(limit=limit))
        for limit in (3, 2**31, 2**63, 2**70):
            page = await store.list_runs(RunQuery(limit=limit))
            assert ([row.run for row in page.items], page.cursor) == (["r2", "r1", "r0"], "")
            assert len(await store.list_drivable(limit=limit)) == 3
            assert len(await store.list_due(limit=limit)) == 3
        assert (await store.list_drivable(limit=0), await store.list_due(limit=0)) == ([], [])
        for listed_with in (store.list_drivable(limit=-1), store.list_due(limit=-1)):
            with pytest.raises(ValueError, match="limit"):
                await listed_with

    @pytest.mark.parametrize(
        "field", ["agent", "label", "thread", "parent", "owner", "decider"]
    )
    async def test_a_filter_that_cannot_be_written_down_is_refused(
        self, store: Store, field: str
    ) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            await store.list_runs(replace(RunQuery(), **{field: "\ud800"}))
        with pytest.raises(ValueError, match="surrogate"):
            await store.list_drivable(limit=1, agents=["\ud800"])

    async def test_runs_are_counted_by_the_phase_they_are_in(self, store: Store) -> None:
        assert not await store.count_runs_by_phase()
        for n in range(3):
            await create_with_head(store, f"r{n}", Head(phase=Phase.QUEUED))
        await append_with_head(store, RunId("r1"), 1, Head(phase=Phase.PAUSED))
        assert await store.count_runs_by_phase() == {Phase.QUEUED: 2, Phase.PAUSED: 1}

    async def test_open_runs_are_grouped_by_agent_and_phase(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Runs that have ended are left out: there may be millions of them."""
        assert not await store.count_open_runs()
        first = clock.now
        for name, head in {
            "r0": Head(phase=Phase.QUEUED, agent="a"),
            "r1": Head(phase=Phase.WAITING, agent="a"),
            "r2": Head(phase=Phase.WAITING, agent="a", asks=2),
            "r3": Head(phase=Phase.WAITING, agent="b", asks=1),
            "r4": Head(phase=Phase.COMPLETED, agent="a"),
            "r5": Head(phase=Phase.CANCELLED, agent="b"),
        }.items():
            await create_with_head(store, name, head)
            clock.move(1)
        a_second = MICROS_PER_SECOND
        assert [astuple(group) for group in await store.count_open_runs()] == [
            ("a", Phase.QUEUED, 1, 0, first, None),
            ("a", Phase.WAITING, 2, 2, first + a_second, first + 2 * a_second),
            ("b", Phase.WAITING, 1, 1, first + 3 * a_second, first + 3 * a_second),
        ]

    async def test_the_audit_log_keeps_entries_in_order_with_the_stores_time(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert isinstance(store, HasAuditLog)
        first = clock.now
        for number in range(3):
            entry = AuditEntry(action="export", actor=f"a\0{number}", reason="\ud800" * 999)
            await store.append_audit(entry)
            clock.move(1)
        end = Micros(first + 2 * MICROS_PER_SECOND)
        found = await store.list_audit(since=first, until=end, after=0, limit=9)
        assert [(entry.actor, entry.at) for _, entry in found] == [
            ("a\x000", first),
            ("a\x001", first + MICROS_PER_SECOND),
        ]
        assert found[0][1].reason == "?" * AUDIT_TEXT_MAX_CHARS
        ((number, _),) = await store.list_audit(since=first, until=end, after=0, limit=1)
        rest = await store.list_audit(since=first, until=end, after=number, limit=9)
        assert rest == found[1:]

    async def test_runs_without_a_live_holder_need_a_worker(
        self, store: Store, clock: ManualClock
    ) -> None:
        for phase in Phase:
            await create_with_head(store, phase.value, Head(phase=phase, agent="x"))
        drivable = ["queued", "running", "pausing", "cancelling"]
        assert await store.list_drivable(limit=10) == drivable
        assert await store.list_drivable(limit=2) == drivable[:2]
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        await take_lease(store, RunId("queued"), 1, "a")
        assert await store.list_drivable(limit=10) == drivable[1:]
        clock.move(11)
        assert await store.list_drivable(limit=10) == drivable
        await store.record_heartbeat("a", ttl=LEASE_TTL)
        assert await store.list_drivable(limit=10) == drivable[1:]
        await store.release_leases("a")
        assert await store.list_drivable(limit=10) == drivable

    async def test_runs_of_agents_that_a_process_does_not_know_are_left_out(
        self, store: Store
    ) -> None:
        for n, agent in enumerate(["x", "x", "y"]):
            await create_with_head(store, f"r{n}", Head(phase=Phase.QUEUED, agent=agent))
        assert await store.list_drivable(limit=1, agents=["y", "z"]) == ["r2"]
        assert await store.list_drivable(limit=9, agents=["z"]) == []

    async def test_runs_are_due_when_the_stores_clock_says_so(
        self, store: Store, clock: ManualClock
    ) -> None:
        for name, wait in (("late", 20), ("soon", 5), ("never", None)):
            wake_at = None if wait is None else Micros(clock.now + wait * MICROS_PER_SECOND)
            await create_with_head(store, name, Head(phase=Phase.WAITING, wake_at=wake_at))
        assert await store.list_due(limit=9) == []
        clock.move(5)
        assert await store.list_due(limit=9) == ["soon"]
        clock.move(100)
        assert await store.list_due(limit=9) == ["soon", "late"]
        assert await store.list_due(limit=1) == ["soon"]
        await append_with_head(store, RunId("soon"), 1, Head(phase=Phase.QUEUED))
        assert await store.list_due(limit=9) == ["late"]

    async def test_a_run_without_labels_has_none(self, store: Store) -> None:
        await create_run(store)
        assert await list_run_ids(store, RunQuery(label="x")) == []
