"""Tests for the scheduling rules that decide whether a node accepts a pod, on plain dicts."""

from __future__ import annotations

from typing import Any

import pytest

from kube.nodes import UNSCHEDULABLE_TAINT
from kube.paths import Object
from kube.scheduling import (
    AntiAffinityIndex,
    compute_pod_requests,
    find_rejection,
    list_unchecked_constraints,
    parse_allocatable,
    tolerates_taint,
    trim_node_for_scheduling,
    trim_pod_for_scheduling,
)
from tests.kube.samples import READY_CONDITIONS, make_pod

GPU_TAINT = {"key": "gpu", "value": "a", "effect": "NoSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EVERY_RESOURCE = ("cpu", "memory", "pods")


def make_pod_with(**spec: Any) -> Object:
    return {**make_pod(), "spec": spec}


def make_container(**requests: str) -> Object:
    return {"name": "main", "resources": {"requests": requests}}


def make_schedulable_node(name: str = "node-1", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "4", "pods": "110"}, "conditions": READY_CONDITIONS},
    }


def make_pod_with_node_terms(*terms: Object) -> Object:
    return make_pod_with(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}})


def make_expression(operator: str, *values: str, key: str = "zone") -> Object:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def test_pod_requests_are_sum_of_containers_and_overhead() -> None:
    pod = make_pod_with(
        containers=[make_container(cpu="1", memory="1k"), make_container(cpu="500m"), {"name": "none"}],
        overhead={"cpu": "100m"},
    )

    assert compute_pod_requests(pod) == {"cpu": 1_600, "memory": 1_000_000, "pods": 1_000}


@pytest.mark.parametrize(
    ("init_containers", "expected_cpu"),
    [
        ([make_container(cpu="3")], 3_000),
        ([make_container(cpu="500m"), make_container(cpu="500m")], 1_000),
        ([{**make_container(cpu="1"), "restartPolicy": "Always"}], 2_000),
        ([{**make_container(cpu="1"), "restartPolicy": "Always"}, make_container(cpu="3")], 4_000),
        ([make_container(cpu="3"), {**make_container(cpu="1"), "restartPolicy": "Always"}], 3_000),
    ],
    ids=["larger init container", "small init containers", "sidecar", "sidecar before init", "sidecar after init"],
)
def test_pod_requests_include_init_containers_and_sidecars(init_containers: list[Object], expected_cpu: int) -> None:
    """Check the requests of a pod with init containers or sidecars, whose main container requests one CPU (KEP-753)."""
    pod = make_pod_with(containers=[make_container(cpu="1")], initContainers=init_containers)

    assert compute_pod_requests(pod)["cpu"] == expected_cpu


def test_pod_level_requests_take_precedence() -> None:
    pod = make_pod_with(containers=[make_container(cpu="1", memory="1k")], resources={"requests": {"cpu": "3"}})

    assert compute_pod_requests(pod) == {"cpu": 3_000, "memory": 1_000_000, "pods": 1_000}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "a"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "b"}, False),
        ({"key": "gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "operator": "Lt", "value": "b"}, True),
    ],
    ids=str,
)
def test_toleration_must_match_key_value_and_effect(toleration: Object, expected: bool) -> None:
    assert tolerates_taint(make_pod_with(tolerations=[toleration]), GPU_TAINT) is expected


def test_node_rejects_pod_for_cordon_readiness_taint_or_selector() -> None:
    pod, ready_node = make_pod_with(nodeSelector={"disk": "ssd"}), make_schedulable_node(labels={"disk": "ssd"})
    tainted_node = make_schedulable_node(labels={"disk": "ssd"}, taints=[GPU_TAINT])
    soft_taint = {**GPU_TAINT, "effect": "PreferNoSchedule"}

    assert find_rejection(pod, ready_node) == ""
    assert find_rejection(pod, make_schedulable_node(unschedulable=True)) == "cordoned"
    assert find_rejection(pod, {**ready_node, "status": {}}) == "not ready"
    assert find_rejection(pod, tainted_node) == "taint gpu"
    assert find_rejection(pod, make_schedulable_node(labels={"disk": "ssd"}, taints=[soft_taint])) == ""
    assert find_rejection(pod, make_schedulable_node(labels={"disk": "hdd"})) == "node selector does not match"


