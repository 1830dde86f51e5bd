"""Tests for `spec.drain` on a real API server: evicted pods, blocked pods and changes to the spec (DRN-1a)."""

from __future__ import annotations

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import require_data
from kube.maintenance.objects import build_path
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.processes import wait_until_ready
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event, build_tick
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.usefixtures("no_wait_for_events_in_flight", "clean_cluster")

NO_CONTROLLER_MESSAGE = "no controller would recreate it: set spec.drain.force, or delete the pod"
EMPTY_DIR_MESSAGE = "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete the pod"
DAEMONSET_MESSAGE = (
    "its DaemonSet would recreate it on this node immediately: set spec.drain.ignoreDaemonSets, "
    "or exclude the node from the DaemonSet"
)


def run_evict_and_status(
    functions: Functions, maintenance: Object, event: BaseCloudEvent | None = None
) -> BaseCloudEvent:
    """Run `evict`, run `status` with the reply of `evict`, and return the reply of `evict`."""
    reply = functions.invoke("evict", event or build_product_event(events.PODS_GONE, maintenance))
    assert reply is not None
    functions.invoke("status", reply)
    return reply


def set_drain_spec(workload: Workload, maintenance: Object, drain: Object | None) -> None:
    workload.client.patch(build_path(maintenance), {"spec": {"drain": drain}})


def read_blocked_pods(workload: Workload, maintenance: Object) -> dict[str, tuple[str, str]]:
    """Map from return the blocked pods in the maintenance's status, as pod name to (reason, message)."""
    blocked_pods = workload.read_maintenance(maintenance)["status"]["blockedPods"]
    return {pod["name"]: (pod["reason"], pod["message"]) for pod in blocked_pods}


def get_evicted_pod_names(reply: BaseCloudEvent) -> set[str]:
    return {pod["name"] for pod in require_data(reply)["evicted"]}


def wait_until_pods_are_gone(workload: Workload, *pods: str) -> None:
    workload.wait_for_collection(
        f"/api/v1/namespaces/{workload.namespace}/pods", lambda current: not set(pods) & set(current)
    )


