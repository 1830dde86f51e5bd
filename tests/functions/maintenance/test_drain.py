"""Tests of `spec.drain` on a real API server: evicted pods, refused pods and changes of the spec (DRN-1a)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_data import data_of
from kube.maintenance.objects import path
from kube.paths import Object
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import await_ready
from tests.functions.conftest import Functions
from tests.functions.event_builders import said, tick
from tests.manifests.rendering import ROOT
from tests.proofs import proves
from tests.workload import Audit, Workload

pytestmark = pytest.mark.usefixtures("at_rest", "alone")

NO_CONTROLLER = "no controller makes it again: set spec.drain.force, or delete it"
EMPTY_DIR = "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete it"
DAEMON = (
    "its DaemonSet makes it again here at once: set spec.drain.ignoreDaemonSets, or keep the DaemonSet off the node"
)


@pytest.fixture
def may_delete(quiet: LocalCluster) -> Iterator[None]:
    """Grant `evict` the right to delete pods through the component `deleting`, and revoke it after the test."""
    rights = ROOT / "manifests" / "components" / "deleting" / "rbac.yaml"
    quiet.kubectl("apply", "-f", rights)
    asked = ("auth", "can-i", "delete", "pods", "-A", "--as", access.service_account("evict"))
    await_ready("the right", lambda: quiet.kubectl(*asked, check=False).returncode == 0, quiet.servers)
    yield
    quiet.kubectl("delete", "-f", rights)


def look(functions: Functions, item: Object, event: BaseCloudEvent | None = None) -> BaseCloudEvent:
    """Run `evict` and then `status` on its reply; return the reply."""
    reply = functions.answer("evict", event or said(events.PODS_GONE, item))
    assert reply is not None
    functions.answer("status", reply)
    return reply


def change(work: Workload, item: Object, drain: Object | None) -> None:
    work.admin.patch(path(item), {"spec": {"drain": drain}})


def blocked(work: Workload, item: Object) -> dict[str, tuple[str, str]]:
    """Return the blocked pods in the status, as pod name → (reason, message)."""
    listed = work.again(item)["status"]["blockedPods"]
    return {pod["name"]: (pod["reason"], pod["message"]) for pod in listed}


def evicted(reply: BaseCloudEvent) -> set[str]:
    return {pod["name"] for pod in data_of(reply)["evicted"]}


def await_gone(work: Workload, *pods: str) -> None:
    work.until(f"/api/v1/namespaces/{work.namespace}/pods", lambda known: not set(pods) & set(known))


@proves("DRN-1a")
@pytest.mark.parametrize(
    ("flag", "name", "reason", "message"),
    [
        ("force", "bare", "Force", NO_CONTROLLER),
        ("deleteEmptyDirData", "scratch", "DeleteEmptyDirData", EMPTY_DIR),
        ("ignoreDaemonSets", "agent", "IgnoreDaemonSets", DAEMON),
    ],
)
def test_what_a_flag_refuses_is_blocked_and_the_others_go(
    functions: Functions, work: Workload, flag: str, name: str, reason: str, message: str
) -> None:
    """DRN-1a, rule 8: a pod that a flag refuses is blocked with the remedy, and the other pods are evicted.

    Ticks emit an event for it only after the spec has changed.
    """
    node = work.node()
    work.pods(node, "bare")
    work.pods(node, "scratch", empty_dir=True)
    agent = work.daemonset("agent", node)["metadata"]["name"]
    pod = agent if name == "agent" else name
    others = {"bare", "scratch"} - {pod} if flag != "force" else set[str]()
    item = work.maintenance(node, drain={flag: False})

    first = look(functions, item, functions.prepare(item))
    await_gone(work, *others)
    look(functions, item)
    status = work.again(item)["status"]
    ticks = [functions.answer("resync", tick()) for _ in range(3)]

    refused = blocked(work, item)
    assert evicted(first) == others
    assert refused[pod] == (reason, message)
    assert set(refused) == {"bare", "scratch"} - others | {pod}
    assert (status["phase"], set(status["pendingPods"])) == ("Running", set(refused))
    assert status["evictionPods"] == len(others | set(refused))
    assert message in status["lastError"]
    assert ticks == [None, None, None]

    change(work, item, {flag: True})
    tainted = functions.answer("resync", tick())
    assert tainted is not None
    assert tainted.get_type() == events.NODE_TAINTED
    reply = functions.answer("evict", tainted)
    assert reply is not None
    functions.answer("status", reply)
    if name == "agent":
        assert reply.get_type() == events.NODE_DRAINED
    else:
        assert evicted(reply) == set(refused)
        await_gone(work, *refused)
        look(functions, item)
    assert work.again(item)["status"]["phase"] == "Succeeded"
    assert work.again(item)["status"]["blockedPods"] == []


@proves("DRN-1a")
def test_a_refused_pod_makes_no_write_however_often_it_is_looked_at(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """Rules 2 and 8: no eviction is sent for a refused pod, and repeated passes do not write the status again."""
    node = work.node()
    work.pods(node, "bare")
    item = work.maintenance(node, drain={"force": False})
    look(functions, item, functions.prepare(item))
    version = work.again(item)["metadata"]["resourceVersion"]

    replies = [look(functions, item) for _ in range(3)]

    assert [reply.get_type() for reply in replies] == [events.PODS_EVICTED] * 3
    assert not any(reply.get_attributes().get("more") for reply in replies)
    assert work.again(item)["metadata"]["resourceVersion"] == version
    assert audit.evictions() == []


@proves("DRN-1a")
def test_pods_that_are_not_selected_count_nowhere(functions: Functions, work: Workload) -> None:
    """DRN-1a, DRN-5: pods outside `podSelector` are neither pending nor evicted; a changed selector takes effect."""
    node = work.node()
    work.pods(node, "launcher", labels={"kubevirt.io": "virt-launcher"})
    work.pods(node, "other", "third")
    item = work.maintenance(node, drain={"podSelector": "kubevirt.io in (virt-launcher)"})

    first = look(functions, item, functions.prepare(item))
    await_gone(work, "launcher")
    assert look(functions, item).get_type() == events.NODE_DRAINED
    status = work.again(item)["status"]
    rests = functions.answer("resync", tick())
    change(work, item, {"podSelector": "!kubevirt.io", "force": False})
    tainted = functions.answer("resync", tick())
    assert tainted is not None
    look(functions, item, tainted)
    running = work.again(item)["status"]
    change(work, item, {"podSelector": "none=here", "force": False})
    again = functions.answer("resync", tick())
    assert again is not None
    drained = look(functions, item, again)

    assert evicted(first) == {"launcher"}
    assert (status["phase"], status["totalpods"], status["evictionPods"]) == ("Succeeded", 3, 1)
    assert rests is None
    assert (running["phase"], set(running["pendingPods"])) == ("Running", {"other", "third"})
    assert drained.get_type() == events.NODE_DRAINED
    assert work.again(item)["status"]["phase"] == "Succeeded"
    assert functions.answer("resync", tick()) is None


@proves("DRN-1a")
def test_pods_have_the_time_that_the_spec_gives_them(functions: Functions, work: Workload, audit: Audit) -> None:
    """DRN-1a: evictions carry `gracePeriodSeconds`; with -1 they carry none, so the pod's own applies."""
    for drain, options in (({"gracePeriodSeconds": 7}, {"gracePeriodSeconds": 7}), ({"gracePeriodSeconds": -1}, {})):
        node, name = work.node(), f"bare-{len(options)}"
        work.pods(node, name)
        item = work.maintenance(node, drain=drain)

        assert evicted(look(functions, item, functions.prepare(item))) == {name}

        (entry,) = audit.evictions(name)
        sent = entry["requestObject"]["deleteOptions"]
        assert {key: value for key, value in sent.items() if key != "preconditions"} == options


