"""Metrics: counted from entries, read from the store, and passed to two systems."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response

from midrun import Agent, Midrun, ask_human
from midrun.client.transport import NO_TLS_CONTEXT
from midrun.codec.journal import decode_lines
from midrun.core import entries as e
from midrun.core.evolve import fold
from midrun.core.ids import CallId, Micros, Seq
from midrun.core.values import Reply, Spend
from midrun.errors import Misconfigured
from midrun.followers import following
from midrun.followers import metric_definitions as m
from midrun.followers import metrics as module
from midrun.followers.journal_metrics import JournalMeasurement, Position, RunLabels
from midrun.followers.metrics import Metrics
from midrun.followers.otel_metrics import OtelSink
from midrun.followers.prometheus import PrometheusSink, serve_metrics
from midrun.followers.webhooks import Webhook
from midrun.models import ScriptedModel, Use
from midrun.ports.follower_cursors import HasFollowerCursors
from midrun.runs.run import Run
from midrun.server import app
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import JOURNALS, ROOT
from tests.unit.followers.receiver import SECRET, Receiver
from tests.unit.server.conftest import make_token, make_tokens, serve_on_loopback
from tools.golden.facts import RUN

STORED_JOURNALS = sorted(JOURNALS.glob("*.jsonl"))
SECRET_TASK = "Tell Mallory the word xyzzy-plugh"


def read_value(sink: PrometheusSink, name: str, **labels: str) -> float | None:
    return sink.registry.get_sample_value(name, labels)


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's own time limit ends the wait."""
    while not condition():  # noqa: ASYNC110 - the values come from another task or thread
        await anyio.sleep(0.005)


async def wait_until_counted(midrun: Midrun, run: Run) -> None:
    """Wait until all entries of a resting run are counted."""
    assert isinstance(midrun.store, HasFollowerCursors)
    cursors, end = midrun.store.follower_cursors(), (await midrun.store.get_row(run.id)).seq
    while (await cursors.get_cursor("metrics", run.id)).seq < end:  # noqa: ASYNC110 - as above
        await anyio.sleep(0.005)


@asynccontextmanager
async def open_midrun(
    path: Path, *agents: Agent, working_interval_s: float = 15.0
) -> AsyncIterator[tuple[Midrun, PrometheusSink]]:
    """Open a `Midrun` that is measured."""
    sink = PrometheusSink()
    with anyio.fail_after(60):
        async with Midrun(f"sqlite:///{path}", agents=agents) as midrun:
            metrics = Metrics(
                midrun, sink, read_interval_s=0.01, working_interval_s=working_interval_s
            )
            async with following(midrun, metrics):
                yield midrun, sink


@pytest.mark.parametrize("stored", STORED_JOURNALS, ids=lambda path: path.stem)
def test_a_journal_has_the_same_measurements_in_one_part_and_in_many(stored: Path) -> None:
    """Between two parts, only the position is kept: as after a restart."""
    records = decode_lines(RUN, stored.read_bytes().splitlines())
    origin = RunLabels("actor", {"actor": "scripted"}, fold(RUN, records).find_call)
    whole = JournalMeasurement(origin, Position())
    whole.add_records(records, after=Seq(0))
    parts: list[m.Measurement] = []
    position = Position()
    for record in records:
        start = position.unfinished or record.seq
        part = JournalMeasurement(origin, position)
        part.add_records(
            [each for each in records if start <= each.seq <= record.seq],
            after=Seq(record.seq - 1),
        )
        parts += part.results
        position = part.position
    assert parts == whole.results
    assert position == whole.position


def test_the_stored_journals_have_measurements_of_every_kind() -> None:
    """So the test above covers lost leases, failed undos and late controls."""
    found = set()
    for stored in STORED_JOURNALS:
        records = decode_lines(RUN, stored.read_bytes().splitlines())
        part = JournalMeasurement(RunLabels("", {}, fold(RUN, records).find_call), Position())
        part.add_records(records, after=Seq(0))
        found |= {measurement.metric.name for measurement in part.results}
        assert all(each.value >= 0 for each in part.results)
    elsewhere = {m.APPEND_DURATION.name, m.MODEL_COST.name, m.TENANT_MODEL_COST.name}
    assert found == {n for n, each in m.METRICS.items() if each.kind != "gauge"} - elsewhere