@proves("DRN-1a")
@pytest.mark.parametrize(
    ("flag", "pod_kind", "reason", "message"),
    [
        ("force", "bare", "Force", NO_CONTROLLER_MESSAGE),
        ("deleteEmptyDirData", "scratch", "DeleteEmptyDirData", EMPTY_DIR_MESSAGE),
        ("ignoreDaemonSets", "agent", "IgnoreDaemonSets", DAEMONSET_MESSAGE),
    ],
)
def test_pod_is_blocked_if_drain_flag_forbids_eviction(
    functions: Functions, workload: Workload, flag: str, pod_kind: str, reason: str, message: str
) -> None:
    """DRN-1a, design rule 8: a pod whose eviction a drain flag forbids is blocked, and the other pods are evicted.

    The status states the remedy. A tick emits an event for the pod only after the spec has changed.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    workload.create_bare_pods(node, "scratch", empty_dir=True)
    agent = workload.create_daemonset("agent", node)["metadata"]["name"]
    pod = agent if pod_kind == "agent" else pod_kind
    other_pods = {"bare", "scratch"} - {pod} if flag != "force" else set[str]()
    maintenance = workload.create_maintenance(node, drain={flag: False})

    first_event = run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    wait_until_pods_are_gone(workload, *other_pods)
    run_evict_and_status(functions, maintenance)
    status = workload.read_maintenance(maintenance)["status"]
    ticks = [functions.invoke("resync", build_tick()) for _ in range(3)]

    blocked_pods = read_blocked_pods(workload, maintenance)
    assert get_evicted_pod_names(first_event) == other_pods
    assert blocked_pods[pod] == (reason, message)
    assert set(blocked_pods) == {"bare", "scratch"} - other_pods | {pod}
    assert (status["phase"], set(status["pendingPods"])) == ("Running", set(blocked_pods))
    assert status["evictionPods"] == len(other_pods | set(blocked_pods))
    assert message in status["lastError"]
    assert ticks == [None, None, None]

    set_drain_spec(workload, maintenance, {flag: True})
    tainted_event = functions.invoke("resync", build_tick())
    assert tainted_event is not None
    assert tainted_event.get_type() == events.NODE_TAINTED
    reply = functions.invoke("evict", tainted_event)
    assert reply is not None
    functions.invoke("status", reply)
    if pod_kind == "agent":
        assert reply.get_type() == events.NODE_DRAINED
    else:
        assert get_evicted_pod_names(reply) == set(blocked_pods)
        wait_until_pods_are_gone(workload, *blocked_pods)
        run_evict_and_status(functions, maintenance)
    assert workload.read_maintenance(maintenance)["status"]["phase"] == "Succeeded"
    assert workload.read_maintenance(maintenance)["status"]["blockedPods"] == []


@proves("DRN-1a")
def test_pod_blocked_by_drain_flag_is_not_evicted(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Design rules 2 and 8: for a pod that a drain flag blocks, `evict` sends no eviction and `status` writes once."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = workload.create_maintenance(node, drain={"force": False})
    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    version = workload.read_maintenance(maintenance)["metadata"]["resourceVersion"]

    replies = [run_evict_and_status(functions, maintenance) for _ in range(3)]

    assert [reply.get_type() for reply in replies] == [events.PODS_EVICTED] * 3
    assert not any(reply.get_attributes().get("more") for reply in replies)
    assert workload.read_maintenance(maintenance)["metadata"]["resourceVersion"] == version
    assert audit.list_evictions() == []


@proves("DRN-1a")
def test_pods_that_pod_selector_does_not_match_are_ignored(functions: Functions, workload: Workload) -> None:
    """DRN-1a, DRN-5: pods that the current `podSelector` does not match are neither pending nor evicted."""
    node = workload.take_node()
    workload.create_bare_pods(node, "launcher", labels={"kubevirt.io": "virt-launcher"})
    workload.create_bare_pods(node, "other", "third")
    maintenance = workload.create_maintenance(node, drain={"podSelector": "kubevirt.io in (virt-launcher)"})

    first_event = run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    wait_until_pods_are_gone(workload, "launcher")
    assert run_evict_and_status(functions, maintenance).get_type() == events.NODE_DRAINED
    status = workload.read_maintenance(maintenance)["status"]
    tick_reply = functions.invoke("resync", build_tick())
    set_drain_spec(workload, maintenance, {"podSelector": "!kubevirt.io", "force": False})
    tainted_event = functions.invoke("resync", build_tick())
    assert tainted_event is not None
    run_evict_and_status(functions, maintenance, tainted_event)
    running_status = workload.read_maintenance(maintenance)["status"]
    set_drain_spec(workload, maintenance, {"podSelector": "none=here", "force": False})
    next_event = functions.invoke("resync", build_tick())
    assert next_event is not None
    drained_event = run_evict_and_status(functions, maintenance, next_event)

    assert get_evicted_pod_names(first_event) == {"launcher"}
    assert (status["phase"], status["totalpods"], status["evictionPods"]) == ("Succeeded", 3, 1)
    assert tick_reply is None
    assert (running_status["phase"], set(running_status["pendingPods"])) == ("Running", {"other", "third"})
    assert drained_event.get_type() == events.NODE_DRAINED
    assert workload.read_maintenance(maintenance)["status"]["phase"] == "Succeeded"
    assert functions.invoke("resync", build_tick()) is None


@proves("DRN-1a")
def test_evictions_contain_grace_period_of_drain_spec(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """DRN-1a: evictions contain the spec's `gracePeriodSeconds`, except -1, which means the pod's own grace period."""
    for drain, options in (({"gracePeriodSeconds": 7}, {"gracePeriodSeconds": 7}), ({"gracePeriodSeconds": -1}, {})):
        node, name = workload.take_node(), f"bare-{len(options)}"
        workload.create_bare_pods(node, name)
        maintenance = workload.create_maintenance(node, drain=drain)

        assert get_evicted_pod_names(
            run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
        ) == {name}

        (entry,) = audit.list_evictions(name)
        delete_options = entry["requestObject"]["deleteOptions"]
        assert {key: value for key, value in delete_options.items() if key != "preconditions"} == options


@proves("DRN-1a")
def test_status_states_remedy_if_pod_deletion_is_forbidden(functions: Functions, workload: Workload) -> None:
    """DRN-1a: without permission to delete pods, `disableEviction` blocks each pod until the flag is removed."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = workload.create_maintenance(node, drain={"disableEviction": True})

    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    reason, message = read_blocked_pods(workload, maintenance)["bare"]
    tick_reply = functions.invoke("resync", build_tick())
    set_drain_spec(workload, maintenance, None)
    tainted_event = functions.invoke("resync", build_tick())
    assert tainted_event is not None
    reply = run_evict_and_status(functions, maintenance, tainted_event)

    assert reason == "DisableEviction"
    assert 'cannot delete resource "pods"' in message
    assert message.endswith(
        "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"
    )
    assert tick_reply is None
    assert get_evicted_pod_names(reply) == {"bare"}