@proves("DRN-1a")
def test_a_deletion_without_the_right_is_blocked_with_the_remedy(functions: Functions, work: Workload) -> None:
    """DRN-1a: without the right to delete pods, `disableEviction` blocks the pod with the remedy until it is unset."""
    node = work.node()
    work.pods(node, "bare")
    item = work.maintenance(node, drain={"disableEviction": True})

    look(functions, item, functions.prepare(item))
    reason, message = blocked(work, item)["bare"]
    resting = functions.answer("resync", tick())
    change(work, item, None)
    tainted = functions.answer("resync", tick())
    assert tainted is not None
    reply = look(functions, item, tainted)

    assert reason == "DisableEviction"
    assert 'cannot delete resource "pods"' in message
    assert message.endswith(
        "add manifests/components/deleting to the installation, or unset spec.drain.disableEviction"
    )
    assert resting is None
    assert evicted(reply) == {"bare"}


@proves("DRN-1a")
@pytest.mark.usefixtures("may_delete")
def test_with_the_right_pods_are_deleted_whatever_their_budget(
    functions: Functions, work: Workload, audit: Audit
) -> None:
    """DRN-1a: with `disableEviction`, `evict` deletes the pod by uid with its grace period, in spite of its budget."""
    node, labels = work.node(), {"app": "db"}
    (pod,) = work.pods(node, "db", labels=labels)
    work.budget("db", labels, 1, counted=1)
    item = work.maintenance(node, drain={"disableEviction": True, "gracePeriodSeconds": 1})
    tainted = functions.prepare(item)

    reply = look(functions, item, tainted)

    (entry,) = [entry for entry in audit.writes_by() if entry["objectRef"]["resource"] == "pods"]
    assert evicted(reply) == {"db"}
    assert entry["verb"] == "delete"
    sent = entry["requestObject"]
    assert sent["preconditions"]["uid"] == pod["metadata"]["uid"]
    assert sent["gracePeriodSeconds"] == 1
    assert audit.evictions() == []


