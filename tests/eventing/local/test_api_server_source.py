"""Tests for the local ApiServerSource on a real API server: it emits the same events as Knative's, and loses none."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from chaos.api_fault_proxy import Fault, FaultProxy
from kube.certificates.components import COMPONENT_LABEL as LABEL_OF_SECRETS
from kube.nodes import MAINTENANCE_LABEL
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import TIMEOUT_SECONDS, Receiver
from tests.eventing.local.broker_process import ROOT, BrokerProcess, build_source, build_trigger
from tests.eventing.local.tcp_relay import TcpRelay
from tests.proofs import proves

StartBroker = Callable[..., BrokerProcess]
ADD, UPDATE, DELETE = (f"dev.knative.apiserver.resource.{verb}" for verb in ("add", "update", "delete"))
CONFIG_MAP_SOURCE = build_source(
    "ApiServerSource",
    "maps",
    mode="Resource",
    resources=[{"apiVersion": "v1", "kind": "ConfigMap", "selector": {"matchLabels": {"test": "apisource"}}}],
    namespaceSelector={},
)
NODE_HEAD = {"apiVersion": "v1", "kind": "Node"}
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lampposts.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Lamppost, plural: lampposts, singular: lamppost}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
CUSTOM_RESOURCE = "{apiVersion: example.com/v1, kind: Lamppost, metadata: {name: first}}"


@pytest.fixture
def start_ready_broker(start_broker: StartBroker, cluster: LocalCluster) -> StartBroker:
    """Return a function that starts a broker with the permissions of an administrator, and waits until it is ready."""

    def start(*manifests: dict[str, object], kubeconfig: str = "") -> BrokerProcess:
        broker = start_broker(*manifests, build_trigger("f"), KUBECONFIG=kubeconfig or str(cluster.kubeconfig))
        wait_until_ready(broker)
        return broker

    return start


def wait_until_ready(broker: BrokerProcess) -> None:
    """Poll the readiness endpoint until the broker is ready."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while requests.get(f"{broker.url}/health/readiness", timeout=10).status_code != 200:
        assert time.monotonic() < deadline, broker.output
        time.sleep(0.02)


