"""Tests of the drain of a real node: containerd ends the evicted containers as specified and keeps the others."""

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
from tests.proofs import proves
from tests.real import maintenances
from tests.real.environment import APPS, DEAF, GRACE, PODS, Real, owner, ready_and_whole, template
from tests.waiting import until

pytestmark = pytest.mark.real
FROM, TO = "real-1", "real-2"
POLITE = "trap 'echo term >> /told/{name}; exit 0' TERM; while true; do sleep 0.1; done"


@dataclass(frozen=True)
class Drained:
    """The pods of a node, and the observations of its drain."""

    told: Path
    moved: Mapping[str, Object]
    kept: Mapping[str, Object]
    maintenance: Object
    seconds: float
    still: set[str]
    """The names of the pods of which containerd still ran a container when the maintenance succeeded."""


@pytest.fixture(scope="module")
def drained(real: Real, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drained]:
    """Yield the observations of a drained node that had a pod of each kind."""
    told = tmp_path_factory.mktemp("told")
    told.chmod(0o777)
    real.door.patch(f"/api/v1/nodes/{TO}", {"spec": {"unschedulable": True}})
    moved, kept = _moved(real, told), _kept(real)
    real.door.patch(f"/api/v1/nodes/{TO}", {"spec": {"unschedulable": None}})
    began = time.monotonic()
    maintenances.begin(real, "each-kind", FROM)
    maintenance = maintenances.until_succeeded(real, "each-kind")
    still = maintenances.running(real, FROM, *moved.values(), *kept.values())
    yield Drained(told, moved, kept, maintenance, time.monotonic() - began, still)
    maintenances.end(real, "each-kind", FROM)


def _moved(real: Real, told: Path) -> dict[str, Object]:
    """Create the pods to evict and wait until they run; they belong to workloads, which create them again elsewhere."""
    seen: dict[str, Any] = {
        "volumes": [{"name": "told", "hostPath": {"path": str(told)}}],
        "volumeMounts": [{"name": "told", "mountPath": "/told"}],
    }
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1; echo hook >> /told/hooked"]}}}
    scratch = {"volumes": [{"name": "own", "emptyDir": {}}], "volumeMounts": [{"name": "own", "mountPath": "/own"}]}
    for name, spec in (
        ("polite", template(POLITE.format(name="polite"), **seen)),
        ("hooked", template(POLITE.format(name="hooked"), lifecycle=hook, **seen)),
        ("deaf", template(DEAF, terminationGracePeriodSeconds=GRACE)),
        ("scratch", template("echo mine > /own/file; exec sleep 1000", terminationGracePeriodSeconds=1, **scratch)),
    ):
        real.door.create(f"{APPS}/deployments", owner(name, {"replicas": 1}, spec))
    work = template(
        "until [ -e /told/go ]; do sleep 0.2; done", terminationGracePeriodSeconds=1, restartPolicy="Never", **seen
    )
    job = {"metadata": {"name": "work"}, "spec": {"template": {"metadata": {"labels": {"app": "work"}}, "spec": work}}}
    real.door.create("/apis/batch/v1/namespaces/default/jobs", job)
    _with_volume(real, told)
    names = ("polite", "hooked", "deaf", "scratch", "work", "kept-data")
    return {name: real.until_pods(name, ready_and_whole(1))[0] for name in names}


