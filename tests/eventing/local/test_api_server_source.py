"""Tests of ApiServerSource on a real API server: it emits the events of Knative's source, and none is lost."""

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

from kube.certificates.components import LABEL as LABEL_OF_SECRETS
from kube.nodes import LABEL
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.eventing.local.tcp_relay import Cable
from tests.eventing.local.broker_process import ROOT, Broker, source, trigger
from tests.fault_proxy import Fault, Faults
from tests.proofs import proves
from tests.receiver import PATIENCE, Receiver

Start = Callable[..., Broker]
ADD, UPDATE, DELETE = (f"dev.knative.apiserver.resource.{change}" for change in ("add", "update", "delete"))
CONFIG_MAPS = source(
    "ApiServerSource",
    "maps",
    mode="Resource",
    resources=[{"apiVersion": "v1", "kind": "ConfigMap", "selector": {"matchLabels": {"test": "apisource"}}}],
    namespaceSelector={},
)
NODE = {"apiVersion": "v1", "kind": "Node"}
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
LAMPPOST = "{apiVersion: example.com/v1, kind: Lamppost, metadata: {name: first}}"


@pytest.fixture
def start_synced(start: Start, cluster: LocalCluster) -> Start:
    """Return a function that starts a broker as the administrator, and waits until its sources are ready."""

    def begin(*manifests: dict[str, object], kubeconfig: str = "") -> Broker:
        broker = start(*manifests, trigger("f"), KUBECONFIG=kubeconfig or str(cluster.kubeconfig))
        await_ready(broker)
        return broker

    return begin


def await_ready(broker: Broker) -> None:
    """Poll the readiness endpoint until the broker is ready."""
    end = time.monotonic() + PATIENCE
    while requests.get(f"{broker.url}/health/readiness", timeout=10).status_code != 200:
        assert time.monotonic() < end, broker.text
        time.sleep(0.02)