def apply_config_map(cluster: LocalCluster, name: str, value: str) -> None:
    metadata = {"name": name, "namespace": "default", "labels": {"test": "apisource"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_emitted_change_events_equal_those_of_knative(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Check that changes are emitted as events with the same type, subject, extensions and data as in Knative.

    No event is emitted for objects that existed before the broker started.
    """
    apply_config_map(cluster, "before", "1")
    start_ready_broker(CONFIG_MAP_SOURCE)

    apply_config_map(cluster, "lamp", "1")
    apply_config_map(cluster, "lamp", "2")
    cluster.kubectl("delete", "configmap", "lamp", "before")

    received = [request for request in receiver.wait_for_requests("/f", 4) if request.headers["ce-name"] == "lamp"]
    assert [request.headers["ce-type"] for request in received] == [ADD, UPDATE, DELETE]
    assert [json.loads(request.body)["data"]["value"] for request in received] == ["1", "2", "2"]
    assert len({request.id for request in received}) == 3
    headers = received[0].headers
    assert headers["ce-source"] == cluster.url
    assert headers["ce-subject"] == "/apis/v1/namespaces/default/configmaps/lamp"
    assert (headers["ce-kind"], headers["ce-apiversion"], headers["ce-namespace"]) == ("ConfigMap", "v1", "default")
    assert headers["content-type"] == "application/json"
    assert json.loads(received[0].body)["kind"] == "ConfigMap"
    before = [
        request.headers["ce-type"] for request in receiver.list_requests("/f") if request.headers["ce-name"] == "before"
    ]
    assert before == [DELETE]


@pytest.mark.slow
def test_kind_whose_crd_is_installed_later_is_watched_from_first_object(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Check that a kind whose CRD is installed after the start of the source is watched from its first object.

    A kind that does not exist yet does not prevent readiness. The event subject of a cluster-scoped object has an empty
    namespace.
    """
    source = build_source(
        "ApiServerSource", "l", mode="Resource", resources=[{"apiVersion": "example.com/v1", "kind": "Lamppost"}]
    )
    start_ready_broker(source)
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.wait_for_crds("lampposts.example.com")
    cluster.kubectl("create", "-f", "-", input=CUSTOM_RESOURCE)

    (added,) = receiver.wait_for_requests("/f")
    cluster.kubectl("delete", "crd", "lampposts.example.com")
    deleted = receiver.wait_for_requests("/f", 2)[-1]
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.wait_for_crds("lampposts.example.com")
    cluster.kubectl("create", "-f", "-", input=CUSTOM_RESOURCE)
    readded = receiver.wait_for_requests("/f", 3)[-1]
    cluster.kubectl("delete", "crd", "lampposts.example.com")

    assert (added.headers["ce-type"], deleted.headers["ce-type"], readded.headers["ce-type"]) == (ADD, DELETE, ADD)
    assert added.headers["ce-subject"] == "/apis/example.com/v1/namespaces//lampposts/first"
    assert "ce-namespace" not in added.headers


def test_events_are_emitted_only_for_labeled_nodes(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Design rule 10: the shipped source emits events only about nodes with the maintenance label.

    Setting the label is emitted as an addition; removing the label is emitted as a deletion, although the node still
    exists.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/base/eventing/sources.yaml").read_text())
    (nodes,) = [document for document in documents if document["metadata"]["name"] == "nodes"]
    start_ready_broker(nodes)
    name, label = "labelled-node", f"{MAINTENANCE_LABEL}=some-uid"
    for node_name in (name, "healthy-node"):
        cluster.kubectl("create", "-f", "-", input=json.dumps({**NODE_HEAD, "metadata": {"name": node_name}}))

    for number in range(10):
        write_heartbeat(cluster, "healthy-node", number)
        write_heartbeat(cluster, name, number)
    cluster.kubectl("label", "node", name, label)
    write_heartbeat(cluster, "healthy-node", 10)
    write_heartbeat(cluster, name, 10)
    cluster.kubectl("label", "node", name, f"{MAINTENANCE_LABEL}-")
    write_heartbeat(cluster, name, 11)
    cluster.kubectl("label", "node", name, label)

    receiver.wait_until(
        lambda: [request.headers["ce-type"] for request in receiver.list_requests("/f")].count(ADD) == 2
    )
    received = receiver.list_requests("/f")
    cluster.kubectl("delete", "node", name, "healthy-node")
    # On a busy machine, the controller manager may also update the node, after 40 s without a heartbeat.
    assert [event_type for event_type, _ in groupby(request.headers["ce-type"] for request in received)] == [
        ADD,
        UPDATE,
        DELETE,
        ADD,
    ]
    assert {request.headers["ce-name"] for request in received} == {name}


def write_heartbeat(cluster: LocalCluster, node: str, number: int) -> None:
    """Update the heartbeat of the node's condition Ready, as its kubelet does every few seconds."""
    timestamp = f"2026-01-01T00:00:{number:02}Z"
    ready = {"type": "Ready", "status": "True", "reason": "test", "message": "", "lastHeartbeatTime": timestamp}
    patch = json.dumps({"status": {"conditions": [{**ready, "lastTransitionTime": timestamp}]}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.slow
def test_source_loses_no_change_while_connection_is_interrupted(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Check that changes during an interruption of the connection are emitted once, after the source reconnects."""
    port = urlsplit(cluster.url).port
    assert port is not None
    relay = TcpRelay(port)
    url, kubeconfig_copy = f"https://127.0.0.1:{relay.port}", cluster.directory / "cut.kubeconfig"
    kubeconfig = access.write_proxied_kubeconfig(url, cluster.kubeconfig, cluster.url, kubeconfig_copy)
    start_ready_broker(CONFIG_MAP_SOURCE, kubeconfig=str(kubeconfig))
    apply_config_map(cluster, "cut", "1")
    receiver.wait_for_requests("/f")

    relay.cut()
    apply_config_map(cluster, "cut", "2")
    cluster.kubectl("delete", "configmap", "cut")
    relay.restore()

    received = receiver.wait_for_requests("/f", 3)
    relay.close()
    assert [request.headers["ce-type"] for request in received] == [ADD, UPDATE, DELETE]


@pytest.mark.slow
def test_source_loses_no_change_if_list_after_expired_resource_version_fails(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Check that no change is lost if the first list request after an expired resourceVersion fails.

    The server responds to the watch with 410, and to the next list request with 403, as after a revoked permission.
    """
    apply_config_map(cluster, "known", "1")
    apply_config_map(cluster, "passing", "1")
    faults = {2: Fault(410, "too old resource version"), 3: Fault(403, "forbidden")}

    def get_fault(request: str) -> Fault | None:
        name, _, count = request.rpartition(" ")
        if name != "list configmaps" or int(count) not in faults:
            return None
        if count == "3":
            apply_config_map(cluster, "known", "2")
            cluster.kubectl("delete", "configmap", "passing")
        return faults[int(count)]

    certificate = (cluster.directory / "pki" / "apiserver.crt").read_text()
    with closing(FaultProxy(cluster.url, certificate)) as proxy:
        proxy.rule = get_fault
        copy = cluster.directory / "proxied.kubeconfig"
        start_ready_broker(
            CONFIG_MAP_SOURCE,
            kubeconfig=str(access.write_proxied_kubeconfig(proxy.url, cluster.kubeconfig, cluster.url, copy)),
        )

        received = receiver.wait_for_requests("/f", 2)
    cluster.kubectl("delete", "configmap", "known")
    assert {event.headers["ce-name"]: event.headers["ce-type"] for event in received} == {
        "known": UPDATE,
        "passing": DELETE,
    }


@pytest.mark.slow
def test_source_without_permission_is_not_ready(
    cluster: LocalCluster, start_broker: StartBroker, receiver: Receiver
) -> None:
    """Check that a source without list permission logs this, is unready, and recovers once the permission exists."""
    kubeconfig = cluster.ensure_kubeconfig(access.UNPRIVILEGED)
    broker = start_broker(CONFIG_MAP_SOURCE, build_trigger("f"), KUBECONFIG=str(kubeconfig))

    assert "cannot list resource" in broker.wait_for_log_line(msg="source failed, retrying")["error"]
    unready = requests.get(f"{broker.url}/health/readiness", timeout=10)
    assert (unready.status_code, "maps" in unready.text) == (503, True)
    role = ["--clusterrole=cluster-admin", f"--user={access.UNPRIVILEGED}"]
    cluster.kubectl("create", "clusterrolebinding", "apisource-test", *role)
    try:
        wait_until_ready(broker)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "apisource-test")


@pytest.mark.slow
@proves("OSV-23", "X-4")
def test_event_in_reference_mode_contains_only_reference(
    cluster: LocalCluster, receiver: Receiver, start_ready_broker: StartBroker
) -> None:
    """Check that an event in mode Reference contains only a reference to the object.

    The shipped source emits events only for labeled Secrets. Neither events nor log lines contain a Secret's key.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/components/certificates/eventing.yaml").read_text())
    (source,) = [document for document in documents if document["kind"] == "ApiServerSource"]
    source["metadata"]["namespace"] = "default"
    broker = start_ready_broker(source)
    key = "a-key-that-must-stay-secret"
    labels = {"labeled": {LABEL_OF_SECRETS: "ours"}, "plain": {}}
    for value in (key, f"{key}-again"):
        for name, secret_labels in labels.items():
            metadata = {"name": name, "namespace": "default", "labels": secret_labels}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"tls.key": value}}
            cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(body))
    cluster.kubectl("delete", "secret", *labels)

    received = receiver.wait_for_requests("/f", 3)
    assert [request.headers["ce-type"] for request in received] == [
        f"dev.knative.apiserver.ref.{change}" for change in ("add", "update", "delete")
    ]
    assert {request.headers["ce-subject"] for request in received} == {"/apis/v1/namespaces/default/secrets/labeled"}
    assert {
        (request.headers["ce-kind"], request.headers["ce-name"], request.headers["ce-namespace"])
        for request in received
    } == {("Secret", "labeled", "default")}
    reference = {"kind": "Secret", "apiVersion": "v1", "namespace": "default", "name": "labeled"}
    assert [json.loads(request.body) for request in received] == [reference] * 3
    log_and_events = broker.output + "".join(f"{request.headers}{request.body!r}" for request in received)
    for secret in (key, base64.b64encode(key.encode()).decode()[:20]):
        assert secret not in log_and_events
