"""Tests that a real drain produces the metrics in docs/reference.md and the log messages in docs/observability.md."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eventing.replay.function_client import post_event
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from kube.nodes import UNSCHEDULABLE_TAINT
from kube.paths import Object
from tests.chain.environment import EventChainEnvironment
from tests.functions.event_builders import build_tick
from tests.proofs import proves

DOCS = Path(__file__).parents[2] / "docs"
PAGE_TEXT, REFERENCE_TEXT = (DOCS / "observability.md").read_text(), (DOCS / "reference.md").read_text()
METRIC_ROW_PATTERN = re.compile(r"^\| `(nodemaintenance_\w+)` \| \w+ \|([^|]*)\|", re.MULTILINE)
BUCKET_LABELS = {"le"}


def parse_documented_metrics(*servers: str) -> dict[str, set[str]]:
    """Return a map from metric name to label names from these servers' tables in docs/reference.md."""
    sections = [REFERENCE_TEXT.partition(f"### Metrics of {server}\n")[2].partition("\n#")[0] for server in servers]
    rows = [row for section in sections for row in METRIC_ROW_PATTERN.findall(section)]
    return {name: set(re.findall(r"\w+", labels)) for name, labels in rows}


def read_served_metrics(url: str) -> dict[str, set[str]]:
    """Return the label names by metric name from a server's /metrics; counter names end with `_total`."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    labels_by_metric: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nodemaintenance_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels}
            labels_by_metric[name] = labels - BUCKET_LABELS
    return labels_by_metric


def test_reference_page_lists_every_metric_with_its_labels(environment: EventChainEnvironment) -> None:
    """Check that after a drain blocked by a budget, the product serves exactly the metrics in docs/reference.md."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_pods(node, 1, namespace=namespace, labels={"app": "one"})
    environment.create_budget(namespace, {"app": "one"}, name="strict", disruptions_allowed=0, minAvailable=1)
    path = environment.create_maintenance(node)
    environment.wait_for_state(path, lambda maintenance: bool((maintenance.get("status") or {}).get("blockedPods")))
    environment.send_tick()
    # On a local cluster, no source sends events to `renew-certificates`, so the test posts a tick.
    post_event(build_tick(), environment.product.get_function_url("renew-certificates"))

    function_metrics, delivery_metrics = (
        read_served_metrics(environment.product.functions_url),
        read_served_metrics(environment.product.broker_url),
    )
    documented_function_metrics = parse_documented_metrics("functions", "certificates")
    documented_delivery_metrics = parse_documented_metrics("the local delivery")
    documented_metrics = {**documented_function_metrics, **documented_delivery_metrics}
    assert function_metrics.keys() == documented_function_metrics.keys()
    assert delivery_metrics.keys() == documented_delivery_metrics.keys()
    for name, labels in {**function_metrics, **delivery_metrics}.items():
        assert labels <= documented_metrics[name], name
    assert function_metrics["nodemaintenance_blocked_pods"] == documented_metrics["nodemaintenance_blocked_pods"]

    environment.request_deletion(path)
    environment.wait_for_deletion(path)


MESSAGE_ROW_PATTERN = re.compile(r"^\| `([^`]+)` \| `(\w+)` \|$", re.MULTILINE)
PLACEHOLDER_PATTERN = re.compile(r"\b[A-Z]{3,}\b")
LOG_KEYS = {"level", "ts", "logger", "msg", "Request.Namespace", "Request.Name", "node"}
RECONCILER_LOG_KEYS = {"reconciler group", "reconciler kind", "name", "namespace", "nodeName"}


def create_daemonset(environment: EventChainEnvironment, namespace: str, node: str) -> None:
    """Create a DaemonSet with one pod on the node, and wait until the pod is ready."""
    labels = {"app": "agent"}
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    environment.cluster.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps({**body, "spec": spec}))
    environment.cluster.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.numberReady}=1", "daemonset/agent")


