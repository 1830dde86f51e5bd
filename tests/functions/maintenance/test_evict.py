"""Tests for `evict` on a real API server, with the controller that maintains the status of PodDisruptionBudgets."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from prometheus_client import REGISTRY

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events, extensions
from eventing.http_binding import decode_event
from functions.event_data import require_data
from functions.maintenance import event_objects, evict
from kube.evictions import requests as eviction_requests
from kube.evictions.executor import EvictionOutcome, execute_eviction_plan
from kube.evictions.planner import plan_evictions
from kube.evictions.requests import build_pod_path
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from kube.paths import PODS_PATH, Object
from kube.pods import format_key
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_product_event
from tests.functions.request_hooks import count_requests
from tests.kube import samples
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves
from tests.workload import Workload, summarize_writes


def get_pod_names(pods: list[Any]) -> set[str]:
    return {pod["name"] for pod in pods}


def run_evict(functions: Functions, maintenance: Object) -> BaseCloudEvent:
    """Run `evict` for the latest state of the node and return its reply."""
    reply = functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance))
    assert reply is not None
    return reply


def wait_until_pods_are_gone(workload: Workload, *pods: str) -> None:
    workload.wait_for_collection(
        f"/api/v1/namespaces/{workload.namespace}/pods", lambda current: not set(pods) & set(current)
    )


@proves("X-1", "NMO-6", "NMO-8", "NMO-9")
def test_each_pod_is_evicted_once_with_preconditions(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-6, NMO-8, NMO-9, X-1: `evict` sends one eviction with preconditions per pod, and no other write request."""
    node = workload.take_node()
    bare, scratch = (
        workload.create_bare_pods(node, "bare")[0],
        workload.create_bare_pods(node, "scratch", empty_dir=True)[0],
    )
    (owned,) = workload.create_deployment("web", node, 1)
    maintenance = workload.create_maintenance(node)
    tainted_event = functions.run_until_tainted(maintenance)
    writes = len(audit.list_writes_by())

    reply = functions.invoke("evict", tainted_event)

    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in (bare, scratch, owned)}
    assert reply is not None
    assert reply.get_type() == events.PODS_EVICTED
    assert {pod["name"]: pod["uid"] for pod in require_data(reply)["evicted"]} == uids
    assert require_data(reply)["blocked"] == []
    assert require_data(reply)["error"] == ""
    assert int(require_data(reply)["podsVersion"]) > 0
    writes_of_evict = audit.list_writes_by()[writes:]
    assert {(verb, kind) for verb, kind, _ in summarize_writes(writes_of_evict)} == {("create", "pods/eviction")}
    sent_options = {entry["objectRef"]["name"]: entry["requestObject"]["deleteOptions"] for entry in writes_of_evict}
    versions = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in (bare, scratch, owned)}
    assert sent_options == {
        name: {"preconditions": {"uid": uids[name], "resourceVersion": versions[name]}} for name in uids
    }
    wait_until_pods_are_gone(workload, "bare", "scratch", owned["metadata"]["name"])


def test_first_eviction_follows_cordon_and_taint(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-5: in the audit log, the last patch of the node precedes the first eviction."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")

    functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")

    kinds = [kind for _, kind, _ in summarize_writes(audit.list_writes_by()) if kind in ("nodes", "pods/eviction")]
    assert kinds[-1] == "pods/eviction"
    assert len(kinds) >= 3  # The controller manager may also have patched the node to add the unschedulable taint.
    assert set(kinds[:-1]) == {"nodes"}


