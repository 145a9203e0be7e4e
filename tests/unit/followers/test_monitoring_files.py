"""The alert rules and the dashboard in `deploy/` name metrics that exist, and can be parsed."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import httpx2
import msgspec
import promql_parser
import pytest

from midrun import Midrun
from midrun.followers import following
from midrun.followers.metric_definitions import METRICS
from midrun.followers.metrics import Metrics
from midrun.followers.prometheus import PrometheusSink, serve_metrics
from midrun.testing.controllable_tools import ControllableTools
from tests.support.paths import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
CASES = ALERTS.with_name("alerts_test.yml")
PROMETHEUS = ALERTS.with_name("prometheus.yml")
KUBERNETES = ALERTS.with_name("kubernetes.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "midrun.json"
GUIDE = ROOT / "docs" / "guides" / "operating.md"


class Labels(msgspec.Struct, forbid_unknown_fields=True):
    severity: Literal["page", "warn", "info"]


class Annotations(msgspec.Struct, forbid_unknown_fields=True):
    summary: str


class Rule(msgspec.Struct, forbid_unknown_fields=True, rename={"duration": "for"}):
    alert: str
    expr: str
    labels: Labels
    annotations: Annotations
    duration: str = "0s"


class Group(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rules: list[Rule]


class RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[Group]


def load_rules() -> list[Rule]:
    """Return all rules; a field that Prometheus does not know is an error."""
    found = msgspec.yaml.decode(ALERTS.read_bytes(), type=RuleFile)
    return [rule for group in found.groups for rule in group.rules]


def load_panel_expressions() -> list[str]:
    """Return all queries of the dashboard, with a range for Grafana's own variable."""
    dashboard = json.loads(DASHBOARD.read_text())
    return [
        target["expr"].replace("$__rate_interval", "5m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def list_series() -> dict[str, tuple[str, ...]]:
    """Return the labels of every series that Prometheus stores for our processes, by name."""
    series: dict[str, tuple[str, ...]] = {"up": ("job", "instance")}  # by Prometheus itself
    for metric in METRICS.values():
        if metric.kind == "histogram":
            series[f"{metric.prometheus_name}_bucket"] = (*metric.labels, "le")
            for suffix in ("_sum", "_count"):
                series[metric.prometheus_name + suffix] = metric.labels
        else:
            series[metric.prometheus_name] = metric.labels
    return series


def find_metrics(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics of an expression, with the labels that it selects by."""
    promql_parser.parse(expression)  # raises ValueError
    for name, matchers in re.findall(r"\b(midrun_\w+|up\b)(\{[^}]*\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*[=!]", matchers))


def test_every_expression_uses_metrics_and_labels_that_exist() -> None:
    series = list_series()
    for expression in [*(rule.expr for rule in load_rules()), *load_panel_expressions()]:
        used = dict(find_metrics(expression))
        assert used, expression
        for name, labels in used.items():
            assert name in series, expression
            assert labels <= set(series[name]), expression
        grouped = {
            label.strip()
            for labels in re.findall(r"by \(([^)]*)\)", expression)
            for label in labels.split(",")
        }
        allowed = {label for name in used for label in series[name]} | {"instance"}
        assert grouped <= allowed, expression


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for expr in load_panel_expressions() for name, _ in find_metrics(expr)}
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert names == {metric.prometheus_name for metric in METRICS.values()}


def test_the_guide_says_what_to_do_for_each_alert() -> None:
    """And it describes no alert that does not exist."""
    alerts = [rule.alert for rule in load_rules()]
    assert len(alerts) == len(set(alerts))
    sections = re.findall(r"^### (Midrun\w+)\n\n(.*)", GUIDE.read_text(), re.MULTILINE)
    assert [name for name, _ in sections] == alerts
    assert all(len(text) > 60 for _, text in sections)


needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed: the parser has checked the expressions",
)


@pytest.mark.parametrize("file", [PROMETHEUS, KUBERNETES], ids=lambda file: file.name)
def test_a_configuration_names_the_rules_and_the_job(file: Path) -> None:
    """The rules select the targets by the name of the job."""
    config = msgspec.yaml.decode(file.read_bytes())
    assert config["rule_files"] == [ALERTS.name]
    assert [each["job_name"] for each in config["scrape_configs"]] == ["midrun"]


@needs_prometheus
@pytest.mark.parametrize("file", [PROMETHEUS, KUBERNETES], ids=lambda file: file.name)
def test_promtool_accepts_the_files(file: Path, tmp_path: Path) -> None:
    token = tmp_path / "midrun-token"
    token.write_text("the-token-of-prometheus")
    text = file.read_text().replace("/etc/prometheus/midrun-token", str(token))
    # Debian builds Prometheus without Kubernetes.
    text = text.replace("kubernetes_sd_configs:\n      - role: pod", "static_configs: []")
    (tmp_path / file.name).write_text(text)
    shutil.copy(ALERTS, tmp_path)
    run_promtool("check", "config", str(tmp_path / file.name))


@needs_prometheus
@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    """Runs that wait for their place under a limit wake no person up, for example."""
    run_promtool("test", "rules", str(CASES))


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = msgspec.yaml.decode(CASES.read_bytes())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    firing = {check["alertname"] for check in checks if check["exp_alerts"]}
    assert firing == {rule.alert for rule in load_rules()}


def run_promtool(*words: str) -> None:
    command = ["promtool", *words]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our files
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_prometheus
@pytest.mark.slow
@pytest.mark.once
async def test_a_real_prometheus_scrapes_a_server_and_evaluates_every_rule(
    tmp_path: Path,
) -> None:
    """With the shipped files; only the address and the intervals are changed."""
    agent = ControllableTools().agent("Done.")
    sink = PrometheusSink()
    with anyio.fail_after(60):
        async with (
            Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun,
            following(midrun, Metrics(midrun, sink, read_interval_s=0.2)),
        ):
            await (await midrun.start(agent, "Go.", tenant="acme")).until("completed")
            with serve_metrics("127.0.0.1:0", sink.render) as url:
                target = url.removeprefix("http://").removesuffix("/metrics")
                config = PROMETHEUS.read_text().replace("127.0.0.1:9464", target)
                (tmp_path / PROMETHEUS.name).write_text(config.replace("15s", "200ms"))
                shutil.copy(ALERTS, tmp_path)
                async with run_prometheus(tmp_path) as api:
                    await check_rules_and_panels(api)


async def check_rules_and_panels(api: httpx2.AsyncClient) -> None:
    """Wait until a series and every rule were evaluated; then run each query of a panel."""
    series = 'midrun_tenant_runs_started_total{tenant="acme"}'
    while not await query(api, series):  # noqa: ASYNC110 - it is another process
        await anyio.sleep(0.05)
    while await read_rule_states(api) != {"ok"}:  # noqa: ASYNC110 - as above
        await anyio.sleep(0.05)
    found = {rule["name"] for rule in await read_rules(api)}
    assert found == {rule.alert for rule in load_rules()}
    for expression in load_panel_expressions():
        await query(api, expression)


@asynccontextmanager
async def run_prometheus(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Start Prometheus with the configuration in `folder`; yield a client of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={folder / PROMETHEUS.name}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = await anyio.open_process(command, stdout=log, stderr=log)
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}/api/v1") as api:
            yield api
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def query(api: httpx2.AsyncClient, expression: str) -> list[object]:
    """Return the result of an expression; an empty list before Prometheus answers."""
    try:
        reply = await api.get("/query", params={"query": expression})
    except httpx2.TransportError:
        return []
    if reply.status_code == 503:  # it is starting
        return []
    assert reply.status_code == 200, reply.text
    found: list[object] = reply.json()["data"]["result"]
    return found


async def read_rules(api: httpx2.AsyncClient) -> list[dict[str, str]]:
    """Return all rules that Prometheus has loaded."""
    groups = (await api.get("/rules")).json()["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


async def read_rule_states(api: httpx2.AsyncClient) -> set[str]:
    """Return the health of all rules: `unknown`, `ok` or `err`."""
    return {rule["health"] for rule in await read_rules(api)}
