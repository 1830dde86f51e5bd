"""Tests for the component `monitoring`, with promtool and the CRDs of the Prometheus operator."""

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
from localcluster.programs.packages import find_program
from tests.chain.test_observability import METRIC_ROW_PATTERN, REFERENCE_TEXT
from tests.manifests import prometheus
from tests.manifests.rendering import (
    INSTALL_OVERLAYS,
    MANIFESTS,
    SKIP_SCHEMA_OPTION,
    Manifest,
    filter_by_kind,
    list_changed_objects,
    render,
)

COMPONENT_DIR = MANIFESTS / "components" / "monitoring"
RULE_TESTS_FILE = Path(__file__).with_name("rules_test.yaml")
METRIC_PATTERN = re.compile(r"\bnodemaintenance_\w+")
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


def run_promtool(*arguments: str | Path, folder: Path) -> None:
    """Run promtool, and fail the test with promtool's output if it reports an error."""
    result = subprocess.run([find_program("promtool"), *arguments], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def load_alert_rules() -> Manifest:
    (rule,) = yaml.safe_load_all((COMPONENT_DIR / "rules.yaml").read_text())
    assert rule["kind"] == "PrometheusRule"
    spec: Manifest = rule["spec"]
    return spec


def load_dashboard() -> Manifest:
    dashboard: Manifest = json.loads((COMPONENT_DIR / "dashboard.json").read_text())
    return dashboard


def find_expressions(value: Any) -> list[str]:
    """Return all `expr` fields of the value, at any depth."""
    if isinstance(value, list):
        return [expr for element in value for expr in find_expressions(element)]
    if not isinstance(value, dict):
        return []
    return [expr for key, child in value.items() for expr in ([child] if key == "expr" else find_expressions(child))]


def render_with_monitoring(name: str, directory: Path) -> list[Manifest]:
    """Render an overlay with the component `monitoring`, and return its objects."""
    manifests_path = os.path.relpath(MANIFESTS, directory.resolve())
    kustomization = {
        "resources": [f"{manifests_path}/overlays/{name}"],
        "components": [f"{manifests_path}/components/monitoring"],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render(directory)


@pytest.mark.slow
def test_promtool_accepts_rules_and_rule_tests_pass(tmp_path: Path) -> None:
    """Check that promtool accepts the alerting rules, and that its rule tests pass.

    The rule tests cover blocked maintenances (with PodDisruptionBudget and node), failures, dead letters and a stopped
    `resync`.
    """
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(load_alert_rules()))
    shutil.copy(RULE_TESTS_FILE, tmp_path)

    run_promtool("check", "rules", "rules.yaml", folder=tmp_path)
    run_promtool("test", "rules", RULE_TESTS_FILE.name, folder=tmp_path)


def test_every_alert_has_a_rule_test() -> None:
    alerts = {rule["alert"] for group in load_alert_rules()["groups"] for rule in group["rules"]}
    rule_tests = yaml.safe_load(RULE_TESTS_FILE.read_text())["tests"]

    assert {
        test["alertname"] for rule_test in rule_tests for test in rule_test["alert_rule_test"] if test["exp_alerts"]
    } == alerts


def test_promtool_accepts_dashboard_expressions(tmp_path: Path) -> None:
    """Check that promtool accepts the dashboard's expressions as recording rules, with Grafana's variables replaced."""
    expressions = [expr.replace("$__rate_interval", "1m") for expr in find_expressions(load_dashboard())]
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    assert len(expressions) >= len(load_dashboard()["panels"])
    run_promtool("check", "rules", "panels.yaml", folder=tmp_path)


@pytest.mark.parametrize("load_document", [load_alert_rules, load_dashboard], ids=["rules", "dashboard"])
def test_rules_and_dashboard_use_only_documented_metrics(load_document: Any) -> None:
    """Check that rules and dashboard use only metrics in docs/reference.md, which other tests compare with /metrics."""
    documented = {name for name, _ in METRIC_ROW_PATTERN.findall(REFERENCE_TEXT)}
    used_names = {name for expr in find_expressions(load_document()) for name in METRIC_PATTERN.findall(expr)}
    base_names = {
        next((name.removesuffix(end) for end in HISTOGRAM_SUFFIXES if name.endswith(end)), name) for name in used_names
    }

    assert used_names
    assert base_names <= documented


@pytest.mark.parametrize("name", [name for name in INSTALL_OVERLAYS if name != "hyperconverged"])
def test_network_policy_admits_prometheus_to_metrics_ports(name: str, tmp_path: Path) -> None:
    """Check that in every overlay, the NetworkPolicy admits Prometheus only to the metrics port 8080.

    The webhook's port 8443, which also serves metrics, is already open for the API server.
    """
    objects = render_with_monitoring(name, tmp_path)

    (monitor,) = filter_by_kind(objects, "PodMonitor")
    ingress_rules = {policy["metadata"]["name"]: policy["spec"] for policy in filter_by_kind(objects, "NetworkPolicy")}[
        "from-prometheus"
    ]
    http_endpoint, https_endpoint = monitor["spec"]["podMetricsEndpoints"]
    (rule,) = ingress_rules["ingress"]
    assert (http_endpoint["portNumber"], http_endpoint["path"]) == (8080, "/metrics")
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert (https_endpoint["portNumber"], https_endpoint["path"], https_endpoint["scheme"]) == (
        8443,
        "/metrics",
        "https",
    )
    assert rule["from"][0]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    assert ingress_rules["podSelector"] == monitor["spec"]["selector"]
    assert {pod["metadata"]["namespace"] for pod in filter_by_kind(objects, "Deployment", "Service")} <= {
        "node-maintenance"
    }


def test_network_policy_admits_only_monitoring_namespace(tmp_path: Path) -> None:
    """Check that the NetworkPolicy admits only the namespace `monitoring`, because any user can label pods."""
    policies = {
        policy["metadata"]["name"]: policy["spec"]
        for policy in filter_by_kind(render_with_monitoring("plain", tmp_path), "NetworkPolicy")
    }
    ingress_peers = [peer for rule in policies["from-prometheus"]["ingress"] for peer in rule["from"]]

    namespaces = [
        peer["namespaceSelector"].get("matchLabels", {}).get("kubernetes.io/metadata.name") for peer in ingress_peers
    ]
    assert namespaces == ["monitoring"]


@pytest.fixture(scope="module")
def prometheus_operator_cluster(knative_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with the Prometheus operator's CRDs installed."""
    prometheus.install_crds(knative_cluster)
    return knative_cluster


@pytest.mark.slow
def test_second_apply_with_monitoring_changes_nothing(
    prometheus_operator_cluster: LocalCluster, tmp_path: Path
) -> None:
    """NMO-24: the Prometheus operator's CRDs accept the component's objects; a second apply changes nothing."""
    render_with_monitoring("plain", tmp_path)
    prometheus_operator_cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", tmp_path)

    second_output = prometheus_operator_cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", tmp_path).stdout

    assert list_changed_objects(second_output) == []
    assert "configmap/node-maintenance-dashboard unchanged" in second_output.splitlines()


def test_dashboard_configmap_has_grafana_label(tmp_path: Path) -> None:
    """Check that the dashboard's ConfigMap has the label that Grafana's sidecar selects."""
    objects = render_with_monitoring("plain", tmp_path)

    (config_map,) = [
        config_map
        for config_map in filter_by_kind(objects, "ConfigMap")
        if config_map["metadata"]["name"].endswith("-dashboard")
    ]
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config_map["data"]["node-maintenance.json"]) == load_dashboard()