@proves("NMO-5")
@pytest.mark.parametrize("missing", ["cordon", "taint"])
def test_missing_cordon_or_taint_prevents_evictions(
    functions: Functions, workload: Workload, audit: AuditLog, missing: str
) -> None:
    """NMO-5: if the cordon or the taint is missing, `evict` emits `node.drifted` and evicts no pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    if missing == "cordon":
        workload.local_cluster.kubectl("uncordon", node)
    else:
        workload.local_cluster.kubectl("taint", "node", node, "medik8s.io/drain:NoSchedule-")

    reply = functions.invoke("evict", build_product_event(events.NODE_TAINTED, maintenance))

    assert reply is not None
    assert reply.get_type() == events.NODE_DRIFTED
    assert require_data(reply)["message"] == f'node "{node}" is no longer cordoned and tainted'
    assert audit.list_evictions() == []


@proves("X-6")
@pytest.mark.parametrize("event_type", evict.CHANGE_TYPES)
def test_evict_ignores_hint_for_uncordoned_node(
    functions: Functions, workload: Workload, audit: AuditLog, event_type: str
) -> None:
    """Design rule 9: `evict` ignores a hint for an uncordoned node, because `guard` decides when to repair the node."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    workload.local_cluster.kubectl("uncordon", node)

    assert functions.invoke("evict", build_product_event(event_type, maintenance)) is None
    assert audit.list_evictions() == []


def test_node_drained_is_reemitted_after_node_is_cordoned_again(functions: Functions, workload: Workload) -> None:
    """NMO-13: if the status reports a drained node as not cordoned, the next cordon leads to another `node.drained`."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    drained_event = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")
    functions.invoke("status", drained_event)
    workload.local_cluster.kubectl("uncordon", node)
    failure_event = functions.invoke(
        "evict", build_product_event(events.NODE_TAINTED, maintenance, data={"again": True})
    )
    assert failure_event is not None
    functions.invoke("status", failure_event)
    uncordoned_maintenance = workload.read_maintenance(maintenance)
    assert uncordoned_maintenance["status"]["lastError"] == require_data(failure_event)["error"]
    cordoned_event = functions.invoke("cordon", build_product_event(events.NODE_DRIFTED, maintenance))
    assert cordoned_event is not None
    tainted_event = functions.invoke("taint", cordoned_event)
    assert tainted_event is not None

    second_drained_event = functions.invoke("evict", tainted_event)
    assert second_drained_event is not None
    functions.invoke("status", second_drained_event)

    assert [m.get_phase(uncordoned_maintenance), m.is_reported_cordoned(uncordoned_maintenance)] == ["Succeeded", False]
    recordoned_maintenance = workload.read_maintenance(maintenance)
    assert m.is_reported_drained(recordoned_maintenance)
    assert m.get_last_error(recordoned_maintenance) == ""
    assert functions.invoke("evict", build_product_event(events.NODE_TAINTED, maintenance)) is None


def test_evict_emits_step_failed_if_node_is_uncordoned_twice(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Design rule 9: if a node is uncordoned after its second cordon, `evict` emits `maintenance.step_failed`."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    tainted_event = functions.run_until_tainted(maintenance)

    workload.local_cluster.kubectl("uncordon", node)
    drifted_event = functions.invoke("evict", tainted_event)
    assert drifted_event is not None
    cordoned_event = functions.invoke("cordon", drifted_event)
    assert cordoned_event is not None
    second_tainted_event = functions.invoke("taint", cordoned_event)
    assert second_tainted_event is not None
    workload.local_cluster.kubectl("uncordon", node)
    failure_event = functions.invoke("evict", second_tainted_event)

    assert failure_event is not None
    assert (drifted_event.get_type(), failure_event.get_type()) == (events.NODE_DRIFTED, events.MAINTENANCE_STEP_FAILED)
    assert require_data(failure_event)["error"].startswith(
        f'node "{node}": another client reverted the cordon or the taint twice'
    )
    functions.invoke("status", failure_event)
    assert workload.read_maintenance(maintenance)["status"]["lastError"] == require_data(failure_event)["error"]
    assert audit.list_evictions() == []


@proves("NMO-7", "NMO-9")
def test_daemonset_and_mirror_pods_are_not_evicted(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-7, NMO-9, DRN-3: a node with only a DaemonSet pod and a mirror pod counts as drained."""
    node = workload.take_node()
    workload.create_daemonset("agent", node)
    workload.create_bare_pods(node, "static", annotations={"kubernetes.io/config.mirror": "x"})

    reply = functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.NODE_DRAINED
    assert audit.list_evictions() == []


