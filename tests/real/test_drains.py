"""Tests for the drain of a real node: containerd stops the evicted pods' containers as specified, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.paths import Object
from kube.pods import is_ready
from localcluster.waiting import wait_for_collection
from tests.proofs import proves
from tests.real import maintenances
from tests.real.environment import (
    APPS_PATH,
    GRACE_SECONDS,
    IGNORE_SIGTERM_SCRIPT,
    PODS_PATH,
    RealNodesEnvironment,
    build_pod_spec,
    build_pods_ready_predicate,
    build_workload,
)

pytestmark = pytest.mark.real
SOURCE_NODE, TARGET_NODE = "real-1", "real-2"
EXIT_ON_SIGTERM_SCRIPT = "trap 'echo term >> /records/{name}; exit 0' TERM; while true; do sleep 0.1; done"


@dataclass(frozen=True)
class DrainObservation:
    """The observed drain of a node: its pods, its duration, and the containers that ran at its end."""

    records_dir: Path
    evicted_pods: Mapping[str, Object]
    remaining_pods: Mapping[str, Object]
    maintenance: Object
    seconds: float
    still_running: set[str]
    """The names of the pods for which containerd still ran a container when the maintenance succeeded."""


@pytest.fixture(scope="module")
def observation(
    environment: RealNodesEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DrainObservation]:
    """Yield the observed drain of a node that had a pod of each kind."""
    records_dir = tmp_path_factory.mktemp("records")
    records_dir.chmod(0o777)
    environment.client.patch(f"/api/v1/nodes/{TARGET_NODE}", {"spec": {"unschedulable": True}})
    evictable, remaining = _create_evictable_workloads(environment, records_dir), _create_remaining_pods(environment)
    environment.client.patch(f"/api/v1/nodes/{TARGET_NODE}", {"spec": {"unschedulable": None}})
    started = time.monotonic()
    maintenances.create_maintenance(environment, "each-kind", SOURCE_NODE)
    maintenance = maintenances.wait_until_succeeded(environment, "each-kind")
    still_running = maintenances.list_running_pods(environment, SOURCE_NODE, *evictable.values(), *remaining.values())
    yield DrainObservation(records_dir, evictable, remaining, maintenance, time.monotonic() - started, still_running)
    maintenances.end_maintenance(environment, "each-kind", SOURCE_NODE)


def _create_evictable_workloads(environment: RealNodesEnvironment, records_dir: Path) -> dict[str, Object]:
    """Create workloads, and return their pods once they are Ready; evicted pods are recreated on the other node."""
    volume: dict[str, Any] = {
        "volumes": [{"name": "records", "hostPath": {"path": str(records_dir)}}],
        "volumeMounts": [{"name": "records", "mountPath": "/records"}],
    }
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1; echo hook >> /records/hooked"]}}}
    scratch = {"volumes": [{"name": "own", "emptyDir": {}}], "volumeMounts": [{"name": "own", "mountPath": "/own"}]}
    for name, spec in (
        ("polite", build_pod_spec(EXIT_ON_SIGTERM_SCRIPT.format(name="polite"), **volume)),
        ("hooked", build_pod_spec(EXIT_ON_SIGTERM_SCRIPT.format(name="hooked"), lifecycle=hook, **volume)),
        ("deaf", build_pod_spec(IGNORE_SIGTERM_SCRIPT, terminationGracePeriodSeconds=GRACE_SECONDS)),
        (
            "scratch",
            build_pod_spec("echo mine > /own/file; exec sleep 1000", terminationGracePeriodSeconds=1, **scratch),
        ),
    ):
        environment.client.create(f"{APPS_PATH}/deployments", build_workload(name, {"replicas": 1}, spec))
    job_pod = build_pod_spec(
        "until [ -e /records/go ]; do sleep 0.2; done", terminationGracePeriodSeconds=1, restartPolicy="Never", **volume
    )
    job = {
        "metadata": {"name": "work"},
        "spec": {"template": {"metadata": {"labels": {"app": "work"}}, "spec": job_pod}},
    }
    environment.client.create("/apis/batch/v1/namespaces/default/jobs", job)
    _create_statefulset_with_volume(environment, records_dir)
    names = ("polite", "hooked", "deaf", "scratch", "work", "kept-data")
    return {name: environment.wait_for_pods(name, build_pods_ready_predicate(1))[0] for name in names}


def _create_statefulset_with_volume(environment: RealNodesEnvironment, records_dir: Path) -> None:
    """Create a StatefulSet whose volume is a directory on this machine, instead of network storage."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "shelf"}
    size = {"storage": "1Mi"}
    volume = {**claim, "capacity": size, "hostPath": {"path": str(records_dir)}}
    environment.client.create("/api/v1/persistentvolumes", {"metadata": {"name": "shelf"}, "spec": volume})
    claims = [{"metadata": {"name": "data"}, "spec": {**claim, "resources": {"requests": size}}}]
    script = "echo $HOSTNAME on $NODE >> /data/visits; exec sleep 1000"
    pod = build_pod_spec(script, terminationGracePeriodSeconds=1, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    node_field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    pod["containers"][0]["env"] = [{"name": "NODE", "valueFrom": node_field}]
    fields = {"replicas": 1, "serviceName": "kept-data", "volumeClaimTemplates": claims}
    environment.client.create(f"{APPS_PATH}/statefulsets", build_workload("kept-data", fields, pod))


def _create_remaining_pods(environment: RealNodesEnvironment) -> dict[str, Object]:
    """Create the pods that a drain does not evict: a DaemonSet pod and a static pod."""
    environment.client.create(f"{APPS_PATH}/daemonsets", build_workload("everywhere", {}, build_pod_spec("sleep 1000")))
    static = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "labels": {"app": "static"}}}
    file = environment.get_node(SOURCE_NODE).directory / "static" / "static.yaml"
    file.write_text(yaml.safe_dump({**static, "spec": build_pod_spec("sleep 1000")}))
    mirrored = environment.wait_for_pods("static", build_pods_ready_predicate(1))[0]
    daemons = wait_for_collection(
        environment.client,
        PODS_PATH,
        lambda pods: any(map(is_ready, pods.values())),
        60,
        labels="app=everywhere",
        fields=f"spec.nodeName={SOURCE_NODE}",
    )
    # containerd uses the uid in a static pod's file, which the mirror pod has in an annotation.
    manifest_metadata = {
        **mirrored["metadata"],
        "uid": mirrored["metadata"]["annotations"]["kubernetes.io/config.hash"],
    }
    return {"static": {**mirrored, "metadata": manifest_metadata}, "daemon": next(iter(daemons.values()))}


