"""Tests of whether a control-plane node may be disrupted, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.quorum import CONTROL_PLANE, ControlPlane, refusal
from kube.paths import Object
from tests.kube.samples import budget, maintenance, pod
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
GUARD = {"app": "guard"}


def node(name: str, *, up: str = "True", label: str = CONTROL_PLANE[0]) -> Object:
    conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": up}]
    return {"metadata": {"name": name, "labels": {label: ""}}, "status": {"conditions": conditions if up else []}}


def plane(*ups: str, maintained: tuple[str, ...] = (), guards: int = 0, pods: tuple[str, ...] = ()) -> ControlPlane:
    """Return a control plane with the nodes cp-1 and so on, by the Ready status of each.

    With `pods` (the Ready status of each guard pod), it has a guard budget that allows `guards` disruptions.
    """
    nodes = [node(f"cp-{number}", up=up) for number, up in enumerate(ups, 1)]
    found = [{**guard_pod(f"cp-{number}", ready)} for number, ready in enumerate(pods, 1)]
    guard = budget("etcd-guard-pdb", allowed=guards, selector={"matchLabels": GUARD}, namespace=quorum.ETCD)
    return ControlPlane(nodes, maintained, [guard] if pods else [], found)


def guard_pod(on: str, ready: str) -> Object:
    found = pod(f"guard-{on}", namespace=quorum.ETCD, labels=GUARD)
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    return {**found, "spec": {"nodeName": on}, "status": {"conditions": conditions}}


UP, DOWN = "True", "False"


@proves("NMO-23")
@pytest.mark.parametrize(
    ("ups", "maintained", "may"),
    [
        ((UP,), (), True),
        ((UP, UP), (), False),
        ((UP, UP, UP), (), True),
        ((UP, UP, UP), ("cp-2",), False),
        ((UP, DOWN, UP), (), False),
        ((UP, "Unknown", UP), (), False),
        ((UP, "", UP), (), False),
        ((UP, UP, UP, UP), (), True),
        ((UP, UP, UP, UP), ("cp-2",), False),
        ((UP, UP, UP, UP, UP), ("cp-2",), True),
        ((UP, UP, UP, UP, UP), ("cp-2", "cp-3"), False),
        ((UP, DOWN, UP, UP, UP), ("cp-2",), True),  # cp-2 is both down and maintained, and counts once
        ((DOWN, UP, UP), ("cp-2",), True),  # a node that is down may always be maintained
        (("Unknown", DOWN, UP), (), True),
        ((DOWN, DOWN), (), True),
        ((UP, UP, UP), ("cp-1",), True),  # its own maintenance does not count
    ],
)
def test_without_a_guard_nodes_are_counted(ups: tuple[str, ...], maintained: tuple[str, ...], may: bool) -> None:
    known = plane(*ups, maintained=maintained)

    assert (refusal(known.nodes[0], known) == "") is may


@proves("NMO-23")
@pytest.mark.parametrize(
    ("allowed", "pods", "maintained", "may"),
    [
        (1, (UP, UP, UP), (), True),
        (0, (UP, UP, DOWN), (), False),
        (0, ("Unknown", UP, UP), (), False),  # it may become Ready again
        (0, (DOWN, UP, UP), (), True),
        (0, ("", UP, UP), (), True),
        (1, (UP, UP, UP), ("cp-2",), False),  # the other maintenance will use up the allowed disruption
        (0, (UP, DOWN, UP), ("cp-2",), False),
        (1, (UP, DOWN, UP), ("cp-2",), True),  # the other maintenance's guard pod is down already
        (2, (UP, UP, UP), ("cp-2",), True),
    ],
)
def test_a_guard_decides_where_it_selects_pods(
    allowed: int, pods: tuple[str, ...], maintained: tuple[str, ...], may: bool
) -> None:
    known = plane(*[UP] * 3, maintained=maintained, guards=allowed, pods=pods)

    assert (refusal(known.nodes[0], known) == "") is may


def test_a_guard_pod_that_is_missing_says_that_the_node_is_down() -> None:
    known = plane(UP, UP, UP, UP, guards=0, pods=(UP, UP, UP))

    assert refusal(known.nodes[3], known) == ""


@proves("NMO-23")
@pytest.mark.parametrize("name", quorum.GUARDS)
def test_a_guard_that_selects_no_pod_leaves_it_to_counting(name: str) -> None:
    """Count the nodes if the guard budget selects no pod, as in the operator's end-to-end tests.

    That budget never allows a disruption.
    """
    guard = budget(name, allowed=0, selector={"matchLabels": {"app": "nobody"}}, namespace=quorum.ETCD)
    others = plane(UP, UP, UP)

    def refused(*maintained: str) -> str:
        return refusal(others.nodes[0], ControlPlane(others.nodes, maintained, [guard], [pod(labels=GUARD)]))

    assert refused() == ""
    assert refused("cp-2")


def test_a_guard_that_is_not_counted_allows_nothing() -> None:
    known = plane(UP, UP, UP, guards=1, pods=(UP, UP, UP))
    stale = {**known.guards[0], "status": {"disruptionsAllowed": 1, "observedGeneration": 0}}

    assert refusal(known.nodes[0], ControlPlane(known.nodes, (), [stale], known.pods))


@proves("NMO-23")
def test_the_refusal_is_the_operators_with_the_remedy_behind() -> None:
    known = plane(UP, UP, DOWN, maintained=("cp-2",))

    assert refusal(known.nodes[0], known) == (
        "can not put master/control-plane node into maintenance at this moment, disrupting node cp-1 will violate etcd "
        "quorum: of 3 control-plane nodes 2 must be up, and 0 would be; "
        "end the maintenance of cp-2 or repair cp-3 first"
    )


@pytest.mark.parametrize(
    ("known", "remedy"),
    [
        (plane(UP, UP, UP, guards=0, pods=(UP, UP, UP)), "openshift-etcd/etcd-guard-pdb allows no disruption; add a"),
        (plane(UP, UP), "of 2 control-plane nodes 2 must be up, and 1 would be; add a control-plane node first"),
        (plane(UP, DOWN, UP), "and 1 would be; repair cp-2 first"),
    ],
)
def test_the_remedy_is_what_there_is_to_do(known: ControlPlane, remedy: str) -> None:
    assert remedy in refusal(known.nodes[0], known)


@pytest.mark.parametrize("label", CONTROL_PLANE)
def test_either_label_makes_a_control_plane_node(label: str) -> None:
    assert quorum.is_control_plane(node("cp", label=label))


def test_another_node_is_nothing_to_it() -> None:
    worker: Object = {"metadata": {"name": "worker"}}

    assert not quorum.is_control_plane(worker)
    assert refusal(worker, plane(UP, UP)) == ""


def test_a_sole_node_is_known_as_such() -> None:
    assert quorum.is_sole(plane(UP))
    assert not quorum.is_sole(plane(UP, DOWN))


@pytest.mark.parametrize(
    ("item", "counts"),
    [
        (maintenance(), True),
        (maintenance({"phase": m.FAILED}), True),  # it has begun, and owns the node
        (maintenance(counts=""), True),
        (maintenance({"phase": m.FAILED}, counts=""), False),  # refused; it waits for the node
        (maintenance({"errorOnLeaseCount": 4}), False),
    ],
)
def test_who_has_a_node_or_is_about_to_counts(item: Object, counts: bool) -> None:
    assert quorum.counts(item) is counts


def test_the_lease_is_taken_by_one_at_a_time_and_by_the_next_when_it_is_over() -> None:
    first, second = maintenance(), {**maintenance(), "metadata": {"uid": "other"}}
    lease = quorum.lease_for(first, NOW)

    assert quorum.may_take(lease, first, NOW)
    assert not quorum.may_take(lease, second, NOW)
    assert not quorum.may_take(lease, second, NOW + quorum.LEASE_DURATION)
    assert quorum.may_take(lease, second, NOW + quorum.LEASE_DURATION + timedelta(seconds=1))
    assert quorum.may_take({**lease, "spec": {**lease["spec"], "holderIdentity": None}}, second, NOW)


def test_the_lease_is_one_for_the_whole_control_plane_and_names_who_begins() -> None:
    lease = quorum.lease_for(maintenance(), NOW)

    assert (lease["apiVersion"], lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
    namespace, name = lease["metadata"]["namespace"], lease["metadata"]["name"]
    assert quorum.LEASE_PATH.endswith(f"/namespaces/{namespace}/leases/{name}")
    assert lease["spec"]["holderIdentity"] == maintenance()["metadata"]["uid"]
