"""The alert rules and the dashboard in `deploy/` name metrics that exist, and can be parsed."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Literal

import msgspec
import promql_parser

from midrun.followers.metric_definitions import METRICS
from tests.support.paths import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
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
    """Return the labels of every series that Prometheus stores for our metrics, by name."""
    series = {}
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
    for name, matchers in re.findall(r"\b(midrun_\w+)(\{[^}]*\})?", expression):
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


def test_promtool_accepts_the_files_where_it_is_installed() -> None:
    """Elsewhere the parser above has checked the expressions, and the types the fields."""
    assert msgspec.yaml.decode(PROMETHEUS.read_bytes())["rule_files"] == [ALERTS.name]
    if promtool := shutil.which("promtool"):
        command = [promtool, "check", "config", str(PROMETHEUS)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed arguments


def test_the_guide_lists_every_metric() -> None:
    guide = (ROOT / "docs" / "guides" / "telemetry.md").read_text()
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        row = f"| `{metric.prometheus_name}` | {metric.kind} | {labels} | {metric.help} |"
        assert row in guide