def test_tokens_and_cost_come_from_the_entry_of_the_reply() -> None:
    call, spent = CallId("c1"), Spend(tokens=12, input_tokens=8, output_tokens=4, cost=2_500)
    entries: list[e.Entry] = [
        e.CallStarted(call=call, call_kind="model", attempt=1, seen=Seq(0)),
        e.CallDone(call=call, reply=Reply(text="Done.", model="fallback"), spent=spent),
    ]
    records = [
        e.Record(seq=Seq(n), at=Micros(n * 1_000_000), entry=entry)
        for n, entry in enumerate(entries, 1)
    ]
    part = JournalMeasurement(
        RunLabels("actor", {"actor": "scripted"}, lambda _: None, "acme"), Position()
    )
    part.add_records(records, after=Seq(0))
    assert [(each.metric, each.labels, each.value) for each in part.results] == [
        (m.TURNS, ("actor",), 1),
        (m.MODEL_CALLS, ("actor", "fallback", "done"), 1),
        (m.MODEL_CALL_DURATION, ("actor", "fallback"), 1.0),
        (m.MODEL_TOKENS, ("actor", "fallback", "input"), 8),
        (m.MODEL_TOKENS, ("actor", "fallback", "output"), 4),
        (m.TENANT_MODEL_TOKENS, ("acme",), 12),
        (m.MODEL_COST, ("actor", "fallback"), 0.0025),
        (m.TENANT_MODEL_COST, ("acme",), 0.0025),
    ]


async def test_runs_are_counted_by_tenant_up_to_a_number_of_tenants(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midrun.followers.metrics.LABEL_SETS_MAX", 2)
    agent = ControllableTools().agent(*["Done."] * 5)
    async with open_midrun(path, agent) as (midrun, sink):
        for tenant in ("acme", "acme", "rival", "third", "fourth"):
            run = await midrun.start(agent, "Go.", tenant=tenant)
            await run.until("completed")
            await wait_until_counted(midrun, run)
    started = {"acme": 2, "rival": 1, "other": 2, "third": None}
    for tenant, count in started.items():
        value = read_value(sink, "midrun_tenant_runs_started_total", tenant=tenant)
        assert value == count, tenant
    ended = "midrun_tenant_runs_ended_total"
    assert read_value(sink, ended, tenant="acme", outcome="completed") == 2


async def test_the_calls_and_controls_of_a_run_are_counted(path: Path) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), Use("slow", name="b"), "Done.")
    async with open_midrun(path, agent) as (midrun, sink):
        run = await midrun.start(agent, SECRET_TASK)
        await tools.start("b").wait()
        await run.pause(actor="ann")
        tools.gate("b").set()
        await run.until("paused")
        await run.resume(SECRET_TASK, actor="ann")
        await run.until("completed")
        await wait_until_counted(midrun, run)
        text = sink.render()[0].decode()
    of_actor = {"agent": "actor"}
    assert read_value(sink, "midrun_runs_started_total", **of_actor) == 1
    assert read_value(sink, "midrun_runs_ended_total", **of_actor, outcome="completed") == 1
    assert read_value(sink, "midrun_turns_total", **of_actor) == 3
    of_model = {**of_actor, "model": "scripted"}
    assert read_value(sink, "midrun_model_calls_total", **of_model, outcome="done") == 3
    assert read_value(sink, "midrun_model_call_duration_seconds_count", **of_model) == 3
    for tool in ("quick", "slow"):
        labels = {**of_actor, "tool": tool, "outcome": "done"}
        assert read_value(sink, "midrun_tool_calls_total", **labels) == 1
    for control in ("pause", "resume"):
        assert read_value(sink, "midrun_controls_total", control=control) == 1
        latency = "midrun_control_latency_seconds_count"
        assert read_value(sink, latency, control=control) == 1
    assert read_value(sink, "midrun_leases_lost_total", **of_actor) == 0
    appends = read_value(sink, "midrun_append_duration_seconds_count")
    assert appends is not None
    assert appends >= 5
    assert "xyzzy" not in text
    assert run.id not in text