@proves("NMO-7")
def test_pod_of_deleted_daemonset_is_evicted(functions: Functions, workload: Workload) -> None:
    """NMO-7: a DaemonSet pod whose DaemonSet no longer exists is evicted like any bare pod."""
    node = workload.take_node()
    pod = workload.create_daemonset("agent", node)
    path = f"/apis/apps/v1/namespaces/{workload.namespace}/daemonsets/agent"
    orphaning = {"propagationPolicy": "Orphan"}
    owner = pod["metadata"]["ownerReferences"][0]
    workload.client.run(workload.client.api.request("DELETE", path, body=orphaning))
    workload.wait_for_object(path, lambda current: current is None)
    pod_path = f"/api/v1/namespaces/{workload.namespace}/pods/{pod['metadata']['name']}"
    # Restore the reference to the deleted DaemonSet; the finalizer protects the pod from garbage collection.
    workload.client.patch(pod_path, {"metadata": {"ownerReferences": [owner], "finalizers": ["example.com/hold"]}})
    maintenance = workload.create_maintenance(node)

    reply = functions.run_chain(maintenance, "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.PODS_EVICTED
    pending = workload.client.get(pod_path)["metadata"]
    assert pending["deletionTimestamp"]
    workload.client.patch(pod_path, {"metadata": {"finalizers": []}})


@proves("NMO-9")
def test_completed_pods_are_evicted(functions: Functions, workload: Workload) -> None:
    """NMO-9: a pod that has run to completion is also evicted."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "done")
    workload.client.patch(
        f"/api/v1/namespaces/{workload.namespace}/pods/done/status", {"status": {"phase": "Succeeded"}}
    )
    workload.wait_for_object(
        f"/api/v1/namespaces/{workload.namespace}/pods/done",
        lambda current: current is not None and current["status"]["phase"] == "Succeeded",
    )

    reply = functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")

    assert get_pod_names(require_data(reply)["evicted"]) == {"done"}
    wait_until_pods_are_gone(workload, pod["metadata"]["name"])


def test_evict_lists_latest_pods_before_emitting_node_drained(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, audit: AuditLog
) -> None:
    """NMO-10: if the cached pod list is empty, `evict` lists the latest state before it reports a drained node."""
    node = workload.take_node()
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    workload.create_bare_pods(node, f"late-{node}")
    stale_list = Fault(200, body={"items": [], "metadata": {"resourceVersion": "1"}})
    fault_proxy.inject(lambda request: stale_list if request == "list pods 1" else None)

    response = proxied_functions.post("evict", tainted_event)

    list_count = fault_proxy.request_counts["list pods"]
    fault_proxy.stop_faults()
    assert list_count == 2
    assert response.headers["ce-type"] == events.PODS_EVICTED
    assert len(audit.list_evictions(f"late-{node}")) == 1


def test_node_drained_event_contains_pod_list_resource_version(functions: Functions, workload: Workload) -> None:
    """NMO-10: `node.drained` contains the resourceVersion of the empty pod list."""
    reply = functions.run_chain(workload.create_maintenance(workload.take_node()), "begin", "cordon", "taint", "evict")

    assert reply.get_type() == events.NODE_DRAINED
    assert int(require_data(reply)["podsVersion"]) > 0


def test_deferred_pods_cause_another_pass_only_if_batch_evicted_pod() -> None:
    """NMO-6: pods that a batch had no time to evict are reported as blocked, unless the batch evicted another pod."""
    deferred_pod = samples.make_pod("left")

    with_progress, must_continue = evict.split_retried_and_blocked_pods(
        EvictionOutcome(evicted=[{"uid": "u"}], deferred=[deferred_pod]), samples.make_maintenance()
    )
    without_progress, must_continue_without_progress = evict.split_retried_and_blocked_pods(
        EvictionOutcome(deferred=[deferred_pod]), samples.make_maintenance()
    )

    assert (must_continue, must_continue_without_progress) == (True, False)
    assert [pod.reason for pod in with_progress.blocked + without_progress.blocked] == ["NoTime"]


def test_terminating_pod_is_not_evicted_again(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2, NMO-6: `evict` does not evict a terminating pod again, and emits `node.drained` after the pod is gone."""
    node = workload.take_node()
    workload.create_bare_pods(node, "slow", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.invoke("evict", functions.run_until_tainted(maintenance))
    first_evictions = audit.list_evictions("slow")

    second_reply = run_evict(functions, maintenance)

    assert second_reply.get_type() == events.PODS_EVICTED
    assert require_data(second_reply)["evicted"] == []
    assert require_data(second_reply)["blocked"] == []
    assert audit.list_evictions("slow") == first_evictions
    # An eviction that conflicted with another write of the pod is retried.
    assert [
        entry["responseStatus"]["code"] < 300 for entry in first_evictions if entry["responseStatus"]["code"] != 409
    ] == [True]
    workload.client.patch(f"/api/v1/namespaces/{workload.namespace}/pods/slow", {"metadata": {"finalizers": []}})
    wait_until_pods_are_gone(workload, "slow")
    assert run_evict(functions, maintenance).get_type() == events.NODE_DRAINED


def test_concurrent_passes_evict_each_pod_once(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: concurrent passes for one node evict each pod exactly once."""
    node = workload.take_node()
    pods = workload.create_bare_pods(node, *(f"pod-{number}" for number in range(10)), finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    tainted_event, reference = functions.run_until_tainted(maintenance), events.ObjectReference.from_object(maintenance)
    budget_events = (
        events.build_event(events.BUDGET_OPENED, "podsource", reference, node, seed=str(number)) for number in range(3)
    )

    with ThreadPoolExecutor() as threads:
        replies = list(threads.map(lambda event: functions.invoke("evict", event), [tainted_event, *budget_events]))

    granted = [entry for entry in audit.list_evictions() if entry["responseStatus"]["code"] < 300]
    uids = Counter(entry["requestObject"]["deleteOptions"]["preconditions"]["uid"] for entry in granted)
    assert uids == {pod["metadata"]["uid"]: 1 for pod in pods}
    reported_uids = [pod["uid"] for reply in replies if reply for pod in require_data(reply)["evicted"]]
    assert sorted(reported_uids) == sorted(uids)
    assert [blocked for reply in replies if reply for blocked in require_data(reply)["blocked"]] == []
    for pod in pods:
        path = f"/api/v1/namespaces/{workload.namespace}/pods/{pod['metadata']['name']}"
        workload.client.patch(path, {"metadata": {"finalizers": []}})


def test_conflicting_eviction_is_retried(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: an eviction that conflicts with another write of the same pod is retried."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "busy")
    path = build_pod_path(pod)
    workload.client.patch(path, {"metadata": {"labels": {"changed": "yes"}}})

    batch = workload.client.run(execute_eviction_plan(workload.client.api, plan_evictions([pod], [])))

    assert [evicted_pod["uid"] for evicted_pod in batch.evicted] == [pod["metadata"]["uid"]]
    assert [entry["responseStatus"]["code"] for entry in audit.list_evictions("busy")] == [409, 201]


def test_eviction_is_not_retried_after_late_conflict_response(
    functions: Functions, workload: Workload, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Design rule 12: a pass does not retry an eviction whose 409 response arrives late.

    The maintenance may have ended since the pass read it, and only the next pass reads the maintenance again.
    """
    (pod,) = workload.create_bare_pods(workload.take_node(), "slow")
    workload.client.patch(build_pod_path(pod), {"metadata": {"labels": {"changed": "yes"}}})
    monkeypatch.setattr(eviction_requests, "MAX_RETRY_SECONDS", 0.0)

    batch = workload.client.run(execute_eviction_plan(workload.client.api, plan_evictions([pod], [])))
    (updated_pod,) = [workload.client.get(build_pod_path(pod))]
    second_batch = workload.client.run(execute_eviction_plan(workload.client.api, plan_evictions([updated_pod], [])))

    assert [blocked_pod.reason for blocked_pod in batch.blocked] == ["Changing"]
    assert [evicted_pod["uid"] for evicted_pod in second_batch.evicted] == [pod["metadata"]["uid"]]
    assert [entry["responseStatus"]["code"] for entry in audit.list_evictions("slow")] == [409, 201]


@proves("X-6")
def test_pdb_limits_evictions(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-6, X-6: if a PDB requires two of three pods, only one pod is evicted.

    The other pods are blocked, and their message states the PDB's name and counts.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "a", "b", "c", labels={"app": "db"})
    workload.create_budget("keep-two", {"app": "db"}, 2, expected_healthy=3)

    reply = functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")

    data = require_data(reply)
    evicted, blocked = get_pod_names(data["evicted"]), {pod["name"]: pod for pod in data["blocked"]}
    assert len(evicted) == 1
    assert set(blocked) == {"a", "b", "c"} - evicted
    assert len(audit.list_evictions()) == 1
    for pod in blocked.values():
        assert (pod["reason"], pod["budget"]) == ("DisruptionBudget", "keep-two")
        assert (pod["healthy"], pod["needed"]) == (2, 2)  # The evicted pod no longer counts as healthy.
    assert "keep-two needs 2 healthy pods and has 2" in data["error"]


@proves("X-6")
def test_no_eviction_is_sent_for_pod_whose_pdb_allows_no_disruption(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """NMO-6, X-6: `evict` sends no eviction for a pod whose PDB allows no disruption, and evicts the other pods."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels={"app": "db"})
    workload.create_bare_pods(node, "free")
    workload.create_budget("keep-all", {"app": "db"}, 1, expected_healthy=1)
    maintenance = workload.create_maintenance(node)

    first_event = functions.invoke("evict", functions.run_until_tainted(maintenance))
    wait_until_pods_are_gone(workload, "free")
    second = run_evict(functions, maintenance)

    assert first_event is not None
    assert get_pod_names(require_data(first_event)["evicted"]) == {"free"}
    for reply in (first_event, second):
        assert [pod["message"] for pod in require_data(reply)["blocked"]] == [
            "budget keep-all needs 1 healthy pods and has 1"
        ]
    assert audit.list_evictions("a") == []


def test_evict_sends_no_reply_to_tick_if_status_is_up_to_date(functions: Functions, workload: Workload) -> None:
    """Design rule 10: while a drain is blocked, `evict` sends no reply to a tick unless the status must change.

    Other events, and replays, always get a reply, because the status may not yet contain an earlier pass's result.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "held", labels={"app": "held"})
    workload.create_budget("keep-all", {"app": "held"}, 1, expected_healthy=1)
    maintenance = workload.create_maintenance(node)
    first_reply = functions.invoke("evict", functions.run_until_tainted(maintenance))
    assert first_reply is not None

    reply_before_status = functions.invoke("evict", build_tick_reply(maintenance))
    functions.invoke("status", first_reply)
    replies = [functions.invoke("evict", build_tick_reply(maintenance)) for _ in range(2)]
    hint_reply = functions.invoke("evict", build_product_event(events.PODS_ADDED, maintenance))
    workload.create_bare_pods(node, "late")
    late_reply = functions.invoke("evict", build_tick_reply(maintenance))

    assert reply_before_status is not None
    assert replies == [None, None]
    assert hint_reply is not None
    assert late_reply is not None
    assert get_pod_names(require_data(late_reply)["evicted"]) == {"late"}


def build_tick_reply(maintenance: Object) -> BaseCloudEvent:
    """Build the event `node.tainted` that `resync` emits on a tick."""
    reference, node = events.ObjectReference.from_object(maintenance), maintenance["spec"]["nodeName"]
    return events.build_event(events.NODE_TAINTED, "resync", reference, node, seed=str(time.monotonic_ns()))


def test_pod_with_two_pdbs_is_blocked(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-6: a pod that two PDBs select is blocked, the message names both PDBs, and the other pods are evicted.

    The API server would answer 500 to the pod's eviction.
    """
    node = workload.take_node()
    workload.create_bare_pods(node, "twice", labels={"app": "db", "tier": "x"})
    workload.create_bare_pods(node, "free")
    workload.create_budget("one", {"app": "db"}, 0, expected_healthy=1)
    workload.create_budget("two", {"tier": "x"}, 0, expected_healthy=1)

    reply = functions.run_chain(workload.create_maintenance(node), "begin", "cordon", "taint", "evict")

    (blocked,) = require_data(reply)["blocked"]
    assert get_pod_names(require_data(reply)["evicted"]) == {"free"}
    assert (blocked["name"], blocked["reason"], blocked["budget"]) == ("twice", "MultipleBudgets", "one, two")
    assert len(audit.list_evictions()) == 1


def test_pod_in_terminating_namespace_is_blocked(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """NMO-6: a pod in a terminating namespace is blocked with the reason NamespaceTerminating."""
    node, namespace = workload.take_node(), workload.create_namespace()
    (pod,) = workload.create_bare_pods(node, "doomed", namespace=namespace, finalizers=("example.com/hold",))
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    message = "is being terminated"
    body = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    fault_proxy.inject(
        lambda request: Fault(403, message, body=body) if request.startswith("create pods/eviction") else None
    )

    response = proxied_functions.post("evict", tainted_event)

    fault_proxy.stop_faults()
    (blocked,) = json.loads(response.data)["blocked"]
    assert (blocked["reason"], blocked["uid"]) == ("NamespaceTerminating", pod["metadata"]["uid"])
    assert json.loads(response.data)["evicted"] == []
    workload.client.patch(build_pod_path(pod), {"metadata": {"finalizers": []}})


@proves("NMO-6")
def test_pods_deleted_before_eviction_are_not_reported(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload, audit: AuditLog
) -> None:
    """NMO-6: pods that were deleted before their eviction are reported neither as evicted nor as blocked."""
    node = workload.take_node()
    pods = workload.create_bare_pods(node, *(f"pod-{number}-{node}" for number in range(5)))
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    for pod in pods:
        workload.delete(build_pod_path(pod))
        workload.wait_for_object(build_pod_path(pod), lambda current: current is None)
    stale_list = Fault(200, body={"items": pods, "metadata": {"resourceVersion": "1"}})
    fault_proxy.inject(lambda request: stale_list if request.startswith("list pods ") else None)
    names = [pod["metadata"]["name"] for pod in pods]

    while not (
        evictions := audit.list_evictions(*names)
    ):  # On a busy machine, the first batch may reach its deadline before it sends an eviction.
        reply = proxied_functions.invoke("evict", tainted_event)
        assert reply is not None
        assert reply.get_type() == events.PODS_EVICTED
        data = require_data(reply)
        assert (data["evicted"], data["blocked"], data["error"]) == ([], [], "")

    fault_proxy.stop_faults()
    assert {entry["responseStatus"]["code"] for entry in evictions} == {404}


@proves("NMO-6")
def test_pod_is_evicted_in_next_batch_after_busy_server_rejected_eviction(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """NMO-6: a pod whose eviction a busy API server rejected is evicted in the next batch, without backoff."""
    node = workload.take_node()
    workload.create_bare_pods(node, f"first-{node}", f"second-{node}")
    maintenance = workload.create_maintenance(node)
    tainted_event = functions.run_until_tainted(maintenance)
    busy = Fault(429, "too many requests", 1)
    fault_proxy.inject(lambda request: busy if request == "create pods/eviction 1" else None)

    first = proxied_functions.post("evict", tainted_event)
    fault_proxy.stop_faults()
    second = proxied_functions.post("evict", decode_event(dict(first.headers), first.data))

    replies = [json.loads(response.data) for response in (first, second)]
    assert [response.headers.get("ce-more") for response in (first, second)] == ["true", None]
    assert [(data["blocked"], data["error"]) for data in replies] == [([], "")] * 2
    assert [len(data["evicted"]) for data in replies] == [1, 1]
    assert get_pod_names(replies[0]["evicted"] + replies[1]["evicted"]) == {f"first-{node}", f"second-{node}"}


def test_rejections_of_busy_server_cause_no_further_pass(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """Design rule 9: if a busy API server rejects all evictions, the pods are blocked and no further pass follows."""
    node = workload.take_node()
    workload.create_bare_pods(node, f"first-{node}", f"second-{node}")
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    busy = Fault(429, "too many requests", 1)
    fault_proxy.inject(lambda request: busy if request.startswith("create pods/eviction") else None)

    response = proxied_functions.post("evict", tainted_event)

    fault_proxy.stop_faults()
    assert response.headers.get("ce-more") is None
    assert [pod["reason"] for pod in json.loads(response.data)["blocked"]] == ["Busy", "Busy"]


def test_failed_pod_list_is_ignored_for_deleted_maintenance(
    functions: Functions, proxied_functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """X-2: a failed pod list request is ignored if the maintenance is being deleted, so the event is not retried."""
    maintenance = workload.create_maintenance(workload.take_node())
    tainted_event = functions.run_until_tainted(maintenance)
    workload.delete(m.build_path(maintenance))
    fault_proxy.inject(lambda request: Fault(500, "no list") if request.startswith("list pods") else None)

    response = proxied_functions.post("evict", tainted_event)

    list_count = fault_proxy.request_counts["list pods"]
    fault_proxy.stop_faults()
    assert (response.status_code, list_count > 0) == (204, True)


def test_evict_reads_daemonsets_only_if_no_other_pod_can_be_evicted(functions: Functions, workload: Workload) -> None:
    """Design rule 8, NMO-7: `evict` reads DaemonSets only if no other pod can be evicted."""
    node = workload.take_node()
    workload.create_daemonset("agent", node)
    workload.create_bare_pods(node, "bare")
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))

    with count_requests(functions.clusters["evict"].api) as requests:
        reply = functions.invoke("evict", tainted_event)

    assert reply is not None
    assert get_pod_names(require_data(reply)["evicted"]) == {"bare"}
    assert not [request for request in requests if "daemonsets" in request]


def test_replayed_eviction_is_not_counted_in_metrics(functions: Functions, workload: Workload) -> None:
    """docs/observability.md: the metrics count an eviction once, and a replay of it does not count."""
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    before = read_evicted_count()

    functions.invoke("evict", extensions.add_replay_extensions(tainted_event, "r", dry_run=True))
    replayed = read_evicted_count()
    functions.invoke("evict", tainted_event)

    assert (replayed - before, read_evicted_count() - before) == (0, 1)


def read_evicted_count() -> float:
    """Return the number of evicted pods that the metrics report."""
    return REGISTRY.get_sample_value("nodemaintenance_evictions_total", {"outcome": "evicted"}) or 0.0


POD_NAMES = [f"pod-{number}" for number in range(30)]


@pytest.fixture
def tainted_event_for_thirty_pods(functions: Functions, workload: Workload) -> BaseCloudEvent:
    """Return the event `node.tainted` for a node with thirty pods."""
    node = workload.take_node()
    workload.create_bare_pods(node, *POD_NAMES)
    return functions.run_until_tainted(workload.create_maintenance(node))


@pytest.mark.slow
def test_thirty_pods_are_evicted_concurrently(
    functions: Functions, tainted_event_for_thirty_pods: BaseCloudEvent, audit: AuditLog
) -> None:
    """NMO-6: thirty pods without a PDB are evicted in less than a second, each with one request.

    A fast machine needs one batch. The time limit is longer on a slow machine, which may need several batches.
    """
    evicted: set[str] = set()
    start_time = time.monotonic()
    for _ in range(len(POD_NAMES)):
        reply = functions.invoke("evict", tainted_event_for_thirty_pods)
        evicted |= get_pod_names(require_data(reply)["evicted"]) if reply else set()
        if evicted == set(POD_NAMES):
            break
    seconds = time.monotonic() - start_time

    assert evicted == set(POD_NAMES)
    assert len(audit.list_evictions()) == 30
    assert is_below_scaled_limit(seconds, 1.0)


@pytest.mark.parametrize(("group", "line"), [(MEDIK8S, "evicting pod {key}"), (KUBEVIRT, 'evicting pod "bare"')])
def test_evictions_are_logged(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture, group: ApiGroup, line: str
) -> None:
    """NMO-17, KNM-5: each eviction is logged with the message of the maintenance's API group."""
    node = workload.take_node()
    (pod,) = workload.create_bare_pods(node, "bare")
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node, group))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        functions.invoke("evict", tainted_event)

    assert [record.message for record in caplog.records] == [
        "Evict all Pods from Node",
        line.format(key=format_key(pod)),
    ]
    assert vars(caplog.records[-1])["fields"]["pod"] == format_key(pod)


def test_blocked_pods_are_logged(functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17: `evict` logs the number of blocked pods, and the pods with their reasons in a field of the log line."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels={"app": "db"})
    workload.create_budget("keep-all", {"app": "db"}, 1, expected_healthy=1)
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    caplog.clear()

    with caplog.at_level("INFO", logger=event_objects.log.name):
        reply = functions.invoke("evict", tainted_event)

    assert reply is not None
    assert [record.message for record in caplog.records] == ["1 pod blocked"]
    assert vars(caplog.records[-1])["fields"]["error"] == require_data(reply)["error"] != ""


@pytest.mark.parametrize("version_field", ["podsVersion", "budgetsVersion"])
def test_evict_answers_503_if_state_is_older_than_hint(
    functions: Functions, workload: Workload, version_field: str
) -> None:
    """Design rule 1: `evict` answers 503 and evicts no pod if the API server's state is older than the event."""
    node = workload.take_node()
    pod = workload.create_bare_pods(node, "stays")[0]
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    future_version = str(int(pod["metadata"]["resourceVersion"]) + 10**6)

    response = functions.post(
        "evict", build_product_event(events.BUDGET_OPENED, maintenance, data={version_field: future_version})
    )

    assert response.status_code == 503
    assert not workload.client.get(build_pod_path(pod))["metadata"].get("deletionTimestamp")


def test_evict_lists_pods_once_if_hint_has_resource_version(functions: Functions, workload: Workload) -> None:
    """Design rule 8: `evict` lists pods only once if the hint contains a resourceVersion at which all pods are gone."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    version = workload.read_node(node)["metadata"]["resourceVersion"]
    list_counts = []

    for data in ({"podsVersion": version}, {}):
        with count_requests(functions.clusters["evict"].api) as requests:
            reply = functions.invoke("evict", build_product_event(events.PODS_GONE, maintenance, data=data))
        assert reply is not None
        assert reply.get_type() == events.NODE_DRAINED
        list_counts.append(requests[f"GET {PODS_PATH}"])

    assert list_counts == [1, 2]
