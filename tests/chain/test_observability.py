"""Tests that a real drain produces the metrics and log messages of docs/observability.md."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eventing.replay.function_client import post
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, Group
from kube.nodes import UNSCHEDULABLE
from kube.paths import Object
from tests.chain.environment import Scene
from tests.functions.event_builders import tick
from tests.proofs import proves

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
ROW = re.compile(r"^\| `(nodemaintenance_\w+)` \|([a-z, ]*)\|", re.MULTILINE)
OF_BUCKETS = {"le"}
PODSOURCE = "nodemaintenance_podsource_"
ADMISSION = ("nodemaintenance_admission_", "nodemaintenance_serving_certificate_")
"""Prefixes of metrics that other processes serve and other tests check."""


def documented(page: str) -> dict[str, set[str]]:
    """Return metric → labels, from the page's tables."""
    return {name: set(filter(None, labels.replace(" ", "").split(","))) for name, labels in ROW.findall(page)}


def offered(url: str) -> dict[str, set[str]]:
    """Return metric → labels, from /metrics; a counter's name ends with `_total`, as in the page."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nodemaintenance_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels}
            found[name] = labels - OF_BUCKETS
    return found


def test_the_tables_name_every_metric_and_its_labels(scene: Scene) -> None:
    """After a drain that a budget blocks, the product serves exactly the metrics that the page lists."""
    node, namespace = scene.node(), scene.namespace()
    scene.pods(node, 1, namespace=namespace, labels={"app": "one"})
    scene.budget(namespace, {"app": "one"}, name="strict", allowed=0, minAvailable=1)
    path = scene.maintain(node)
    scene.reaches(path, lambda item: bool((item.get("status") or {}).get("blockedPods")))
    scene.tick()
    # No source of the local product calls this function.
    post(tick(), scene.product.function_url("renew-certificates"))

    functions, delivery = offered(scene.product.functions_url), offered(scene.product.broker_url)
    written = documented(PAGE)
    assert functions.keys() | delivery.keys() == {
        name for name in written if not name.startswith((PODSOURCE, *ADMISSION))
    }
    for name, labels in {**functions, **delivery}.items():
        assert labels <= written[name], name
    assert functions["nodemaintenance_blocked_pods"] == written["nodemaintenance_blocked_pods"]

    scene.delete(path)
    scene.gone(path)


MESSAGE = re.compile(r"^\| `([^`]+)` \| `(\w+)` \|$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b")
KEYS = {"level", "ts", "logger", "msg", "Request.Namespace", "Request.Name", "node"}
RECONCILER = {"reconciler group", "reconciler kind", "name", "namespace", "nodeName"}


def daemonset(scene: Scene, namespace: str, node: str) -> None:
    """Create a DaemonSet with a pod on the node, and wait until it is ready."""
    labels = {"app": "agent"}
    pod = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "main", "image": "fake"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    scene.cluster.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps({**body, "spec": spec}))
    scene.cluster.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.numberReady}=1", "daemonset/agent")


def logged(scene: Scene, name: str) -> list[Object]:
    """Return the functions' log lines about a maintenance; each line is one JSON object."""
    lines = [json.loads(line) for line in scene.product.functions_log.read_text().splitlines()]
    return [line for line in lines if line.get("Request.Name") == name]


@proves("NMO-7", "NMO-17", "NMO-17a", "KNM-5", "DRN-13", "C5", "C31")
@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=["medik8s", "kubevirt"])
def test_an_operator_finds_the_lines_that_he_greps_for(scene: Scene, group: Group) -> None:
    """NMO-17, KNM-5, C31: a drain and its end log each documented message once per action."""
    node, namespace = scene.node(), scene.namespace()
    daemonset(scene, namespace, node)
    (pod,) = (item["metadata"]["name"] for item in scene.pods(node, 1, namespace=namespace))
    path = scene.maintain(node, group=group.api_version, reason="new disk")
    name = path.rpartition("/")[2]
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)
    scene.tick()  # wait until `restore`, which removes the finalizer, has finished

    lines = logged(scene, name)
    said = [line["msg"] for line in lines]
    key, applying = group.drain_taint, "Applying maintenance mode"
    taints = ",".join(f'{{"key":"{each}","effect":"NoSchedule"}}' for each in (UNSCHEDULABLE, key))
    once = [
        f"Applying Maintenance mode on Node: {node} with Reason: new disk",
        f"Maintenance taints will be added to node {node}",
        f"Taints: [{taints}] will be added to node {node}",
        f"Applying {key} taint add on Node: {node}",
        f"Patching taints on Node: {node}",
        "Evict all Pods from Node",
        f"evicting pod {namespace}/{pod}" if group is MEDIK8S else f'evicting pod "{pod}"',
        f"Maintenance taints will be removed from node {node}",
        f"Applying {key} taint remove on Node: {node}",
        f"uncordon Node: {node}",
        f"NodeMaintenance Object: /{name} Deleted ",
    ]
    assert {message: said.count(message) for message in once} == dict.fromkeys(once, 1)
    removed = f"Maintenance taints will be removed from node {node}"
    reconciled = [message for message in said if message in ("Reconciling NodeMaintenance", applying, removed)]
    for end in (applying, removed):  # other functions may log between the two lines
        assert reconciled[reconciled.index(end) - 1] == "Reconciling NodeMaintenance"
    assert any(message.startswith(f"WARNING: ignoring DaemonSet-managed Pods: {namespace}/agent-") for message in said)
    (applied,) = (line for line in lines if line["msg"] == "Applying maintenance mode")
    assert (applied["node"], applied["reason"]) == (node, "new disk")
    assert all(line.keys() >= KEYS | RECONCILER for line in lines)
    api = group.api_version.split("/")[0]
    assert {(line["reconciler group"], line["reconciler kind"], line["name"], line["nodeName"]) for line in lines} == {
        (api, "NodeMaintenance", name, node)
    }
    assert {(line["logger"], line["node"], line["Request.Namespace"]) for line in lines} == {
        ("controller_nodemaintenance", node, "")
    }
    for message, _ in MESSAGE.findall(PAGE):
        pattern = ".+".join(re.escape(part) for part in PLACEHOLDER.split(message.replace("WARNING", "\0")))
        assert any(re.fullmatch(pattern.replace("\0", "WARNING"), line) for line in said), message


def test_the_page_lists_the_messages_of_the_documents() -> None:
    """NMO-17, KNM-5: the page lists all 14 messages of the two projects' documentation."""
    assert len(MESSAGE.findall(PAGE)) == 14