async def test_after_a_handoff_the_labels_name_the_agent_and_the_model_that_spoke(
    path: Path,
) -> None:
    desk_model, front_model = (
        ScriptedModel(["The bill is 5."]),
        ScriptedModel([Use("hand_off_to_desk", why="a bill")]),
    )
    desk_model.name, front_model.name = "test:desk", "test:front"
    desk = Agent("desk", model=desk_model)
    front = Agent("front", model=front_model, handoffs=[desk])
    async with open_midrun(path, front) as (midrun, sink):
        run = await midrun.start(front, "How much?")
        await run.until("completed")
        await wait_until_counted(midrun, run)
    for agent, model in (("front", "test:front"), ("desk", "test:desk")):
        labels = {"agent": agent, "model": model}
        assert read_value(sink, "midrun_model_calls_total", **labels, outcome="done") == 1
        tokens = read_value(sink, "midrun_model_tokens_total", **labels, kind="output")
        total = read_value(sink, "midrun_model_tokens_total", **labels, kind="total")
        assert (tokens or total or 0) > 0
        assert read_value(sink, "midrun_turns_total", agent=agent) == 1
    wrong = {"agent": "front", "model": "test:desk", "outcome": "done"}
    assert read_value(sink, "midrun_model_calls_total", **wrong) is None


async def test_a_run_that_works_is_counted_before_it_rests(path: Path) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), Use("slow", name="b"), "Done.")
    async with open_midrun(path, agent, working_interval_s=0) as (midrun, sink):
        run = await midrun.start(agent, "Go.")
        await tools.start("b").wait()
        labels = {"agent": "actor", "tool": "quick", "outcome": "done"}
        await wait_for(lambda: read_value(sink, "midrun_tool_calls_total", **labels) == 1)
        tools.gate("b").set()
        await run.until("completed")
        await wait_until_counted(midrun, run)
        slow = {**labels, "tool": "slow"}
        assert read_value(sink, "midrun_tool_calls_total", **slow) == 1


async def test_entries_are_counted_once_over_restarts_of_the_process(path: Path) -> None:
    """A new process counts on at the cursor, also the entries written in between."""
    tools = ControllableTools()
    agent = tools.agent("One.", "Two.", "Three.")
    started = Counter[str]()
    for part in ("first", "second"):
        async with open_midrun(path, agent) as (midrun, sink):
            run = await midrun.start(agent, part)
            await run.until("completed")
            await wait_until_counted(midrun, run)
            started[part] = int(
                read_value(sink, "midrun_runs_started_total", agent="actor") or 0
            )
        async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
            if part == "first":  # this process counts nothing
                await (await midrun.start(agent, "unseen")).until("completed")
    assert started == {"first": 1, "second": 2}


async def test_gauges_show_runs_asks_halts_and_workers(path: Path) -> None:
    model = ScriptedModel([Use("ask_human", question="Which vendor?"), "Done."])
    agent = Agent("asker", model=model, tools=[ask_human])
    async with open_midrun(path, agent) as (midrun, sink):
        run = await midrun.start(agent, "Go.")
        await run.until("waiting")
        await midrun.halt("test", scope="agent:other", actor="operator:olga")
        waiting = {"agent": "asker", "phase": "waiting"}
        await wait_for(lambda: read_value(sink, "midrun_runs", **waiting) == 1)
        await wait_for(lambda: read_value(sink, "midrun_halts") == 1)
        assert read_value(sink, "midrun_asks_open", agent="asker") == 1
        first_age = read_value(sink, "midrun_ask_age_seconds", agent="asker")
        assert first_age is not None
        await wait_for(
            lambda: (read_value(sink, "midrun_ask_age_seconds", agent="asker") or 0) > first_age
        )
        assert read_value(sink, "midrun_store_up") == 1
        assert read_value(sink, "midrun_runs_without_worker") == 0
        await run.answer("A", actor="ann")
        await run.until("completed")
        # A label set without runs disappears; it does not stay at its last value.
        await wait_for(lambda: read_value(sink, "midrun_runs", **waiting) is None)
        await wait_until_counted(midrun, run)
        assert read_value(sink, "midrun_ask_wait_seconds_count", kind="question") == 1