def test_cordoned_node_accepts_pod_that_tolerates_its_taint() -> None:
    toleration = {"key": UNSCHEDULABLE_TAINT, "operator": "Exists"}

    assert find_rejection(make_pod_with(tolerations=[toleration]), make_schedulable_node(unschedulable=True)) == ""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (make_expression("In", "a", "b"), True),
        (make_expression("In", "b"), False),
        (make_expression("NotIn", "b"), True),
        (make_expression("NotIn", "a"), False),
        (make_expression("NotIn", "a", key="absent"), True),
        (make_expression("In", "a", key="absent"), False),
        (make_expression("Exists"), True),
        (make_expression("Exists", key="absent"), False),
        (make_expression("DoesNotExist"), False),
        (make_expression("DoesNotExist", key="absent"), True),
        (make_expression("Gt", "7", key="cores"), True),
        (make_expression("Gt", "8", key="cores"), False),
        (make_expression("Lt", "9", key="cores"), True),
        (make_expression("Lt", "8", key="cores"), False),
        (make_expression("Gt", "7", key="absent"), False),
        (make_expression("Lt", "7", key="zone"), False),
        (make_expression("Gt", "many", key="cores"), False),
    ],
    ids=str,
)
def test_node_affinity_expression_is_evaluated(expression: Object, expected: bool) -> None:
    node = make_schedulable_node(labels={"zone": "a", "cores": "8"})

    rejection = find_rejection(make_pod_with_node_terms({"matchExpressions": [expression]}), node)

    assert rejection == ("" if expected else "node affinity does not match")


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], False),
        ([{}], False),
        ([{}, {"matchExpressions": [make_expression("In", "a")]}], True),
        ([{"matchExpressions": [make_expression("In", "a"), make_expression("In", "b")]}], False),
        ([{"matchFields": [make_expression("In", "node-1", key="metadata.name")]}], True),
        ([{"matchFields": [make_expression("NotIn", "node-1", key="metadata.name")]}], False),
    ],
    ids=str,
)
def test_one_node_affinity_term_must_match_completely(terms: list[Object], expected: bool) -> None:
    """Check that one node affinity term must match with all its requirements, and that an empty term never matches."""
    rejection = find_rejection(make_pod_with_node_terms(*terms), make_schedulable_node(labels={"zone": "a"}))

    assert (rejection == "") is expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "pod affinity"),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}}, "pod anti-affinity"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "topology spread"),
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}, "volume data"),
        ({"volumes": [{"name": "data", "ephemeral": {}}]}, "volume data"),
        ({"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]}, "host port 80"),
        ({"resourceClaims": [{"name": "gpu"}]}, "resource claims"),
        ({"schedulerName": "other"}, "scheduler other"),
        ({"containers": [make_container(**{"example.com/gpu": "1"})]}, "resource example.com/gpu"),
        ({"tolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}, "toleration operator Lt"),
        (
            make_pod_with_node_terms({"matchExpressions": [make_expression("Near")]})["spec"],
            "node affinity operator Near",
        ),
    ],
    ids=str,
)
def test_unsupported_scheduling_constraint_is_named(spec: Object, expected: str) -> None:
    assert list_unchecked_constraints(make_pod_with(**spec), EVERY_RESOURCE) == [expected]


def test_preferences_and_local_volumes_are_not_scheduling_constraints() -> None:
    preferred: Object = {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}
    pod = make_pod_with(
        affinity={"podAffinity": preferred, "podAntiAffinity": preferred, "nodeAffinity": preferred},
        topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}],
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {}}, {"name": "c", "hostPath": {}}],
        containers=[{**make_container(cpu="1"), "ports": [{"containerPort": 80}]}],
        schedulerName="default-scheduler",
    )

    assert list_unchecked_constraints(pod, EVERY_RESOURCE) == []
    assert find_rejection(pod, make_schedulable_node()) == ""


def test_anti_affinity_of_other_pod_rejects_matching_pods_in_its_namespaces() -> None:
    term: Object = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    owner = {**make_pod("owner"), "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}}
    wide_term = {**term, "namespaceSelector": {}}
    wide_owner = {**make_pod("owner"), "spec": {"affinity": {"podAntiAffinity": {REQUIRED: [wide_term]}}}}
    db, web = make_pod("db", labels={"app": "db"}), make_pod("web", labels={"app": "web"})
    elsewhere = make_pod("db", labels={"app": "db"}, namespace="other")

    assert [AntiAffinityIndex([owner]).may_reject(pod) for pod in (db, web, elsewhere)] == [True, False, False]
    assert AntiAffinityIndex([wide_owner]).may_reject(elsewhere)


def test_trimmed_nodes_and_pods_give_same_scheduling_results() -> None:
    pod = {
        **make_pod("pod"),
        "spec": {
            "nodeName": "node-1",
            "containers": [{**make_container(cpu="1"), "image": "a"}],
            "initContainers": [{**make_container(cpu="2"), "restartPolicy": "Always"}],
            "affinity": {"podAntiAffinity": {REQUIRED: [{"labelSelector": {}}]}},
            "overhead": {"cpu": "1"},
        },
    }
    node = make_schedulable_node(labels={"zone": "a"}, taints=[GPU_TAINT])
    trimmed_pod, trimmed_node = trim_pod_for_scheduling(pod), trim_node_for_scheduling({**node, "other": 1})

    assert compute_pod_requests(trimmed_pod) == compute_pod_requests(pod)
    assert AntiAffinityIndex([trimmed_pod]).may_reject(make_pod("other"))
    assert "image" not in str(trimmed_pod)
    assert parse_allocatable(trimmed_node) == {"cpu": 4_000, "pods": 110_000}
    assert find_rejection(pod, trimmed_node) == find_rejection(pod, node) == "taint gpu"