def read_log_lines(environment: EventChainEnvironment, name: str) -> list[Object]:
    """Return the functions' JSON log lines about a maintenance."""
    lines = [json.loads(line) for line in environment.product.functions_log.read_text().splitlines()]
    return [line for line in lines if line.get("Request.Name") == name]


@proves("NMO-7", "NMO-17", "NMO-17a", "KNM-5", "DRN-13", "C5", "C31")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=["medik8s", "kubevirt"])
def test_drain_logs_each_documented_message_once(environment: EventChainEnvironment, group: ApiGroup) -> None:
    """NMO-17, KNM-5, C31: draining and restoring a node logs each documented message once per action."""
    node, namespace = environment.create_node(), environment.create_namespace()
    create_daemonset(environment, namespace, node)
    (pod,) = (pod["metadata"]["name"] for pod in environment.create_pods(node, 1, namespace=namespace))
    path = environment.create_maintenance(node, api_version=group.api_version, reason="new disk")
    name = path.rpartition("/")[2]
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    environment.send_tick()  # Wait until `restore`, which removes the finalizer, has finished.

    lines = read_log_lines(environment, name)
    messages = [line["msg"] for line in lines]
    taint_key, applying = group.drain_taint, "Applying maintenance mode"
    added_keys = (UNSCHEDULABLE_TAINT, taint_key)
    taints = ",".join(f'{{"key":"{added_key}","effect":"NoSchedule"}}' for added_key in added_keys)
    expected_once = [
        f"Applying Maintenance mode on Node: {node} with Reason: new disk",
        f"Maintenance taints will be added to node {node}",
        f"Taints: [{taints}] will be added to node {node}",
        f"Applying {taint_key} taint add on Node: {node}",
        f"Patching taints on Node: {node}",
        "Evict all Pods from Node",
        f"evicting pod {namespace}/{pod}" if group is MEDIK8S else f'evicting pod "{pod}"',
        f"Maintenance taints will be removed from node {node}",
        f"Applying {taint_key} taint remove on Node: {node}",
        f"uncordon Node: {node}",
        f"NodeMaintenance Object: /{name} Deleted ",
    ]
    assert {message: messages.count(message) for message in expected_once} == dict.fromkeys(expected_once, 1)
    removing = f"Maintenance taints will be removed from node {node}"
    reconcile_messages = [
        message for message in messages if message in ("Reconciling NodeMaintenance", applying, removing)
    ]
    for action_message in (applying, removing):  # Other functions may log between the two lines.
        assert reconcile_messages[reconcile_messages.index(action_message) - 1] == "Reconciling NodeMaintenance"
    assert any(
        message.startswith(f"WARNING: ignoring DaemonSet-managed Pods: {namespace}/agent-") for message in messages
    )
    (applying_line,) = (line for line in lines if line["msg"] == "Applying maintenance mode")
    assert (applying_line["node"], applying_line["reason"]) == (node, "new disk")
    assert all(line.keys() >= LOG_KEYS | RECONCILER_LOG_KEYS for line in lines)
    api = group.api_version.split("/")[0]
    assert {(line["reconciler group"], line["reconciler kind"], line["name"], line["nodeName"]) for line in lines} == {
        (api, "NodeMaintenance", name, node)
    }
    assert {(line["logger"], line["node"], line["Request.Namespace"]) for line in lines} == {
        ("controller_nodemaintenance", node, "")
    }
    for message, _ in MESSAGE_ROW_PATTERN.findall(PAGE_TEXT):
        pattern = ".+".join(re.escape(part) for part in PLACEHOLDER_PATTERN.split(message.replace("WARNING", "\0")))
        assert any(re.fullmatch(pattern.replace("\0", "WARNING"), line) for line in messages), message


def test_observability_page_lists_messages_of_replaced_operators() -> None:
    """NMO-17, KNM-5: docs/observability.md lists the 14 log messages of the operators that this product replaces."""
    assert len(MESSAGE_ROW_PATTERN.findall(PAGE_TEXT)) == 14