def test_no_container_of_evicted_pods_still_runs(observation: DrainObservation) -> None:
    """Check that containers of evicted pods no longer run when the maintenance has succeeded."""
    pod_count, seconds = len(observation.evicted_pods), observation.seconds
    print(f"{pod_count} pods left in {seconds:.1f} s, including the longest grace period of {GRACE_SECONDS} s")
    assert observation.still_running == {pod["metadata"]["name"] for pod in observation.remaining_pods.values()}
    # The maintenance also evicts CoreDNS's pod.
    assert observation.maintenance["status"]["evictionPods"] == len(observation.evicted_pods) + 1


def test_pre_stop_hook_runs_before_sigterm(observation: DrainObservation) -> None:
    """Check that the containers of evicted pods run their preStop hook, and then receive SIGTERM."""
    assert (observation.records_dir / "polite").read_text() == "term\n"
    assert (observation.records_dir / "hooked").read_text() == "hook\nterm\n"


def test_drain_waits_for_grace_period(observation: DrainObservation) -> None:
    """Check that a drain waits until the kubelet kills a process that ignores SIGTERM, after the grace period."""
    assert GRACE_SECONDS < observation.seconds < GRACE_SECONDS + 12


def test_evicted_workloads_run_on_second_node(environment: RealNodesEnvironment, observation: DrainObservation) -> None:
    """Check that the workloads run on the other node, with new pods and with the data on their volume."""
    for name in ("polite", "hooked", "deaf", "scratch", "kept-data"):
        (pod,) = environment.wait_for_pods(name, build_pods_ready_predicate(1))
        assert pod["spec"]["nodeName"] == TARGET_NODE
        assert pod["metadata"]["uid"] != observation.evicted_pods[name]["metadata"]["uid"]
    assert (
        observation.records_dir / "visits"
    ).read_text() == f"kept-data-0 on {SOURCE_NODE}\nkept-data-0 on {TARGET_NODE}\n"


def test_job_completes_with_new_pod(environment: RealNodesEnvironment, observation: DrainObservation) -> None:
    """Check that a Job whose pod was evicted completes with a new pod."""
    (observation.records_dir / "go").touch()
    pods = environment.wait_for_pods(
        "work", lambda pods_by_name: any(pod["status"].get("phase") == "Succeeded" for pod in pods_by_name)
    )
    (succeeded,) = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
    assert succeeded["metadata"]["uid"] != observation.evicted_pods["work"]["metadata"]["uid"]
    assert succeeded["spec"]["nodeName"] == TARGET_NODE


@proves("OSV-12a")
def test_kubelet_and_product_record_different_events(
    environment: RealNodesEnvironment, observation: DrainObservation
) -> None:
    """Check that the kubelet and the product record Events with different reasons for the cordon.

    Only the kubelet records an Event for each stopped container.
    """

    def list_reasons(events: Mapping[str, Object]) -> set[tuple[str, str]]:
        return {
            (event["reason"], event["source"].get("component") or event["reportingComponent"])
            for event in events.values()
        }

    expected = ("NodeNotSchedulable", "kubelet")
    path = "/api/v1/namespaces/default/events"
    node_events = list_reasons(
        wait_for_collection(
            environment.client,
            path,
            lambda kube_events: expected in list_reasons(kube_events),
            30,
            fields=f"involvedObject.name={SOURCE_NODE}",
        )
    )
    own_reasons = {reason for reason, component in node_events if component != "kubelet"}
    print(f"Events of the node: {sorted(node_events)}")
    assert expected[0] not in own_reasons
    killed = f"involvedObject.name={observation.evicted_pods['polite']['metadata']['name']},reason=Killing"
    assert environment.client.list(path, field_selector=killed)["items"]