def config_map(cluster: LocalCluster, name: str, value: str) -> None:
    metadata = {"name": name, "namespace": "default", "labels": {"test": "apisource"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_changes_come_as_knatives_events(cluster: LocalCluster, receiver: Receiver, start_synced: Start) -> None:
    """Check that changes give events with Knative's types, subject, extensions and data.

    Objects that existed before the start give no event.
    """
    config_map(cluster, "before", "1")
    start_synced(CONFIG_MAPS)

    config_map(cluster, "lamp", "1")
    config_map(cluster, "lamp", "2")
    cluster.kubectl("delete", "configmap", "lamp", "before")

    got = [one for one in receiver.wait_for("/f", 4) if one.headers["ce-name"] == "lamp"]
    assert [one.headers["ce-type"] for one in got] == [ADD, UPDATE, DELETE]
    assert [json.loads(one.body)["data"]["value"] for one in got] == ["1", "2", "2"]
    assert len({one.id for one in got}) == 3
    headers = got[0].headers
    assert headers["ce-source"] == cluster.url
    assert headers["ce-subject"] == "/apis/v1/namespaces/default/configmaps/lamp"
    assert (headers["ce-kind"], headers["ce-apiversion"], headers["ce-namespace"]) == ("ConfigMap", "v1", "default")
    assert headers["content-type"] == "application/json"
    assert json.loads(got[0].body)["kind"] == "ConfigMap"
    before = [one.headers["ce-type"] for one in receiver.at("/f") if one.headers["ce-name"] == "before"]
    assert before == [DELETE]


@pytest.mark.slow
def test_a_kind_that_appears_later_is_followed_from_its_first_object(
    cluster: LocalCluster, receiver: Receiver, start_synced: Start
) -> None:
    """Check that a kind whose CRD is installed later is watched from its first object.

    A missing kind does not prevent readiness. An object of a cluster-scoped kind has an empty namespace in its subject.
    """
    lampposts = source(
        "ApiServerSource", "l", mode="Resource", resources=[{"apiVersion": "example.com/v1", "kind": "Lamppost"}]
    )
    start_synced(lampposts)
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.await_kinds("lampposts.example.com")
    cluster.kubectl("create", "-f", "-", input=LAMPPOST)

    (added,) = receiver.wait_for("/f")
    cluster.kubectl("delete", "crd", "lampposts.example.com")
    deleted = receiver.wait_for("/f", 2)[-1]
    cluster.kubectl("apply", "-f", "-", input=CRD)
    cluster.await_kinds("lampposts.example.com")
    cluster.kubectl("create", "-f", "-", input=LAMPPOST)
    again = receiver.wait_for("/f", 3)[-1]
    cluster.kubectl("delete", "crd", "lampposts.example.com")

    assert (added.headers["ce-type"], deleted.headers["ce-type"], again.headers["ce-type"]) == (ADD, DELETE, ADD)
    assert added.headers["ce-subject"] == "/apis/example.com/v1/namespaces//lampposts/first"
    assert "ce-namespace" not in added.headers


def test_of_nodes_only_those_under_maintenance_are_heard(
    cluster: LocalCluster, receiver: Receiver, start_synced: Start
) -> None:
    """Rule 10: The shipped source emits events only about nodes with the maintenance label.

    Setting the label gives an addition, and removing it gives a deletion although the node still exists.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/base/eventing/sources.yaml").read_text())
    (nodes,) = [one for one in documents if one["metadata"]["name"] == "nodes"]
    start_synced(nodes)
    name, ours = "heard-node", f"{LABEL}=some-uid"
    for other in (name, "healthy-node"):
        cluster.kubectl("create", "-f", "-", input=json.dumps({**NODE, "metadata": {"name": other}}))

    for number in range(10):
        heartbeat(cluster, "healthy-node", number)
        heartbeat(cluster, name, number)
    cluster.kubectl("label", "node", name, ours)
    heartbeat(cluster, "healthy-node", 10)
    heartbeat(cluster, name, 10)
    cluster.kubectl("label", "node", name, f"{LABEL}-")
    heartbeat(cluster, name, 11)
    cluster.kubectl("label", "node", name, ours)

    receiver.wait(lambda: [one.headers["ce-type"] for one in receiver.at("/f")].count(ADD) == 2)
    got = receiver.at("/f")
    cluster.kubectl("delete", "node", name, "healthy-node")
    # On a busy machine the controller manager may also update the node, after 40 s without a heartbeat.
    assert [kind for kind, _ in groupby(one.headers["ce-type"] for one in got)] == [ADD, UPDATE, DELETE, ADD]
    assert {one.headers["ce-name"] for one in got} == {name}


def heartbeat(cluster: LocalCluster, node: str, number: int) -> None:
    """Write the heartbeat that a kubelet writes every few seconds."""
    at = f"2026-01-01T00:00:{number:02}Z"
    ready = {"type": "Ready", "status": "True", "reason": "test", "message": "", "lastHeartbeatTime": at}
    patch = json.dumps({"status": {"conditions": [{**ready, "lastTransitionTime": at}]}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


@pytest.mark.slow
def test_a_broken_connection_loses_no_change(cluster: LocalCluster, receiver: Receiver, start_synced: Start) -> None:
    """Check that changes during an interrupted connection are emitted once, after the reconnection."""
    port = urlsplit(cluster.url).port
    assert port is not None
    cable = Cable(port)
    way, copy = f"https://127.0.0.1:{cable.port}", cluster.directory / "cut.kubeconfig"
    kubeconfig = access.through(way, cluster.kubeconfig, cluster.url, copy)
    start_synced(CONFIG_MAPS, kubeconfig=str(kubeconfig))
    config_map(cluster, "cut", "1")
    receiver.wait_for("/f")

    cable.cut()
    config_map(cluster, "cut", "2")
    cluster.kubectl("delete", "configmap", "cut")
    cable.mend()

    got = receiver.wait_for("/f", 3)
    cable.close()
    assert [one.headers["ce-type"] for one in got] == [ADD, UPDATE, DELETE]


@pytest.mark.slow
def test_a_list_that_is_refused_after_a_lost_version_loses_no_change(
    cluster: LocalCluster, receiver: Receiver, start_synced: Start
) -> None:
    """Check that no change is lost if the first new list after an expired resourceVersion is refused.

    The server answers the watch with 410, and the next list with 403, as after a permission was revoked.
    """
    config_map(cluster, "known", "1")
    config_map(cluster, "passing", "1")
    answers = {2: Fault(410, "too old resource version"), 3: Fault(403, "forbidden")}

    def rule(request: str) -> Fault | None:
        name, _, number = request.rpartition(" ")
        if name != "list configmaps" or int(number) not in answers:
            return None
        if number == "3":
            config_map(cluster, "known", "2")
            cluster.kubectl("delete", "configmap", "passing")
        return answers[int(number)]

    certificate = (cluster.directory / "pki" / "apiserver.crt").read_text()
    with closing(Faults(cluster.url, certificate)) as proxy:
        proxy.rule = rule
        copy = cluster.directory / "spoiled.kubeconfig"
        start_synced(CONFIG_MAPS, kubeconfig=str(access.through(proxy.url, cluster.kubeconfig, cluster.url, copy)))

        got = receiver.wait_for("/f", 2)
    cluster.kubectl("delete", "configmap", "known")
    assert {one.headers["ce-name"]: one.headers["ce-type"] for one in got} == {"known": UPDATE, "passing": DELETE}


@pytest.mark.slow
def test_a_source_that_may_not_list_says_so_and_is_not_ready(
    cluster: LocalCluster, start: Start, receiver: Receiver
) -> None:
    """Check that a source without permission to list logs the missing permission, is not ready, and recovers."""
    kubeconfig = cluster.kubeconfig_for(access.UNPRIVILEGED)
    broker = start(CONFIG_MAPS, trigger("f"), KUBECONFIG=str(kubeconfig))

    assert "cannot list resource" in broker.wait_line(msg="source waits")["error"]
    unready = requests.get(f"{broker.url}/health/readiness", timeout=10)
    assert (unready.status_code, "maps" in unready.text) == (503, True)
    role = ["--clusterrole=cluster-admin", f"--user={access.UNPRIVILEGED}"]
    cluster.kubectl("create", "clusterrolebinding", "apisource-test", *role)
    try:
        await_ready(broker)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", "apisource-test")


@pytest.mark.slow
@proves("OSV-23", "X-4")
def test_in_mode_reference_an_event_names_the_object_and_has_nothing_of_it(
    cluster: LocalCluster, receiver: Receiver, start_synced: Start
) -> None:
    """Check that in mode Reference an event names the object and contains nothing else of it.

    The shipped source emits events for labelled Secrets only. Neither events nor log lines contain a Secret's key.
    """
    documents = yaml.safe_load_all((ROOT / "manifests/components/certificates/eventing.yaml").read_text())
    (shipped,) = [document for document in documents if document["kind"] == "ApiServerSource"]
    shipped["metadata"]["namespace"] = "default"
    broker = start_synced(shipped)
    key = "a-key-that-nobody-must-see"
    labels = {"labeled": {LABEL_OF_SECRETS: "ours"}, "plain": {}}
    for value in (key, f"{key}-again"):
        for name, labelled in labels.items():
            metadata = {"name": name, "namespace": "default", "labels": labelled}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"tls.key": value}}
            cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(body))
    cluster.kubectl("delete", "secret", *labels)

    got = receiver.wait_for("/f", 3)
    assert [one.headers["ce-type"] for one in got] == [
        f"dev.knative.apiserver.ref.{it}" for it in ("add", "update", "delete")
    ]
    assert {one.headers["ce-subject"] for one in got} == {"/apis/v1/namespaces/default/secrets/labeled"}
    assert {(one.headers["ce-kind"], one.headers["ce-name"], one.headers["ce-namespace"]) for one in got} == {
        ("Secret", "labeled", "default")
    }
    reference = {"kind": "Secret", "apiVersion": "v1", "namespace": "default", "name": "labeled"}
    assert [json.loads(one.body) for one in got] == [reference] * 3
    said = broker.text + "".join(f"{one.headers}{one.body!r}" for one in got)
    for hidden in (key, base64.b64encode(key.encode()).decode()[:20]):
        assert hidden not in said
