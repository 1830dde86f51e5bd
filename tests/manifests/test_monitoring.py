"""The component `monitoring`: promtool checks and tests its rules, and the operator's CRDs accept its objects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import LocalCluster
from localcluster.programs.packages import find
from tests.chain.test_observability import PAGE, documented
from tests.manifests import prometheus
from tests.manifests.rendering import INSTALLS, MANIFESTS, SPARING, Manifest, of_kind, rendered, sent

COMPONENT = MANIFESTS / "components" / "monitoring"
PLAYED = Path(__file__).with_name("rules_test.yaml")
METRIC = re.compile(r"\bnodemaintenance_\w+")
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


def promtool(*arguments: str | Path, folder: Path) -> None:
    """Run promtool; fail the test with its output if it reports an error."""
    done = subprocess.run([find("promtool"), *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> Manifest:
    (rule,) = yaml.safe_load_all((COMPONENT / "rules.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    spec: Manifest = rule["spec"]
    return spec


def dashboard() -> Manifest:
    board: Manifest = json.loads((COMPONENT / "dashboard.json").read_text())
    return board


def expressions(value: Any) -> list[str]:
    """Return every `expr` at any depth."""
    if isinstance(value, list):
        return [expr for item in value for expr in expressions(item)]
    if not isinstance(value, dict):
        return []
    return [expr for key, child in value.items() for expr in ([child] if key == "expr" else expressions(child))]


def with_monitoring(name: str, folder: Path) -> list[Manifest]:
    """Return the objects of an overlay that adds the component, as a custom overlay does."""
    there = os.path.relpath(MANIFESTS, folder.resolve())
    file = {"resources": [f"{there}/overlays/{name}"], "components": [f"{there}/components/monitoring"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(file))
    return rendered(folder)


@pytest.mark.slow
def test_prometheus_takes_the_rules_and_they_say_what_they_should(tmp_path: Path) -> None:
    """Check that promtool accepts the rules and that its rule tests pass.

    They cover blocked maintenances with budget and node, failures, dead letters and a stopped resync.
    """
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    shutil.copy(PLAYED, tmp_path)

    promtool("check", "rules", "rules.yaml", folder=tmp_path)
    promtool("test", "rules", PLAYED.name, folder=tmp_path)


def test_every_alert_is_played() -> None:
    alerts = {rule["alert"] for group in rules()["groups"] for rule in group["rules"]}
    played = yaml.safe_load(PLAYED.read_text())["tests"]

    assert {test["alertname"] for each in played for test in each["alert_rule_test"] if test["exp_alerts"]} == alerts


def test_prometheus_takes_the_dashboards_expressions(tmp_path: Path) -> None:
    """Check that promtool accepts the dashboard's expressions as recording rules, with Grafana's variables replaced."""
    found = [expr.replace("$__rate_interval", "1m") for expr in expressions(dashboard())]
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(found)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    assert len(found) >= len(dashboard()["panels"])
    promtool("check", "rules", "panels.yaml", folder=tmp_path)


@pytest.mark.parametrize("where", [rules, dashboard], ids=["rules", "dashboard"])
def test_only_metrics_that_exist_are_asked_for(where: Any) -> None:
    """Check that only metrics of docs/observability.md are used, which another test compares with /metrics."""
    known = documented(PAGE)
    asked = {name for expr in expressions(where()) for name in METRIC.findall(expr)}
    whole = {next((name.removesuffix(end) for end in OF_HISTOGRAMS if name.endswith(end)), name) for name in asked}

    assert asked
    assert whole <= known.keys()


@pytest.mark.parametrize("name", [name for name in INSTALLS if name != "hyperconverged"])
def test_prometheus_is_let_in_to_the_port_that_it_reads(name: str, tmp_path: Path) -> None:
    """Check that the component's network policy opens only the metrics port 8080 to Prometheus, with every overlay.

    The webhook's port 8443, which also serves metrics, is open for the API server already.
    """
    objects = with_monitoring(name, tmp_path)

    (monitor,) = of_kind(objects, "PodMonitor")
    opened = {item["metadata"]["name"]: item["spec"] for item in of_kind(objects, "NetworkPolicy")}["from-prometheus"]
    plain, secure = monitor["spec"]["podMetricsEndpoints"]
    (rule,) = opened["ingress"]
    assert (plain["portNumber"], plain["path"]) == (8080, "/metrics")
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert (secure["portNumber"], secure["path"], secure["scheme"]) == (8443, "/metrics", "https")
    assert rule["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    assert opened["podSelector"] == monitor["spec"]["selector"]
    assert {pod["metadata"]["namespace"] for pod in of_kind(objects, "Deployment", "Service")} <= {"node-maintenance"}


def test_nobody_is_let_in_from_a_namespace_that_is_not_named(tmp_path: Path) -> None:
    """Check that the policy admits only the namespace `monitoring`: anyone can label pods in their own namespace."""
    policies = {
        item["metadata"]["name"]: item["spec"] for item in of_kind(with_monitoring("plain", tmp_path), "NetworkPolicy")
    }
    peers = [peer for rule in policies["from-prometheus"]["ingress"] for peer in rule["from"]]

    named = [peer["namespaceSelector"].get("matchLabels", {}).get("kubernetes.io/metadata.name") for peer in peers]
    assert named == ["monitoring"]


@pytest.fixture(scope="module")
def monitored(knative: LocalCluster) -> LocalCluster:
    """Return the cluster with the Prometheus operator's CRDs installed."""
    prometheus.install(knative)
    return knative


@pytest.mark.slow
def test_the_operators_kinds_take_it_and_a_second_apply_changes_nothing(
    monitored: LocalCluster, tmp_path: Path
) -> None:
    """NMO-24: the operator's CRDs accept the component, and a second apply changes nothing."""
    with_monitoring("plain", tmp_path)
    monitored.kubectl("apply", SPARING, "-k", tmp_path)

    again = monitored.kubectl("apply", SPARING, "-k", tmp_path).stdout

    assert sent(again) == []
    assert "configmap/node-maintenance-dashboard unchanged" in again.splitlines()


def test_grafana_finds_the_dashboard(tmp_path: Path) -> None:
    """Check that the dashboard's ConfigMap has the label that Grafana's sidecar selects."""
    objects = with_monitoring("plain", tmp_path)

    (found,) = [item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"].endswith("-dashboard")]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["node-maintenance.json"]) == dashboard()