@proves("DRN-1a")
def test_a_pod_that_does_not_end_is_not_waited_for(functions: Functions, work: Workload) -> None:
    """DRN-1a: a terminating pod is pending until `skipWaitForDeleteTimeoutSeconds` have passed, and ignored then."""
    node = work.node()
    work.pods(node, "stuck", finalizers=("example.com/hold",))
    item = work.maintenance(node, drain={"skipWaitForDeleteTimeoutSeconds": 1, "gracePeriodSeconds": 1})

    look(functions, item, functions.prepare(item))
    pending = work.again(item)["status"]["pendingPods"]
    await_ready(
        "the end of the wait",
        lambda: look(functions, item).get_type() == events.NODE_DRAINED,
        work.local.servers,
    )

    assert pending == ["stuck"]
    assert work.again(item)["status"]["phase"] == "Succeeded"
    work.admin.patch(f"/api/v1/namespaces/{work.namespace}/pods/stuck", {"metadata": {"finalizers": None}})


@proves("DRN-1a")
def test_a_daemon_without_its_daemonset_needs_force(functions: Functions, work: Workload) -> None:
    """DRN-1a, NMO-7: without `force`, an orphaned DaemonSet pod is pending and blocked, and a tick emits no event."""
    node = work.node()
    metadata = work.daemonset("agent", node)["metadata"]
    agent, kept = metadata["name"], {"finalizers": ["example.com/hold"]}
    pod, owner = f"/api/v1/namespaces/{work.namespace}/pods/{agent}", metadata["ownerReferences"][0]
    daemonset = f"/apis/apps/v1/namespaces/{work.namespace}/daemonsets/agent"
    work.admin.run(work.admin.api.request("DELETE", daemonset, body={"propagationPolicy": "Orphan"}))
    work.wait_for(daemonset, lambda found: found is None)
    # the owner's DaemonSet is gone; its unknown API group keeps the garbage collector from deleting the pod
    work.admin.patch(pod, {"metadata": {**kept, "ownerReferences": [{**owner, "apiVersion": "gone.example.com/v1"}]}})
    item = work.maintenance(node, drain={"force": False})

    look(functions, item, functions.prepare(item))
    status = work.again(item)["status"]
    rests = functions.answer("resync", tick())

    assert (status["phase"], status["pendingPods"]) == ("Running", [agent])
    assert blocked(work, item) == {agent: ("Force", NO_CONTROLLER)}
    assert rests is None
    work.admin.patch(pod, {"metadata": {"finalizers": None}})