async def test_the_lag_of_a_webhook_is_the_age_of_its_oldest_undelivered_change(
    path: Path, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Response(status_code=503)
    agent, sink = ControllableTools().agent("Done."), PrometheusSink()
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        webhook = Webhook(receiver.url, secret=SECRET, name="hook")
        metrics = Metrics(midrun, sink, followers=[webhook.name], read_interval_s=0.01)
        async with following(midrun, webhook, metrics):
            await (await midrun.start(agent, "Go.")).until("completed")
            lag = "midrun_follower_lag_seconds"
            await wait_for(lambda: (read_value(sink, lag, follower="hook") or 0) > 0)
            receiver.answer = lambda _: Response(status_code=204)
            await wait_for(lambda: read_value(sink, lag, follower="hook") == 0)


async def test_both_systems_get_the_same_values(path: Path) -> None:
    reader, tools = InMemoryMetricReader(), ControllableTools()
    provider = MeterProvider(metric_readers=[reader])
    agent, prometheus = tools.agent(Use("quick", name="a"), "Done."), PrometheusSink()
    with anyio.fail_after(60):
        async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
            sinks = (prometheus, OtelSink(provider=provider))
            metrics = Metrics(midrun, *sinks, read_interval_s=0.01)
            metrics.add_gauge("midrun.feed_watchers", lambda: 7)
            async with following(midrun, metrics):
                run = await midrun.start(agent, "Go.")
                await run.until("completed")
                await wait_until_counted(midrun, run)
                await wait_for(lambda: read_value(prometheus, "midrun_feed_watchers") == 7)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    assert set(found) <= set(m.METRICS)
    for name, metric in found.items():
        assert metric.unit == m.METRICS[name].unit
    (calls,) = found["midrun.tool_calls"].data.data_points
    assert dict(calls.attributes or {}) == {
        "agent": "actor",
        "tool": "quick",
        "outcome": "done",
    }
    assert calls.value == 1  # type: ignore[union-attr]  # the point of a counter
    (watchers,) = found["midrun.feed_watchers"].data.data_points
    assert watchers.value == 7  # type: ignore[union-attr]  # the point of a gauge
    (appends,) = found["midrun.append_duration"].data.data_points
    counted = read_value(prometheus, "midrun_append_duration_seconds_count")
    assert appends.count == counted  # type: ignore[union-attr]  # the point of a histogram


def test_every_metric_has_its_name_kind_and_labels_in_both_systems() -> None:
    """The other tests show that each is measured."""
    reader, prometheus = InMemoryMetricReader(), PrometheusSink()
    provider = MeterProvider(metric_readers=[reader])
    otel = OtelSink(provider=provider)
    measured = [m.Measurement(each, each.labels, 3.0) for each in m.METRICS.values()]
    for sink in (prometheus, otel):
        sink.replace_gauges([each for each in measured if each.metric.kind == "gauge"])
        for each in measured:
            if each.metric.kind != "gauge":
                sink.record(each)
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        metric.name: [dict(point.attributes or {}) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    text = prometheus.render()[0].decode()
    for metric in m.METRICS.values():
        labels = {name: name for name in metric.labels}
        assert points[metric.name] == [labels]
        suffix = "_count" if metric.kind == "histogram" else ""
        value = read_value(prometheus, metric.prometheus_name + suffix, **labels)
        assert value == (1 if suffix else 3), metric.name
        assert f"# TYPE {metric.prometheus_name} {metric.kind}" in text


async def test_gauges_show_a_queue_without_a_worker_and_the_lag_of_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAG_PROBE_S", 0.001)
    agent, sink, url = ControllableTools().agent("Done."), PrometheusSink(), f"sqlite:///{path}"
    with anyio.fail_after(60):
        async with (
            Midrun(url, agents=[agent], engine=None) as midrun,
            following(midrun, Metrics(midrun, sink, read_interval_s=0.01)),
        ):
            run = await midrun.start(agent, "Go.")
            age, lag = "midrun_queue_age_seconds", "midrun_event_loop_lag_seconds"
            await wait_for(lambda: (read_value(sink, age, agent="actor") or 0) > 0)
            await wait_for(lambda: (read_value(sink, lag) or 0) > 0)
            await wait_for(lambda: read_value(sink, "midrun_runs_without_worker") == 1)
            assert read_value(sink, "midrun_workers") == 0
            async with Midrun(url, agents=[agent]) as worker:
                await (await worker.get(run.id)).until("completed")
            await wait_for(lambda: read_value(sink, "midrun_runs_without_worker") == 0)
            await wait_for(lambda: read_value(sink, age, agent="actor") is None)


async def test_the_number_of_label_sets_is_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that a client could choose must not fill the memory, nor carry a text."""
    monkeypatch.setattr(module, "LABEL_SETS_MAX", 3)
    sink = PrometheusSink()
    async with Midrun(f"sqlite:///{path}") as midrun:
        metrics = Metrics(midrun, sink)
        for name in ("a", "b", "a", "two\nlines", "c", "d"):
            metrics._record(m.Measurement(m.CAPS_REACHED, (name,), 1))
    families = text_string_to_metric_families(sink.render()[0].decode())
    (family,) = [each for each in families if each.name == "midrun_caps_reached"]
    values = {
        sample.labels["agent"]: sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert values == {"a": 2, "b": 1, "other": 3}


async def test_the_server_of_metrics_wants_its_token() -> None:
    sink = PrometheusSink()

    def fetch(url: str, token: str = "") -> tuple[int, str]:
        request = urllib.request.Request(url)  # noqa: S310 - our own server
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request) as reply:  # noqa: S310 - as above
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    for address in ("127.0.0.1:0", "[::1]:0"):
        with serve_metrics(address, sink.render) as url:
            status, text = await anyio.to_thread.run_sync(fetch, url)
            assert status == 200
            assert "# TYPE midrun_runs gauge" in text
            assert (await anyio.to_thread.run_sync(fetch, f"{url}x"))[0] == 404
    with serve_metrics("0.0.0.0:0", sink.render, token="let-me-in") as shown:
        url = shown.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - to be reached
        assert await anyio.to_thread.run_sync(fetch, url) == (401, "")
        assert await anyio.to_thread.run_sync(fetch, url, "wrong") == (401, "")
        assert (await anyio.to_thread.run_sync(fetch, url, "let-me-in"))[0] == 200


async def test_a_process_that_was_scraped_can_be_restarted_at_once() -> None:
    """The kernel keeps the connections of the last scrapes for a minute (TIME_WAIT)."""
    sink = PrometheusSink()
    with serve_metrics("127.0.0.1:0", sink.render) as url:
        await anyio.to_thread.run_sync(urllib.request.urlopen, url)
    address = url.removeprefix("http://").removesuffix("/metrics")
    with serve_metrics(address, sink.render) as again:
        assert again == url
        problem = r"Cannot listen there: Address already in use\. Choose another address"
        with pytest.raises(Misconfigured, match=problem), serve_metrics(address, sink.render):
            pass


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("0.0.0.0:0", "MIDRUN_METRICS_TOKEN"),
        ("9464", "must be an IP address and a port"),
        ("host.example:9464", "must be an IP address and a port"),
        ("127.0.0.1:99999", "port"),
    ],
)
def test_an_unusable_address_is_refused(address: str, problem: str) -> None:
    with (
        pytest.raises(Misconfigured, match=problem),
        serve_metrics(address, PrometheusSink().render),
    ):
        pass


async def test_only_operators_read_the_metrics_of_a_server(path: Path) -> None:
    agent, sink = ControllableTools().agent("Done."), PrometheusSink()
    with anyio.fail_after(60):
        async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
            metrics = Metrics(midrun, sink, read_interval_s=0.01)
            asgi_app = app(midrun, auth=make_tokens(), metrics=metrics)
            async with (
                following(midrun, metrics),
                serve_on_loopback(asgi_app) as port,
                httpx2.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", verify=NO_TLS_CONTEXT
                ) as client,
            ):
                await wait_for(lambda: read_value(sink, "midrun_feed_watchers") == 0)
                replies = {}
                for name in ("stranger", "vera", "ann", "olga"):
                    headers = {"Authorization": f"Bearer {make_token(name)}"}
                    replies[name] = await client.get("/metrics", headers=headers)
                codes = {name: reply.status_code for name, reply in replies.items()}
                assert replies["olga"].headers["content-type"].startswith("text/plain")
                assert "midrun_store_up 1.0" in replies["olga"].text
    assert codes == {"stranger": 401, "vera": 403, "ann": 403, "olga": 200}


@pytest.mark.slow
def test_a_worker_without_a_server_shows_its_metrics(path: Path) -> None:
    command = [sys.executable, "-m", "midrun", "worker", str(ROOT / "tests/unit/cli/app.py")]
    options = ["--store", f"sqlite:///{path}", "--metrics", "127.0.0.1:0", "--json"]
    with subprocess.Popen(  # noqa: S603 - our own command
        [*command, *options], stdout=subprocess.PIPE, text=True, env={**os.environ, "GATE": ""}
    ) as worker:
        try:
            assert worker.stdout is not None
            url = json.loads(worker.stdout.readline())["metrics"]
            assert json.loads(worker.stdout.readline())["driving"]
            with urllib.request.urlopen(url) as reply:  # noqa: S310 - our own server
                text = reply.read().decode()
            assert "# TYPE midrun_append_duration_seconds histogram" in text
            worker.terminate()
            assert worker.wait() == 0
        finally:
            worker.kill()