@proves("DRN-1a")
@pytest.mark.usefixtures("delete_permission")
def test_disable_eviction_flag_deletes_pod_despite_pdb(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """DRN-1a: with `disableEviction`, `evict` deletes a pod despite its PDB, with uid precondition and grace period."""
    node, labels = workload.take_node(), {"app": "db"}
    (pod,) = workload.create_bare_pods(node, "db", labels=labels)
    workload.create_budget("db", labels, 1, expected_healthy=1)
    maintenance = workload.create_maintenance(node, drain={"disableEviction": True, "gracePeriodSeconds": 1})
    tainted_event = functions.run_until_tainted(maintenance)

    reply = run_evict_and_status(functions, maintenance, tainted_event)

    (entry,) = [entry for entry in audit.list_writes_by() if entry["objectRef"]["resource"] == "pods"]
    assert get_evicted_pod_names(reply) == {"db"}
    assert entry["verb"] == "delete"
    delete_options = entry["requestObject"]
    assert delete_options["preconditions"]["uid"] == pod["metadata"]["uid"]
    assert delete_options["gracePeriodSeconds"] == 1
    assert audit.list_evictions() == []


@proves("DRN-1a")
def test_long_terminating_pod_is_skipped(functions: Functions, workload: Workload) -> None:
    """DRN-1a: a terminating pod is pending until `skipWaitForDeleteTimeoutSeconds` have passed, and is then ignored."""
    node = workload.take_node()
    workload.create_bare_pods(node, "stuck", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(
        node, drain={"skipWaitForDeleteTimeoutSeconds": 1, "gracePeriodSeconds": 1}
    )

    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    pending = workload.read_maintenance(maintenance)["status"]["pendingPods"]
    wait_until_ready(
        "the end of skipWaitForDeleteTimeoutSeconds",
        lambda: run_evict_and_status(functions, maintenance).get_type() == events.NODE_DRAINED,
        workload.local_cluster.servers,
    )

    assert pending == ["stuck"]
    assert workload.read_maintenance(maintenance)["status"]["phase"] == "Succeeded"
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/stuck", {"metadata": {"finalizers": None}})


@proves("DRN-1a")
def test_pod_of_deleted_daemonset_is_evicted_only_with_force(functions: Functions, workload: Workload) -> None:
    """DRN-1a, NMO-7: without `force`, an orphaned DaemonSet pod is pending and blocked, and a tick emits no event."""
    node = workload.take_node()
    metadata = workload.create_daemonset("agent", node)["metadata"]
    agent, finalizers = metadata["name"], {"finalizers": ["example.com/hold"]}
    pod, owner = f"/api/v1/namespaces/{workload.namespace}/pods/{agent}", metadata["ownerReferences"][0]
    daemonset = f"/apis/apps/v1/namespaces/{workload.namespace}/daemonsets/agent"
    workload.client.run(workload.client.api.request("DELETE", daemonset, body={"propagationPolicy": "Orphan"}))
    workload.wait_for_object(daemonset, lambda current: current is None)
    # The DaemonSet no longer exists. The garbage collector does not delete a pod if it cannot find the owner's kind.
    workload.client.patch(
        pod, {"metadata": {**finalizers, "ownerReferences": [{**owner, "apiVersion": "gone.example.com/v1"}]}}
    )
    maintenance = workload.create_maintenance(node, drain={"force": False})

    run_evict_and_status(functions, maintenance, functions.run_until_tainted(maintenance))
    status = workload.read_maintenance(maintenance)["status"]
    tick_reply = functions.invoke("resync", build_tick())

    assert (status["phase"], status["pendingPods"]) == ("Running", [agent])
    assert read_blocked_pods(workload, maintenance) == {agent: ("Force", NO_CONTROLLER_MESSAGE)}
    assert tick_reply is None
    workload.client.patch(pod, {"metadata": {"finalizers": None}})