def _with_volume(real: Real, told: Path) -> None:
    """Create a StatefulSet whose volume is a directory of this machine, in place of network storage."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "shelf"}
    size = {"storage": "1Mi"}
    volume = {**claim, "capacity": size, "hostPath": {"path": str(told)}}
    real.door.create("/api/v1/persistentvolumes", {"metadata": {"name": "shelf"}, "spec": volume})
    claims = [{"metadata": {"name": "data"}, "spec": {**claim, "resources": {"requests": size}}}]
    script = "echo $HOSTNAME on $NODE >> /data/visits; exec sleep 1000"
    pod = template(script, terminationGracePeriodSeconds=1, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    where = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    pod["containers"][0]["env"] = [{"name": "NODE", "valueFrom": where}]
    more = {"replicas": 1, "serviceName": "kept-data", "volumeClaimTemplates": claims}
    real.door.create(f"{APPS}/statefulsets", owner("kept-data", more, pod))


def _kept(real: Real) -> dict[str, Object]:
    """Create the pods that a drain leaves: a DaemonSet's pod and a static pod."""
    real.door.create(f"{APPS}/daemonsets", owner("everywhere", {}, template("sleep 1000")))
    static = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static", "labels": {"app": "static"}}}
    file = real.node(FROM).folder / "static" / "static.yaml"
    file.write_text(yaml.safe_dump({**static, "spec": template("sleep 1000")}))
    mirrored = real.until_pods("static", ready_and_whole(1))[0]
    daemons = until(
        real.door,
        PODS,
        lambda pods: any(map(is_ready, pods.values())),
        60,
        labels="app=everywhere",
        fields=f"spec.nodeName={FROM}",
    )
    # containerd uses the uid of a static pod's file, which the mirror pod has in an annotation
    of_file = {**mirrored["metadata"], "uid": mirrored["metadata"]["annotations"]["kubernetes.io/config.hash"]}
    return {"static": {**mirrored, "metadata": of_file}, "daemon": next(iter(daemons.values()))}


def test_no_container_of_what_left_still_runs(drained: Drained) -> None:
    """Evicted pods have no running container in containerd once the maintenance is Succeeded; the others have."""
    print(f"{len(drained.moved)} pods left in {drained.seconds:.1f} s, of which the longest grace period is {GRACE} s")
    assert drained.still == {pod["metadata"]["name"] for pod in drained.kept.values()}
    assert drained.maintenance["status"]["evictionPods"] == len(drained.moved) + 1  # and CoreDNS's pod


def test_a_process_is_told_to_end_and_its_hook_is_run_before(drained: Drained) -> None:
    """Evicted containers run their preStop hook first and then receive SIGTERM."""
    assert (drained.told / "polite").read_text() == "term\n"
    assert (drained.told / "hooked").read_text() == "hook\nterm\n"


def test_a_deaf_process_is_waited_for_as_long_as_its_pod_asks(drained: Drained) -> None:
    """Drains wait for a process that ignores SIGTERM until the kubelet kills it after its grace period."""
    assert GRACE < drained.seconds < GRACE + 12


def test_they_run_elsewhere(real: Real, drained: Drained) -> None:
    """Workloads run again on the other node with new pods and the data of their volume."""
    for name in ("polite", "hooked", "deaf", "scratch", "kept-data"):
        (pod,) = real.until_pods(name, ready_and_whole(1))
        assert pod["spec"]["nodeName"] == TO
        assert pod["metadata"]["uid"] != drained.moved[name]["metadata"]["uid"]
    assert (drained.told / "visits").read_text() == f"kept-data-0 on {FROM}\nkept-data-0 on {TO}\n"


def test_a_jobs_work_is_done_after_all(real: Real, drained: Drained) -> None:
    """Jobs whose pod was evicted complete with another pod."""
    (drained.told / "go").touch()
    pods = real.until_pods("work", lambda found: any(pod["status"].get("phase") == "Succeeded" for pod in found))
    (done,) = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
    assert done["metadata"]["uid"] != drained.moved["work"]["metadata"]["uid"]
    assert done["spec"]["nodeName"] == TO


@proves("OSV-12a")
def test_the_kubelets_own_words_stand_beside_ours(real: Real, drained: Drained) -> None:
    """Kubelet and product record Events with different reasons for the cordon.

    Only the kubelet records an Event for each stopped container.
    """

    def said(events: Mapping[str, Object]) -> set[tuple[str, str]]:
        return {
            (item["reason"], item["source"].get("component") or item["reportingComponent"]) for item in events.values()
        }

    wanted = ("NodeNotSchedulable", "kubelet")
    path = "/api/v1/namespaces/default/events"
    of_node = said(
        until(real.door, path, lambda found: wanted in said(found), 30, fields=f"involvedObject.name={FROM}")
    )
    ours = {reason for reason, component in of_node if component != "kubelet"}
    print(f"of the node: {sorted(of_node)}")
    assert wanted[0] not in ours
    killed = f"involvedObject.name={drained.moved['polite']['metadata']['name']},reason=Killing"
    assert real.door.list(path, fields=killed)["items"]
