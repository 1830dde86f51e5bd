"""Rules of kube-scheduler that decide whether a node accepts a pod, on plain dicts. Pure functions.

The rules cover resource requests, taints, node selectors, required node affinity, cordons and node readiness.
`list_unchecked_constraints` names a pod's constraints that these rules do not cover.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kube.nodes import NO_SCHEDULE, UNSCHEDULABLE_TAINT, Node, is_cordoned
from kube.paths import Object
from kube.pods import Pod, is_ready
from kube.quantities import MILLI, add_resources, compute_max_resources, parse_resources
from kube.selectors import matches

REJECTING_EFFECTS = (NO_SCHEDULE, "NoExecute")
"""Taint effects that prevent the scheduling of a pod without a matching toleration."""
DEFAULT_SCHEDULER = "default-scheduler"
ALL_NAMESPACES = ""
BOUND_VOLUME_TYPES = (
    *("persistentVolumeClaim", "ephemeral", "awsElasticBlockStore", "azureDisk", "cinder"),
    *("gcePersistentDisk", "iscsi", "rbd"),
)
"""Volume types that may be usable only on some nodes, or on one node at a time."""
POD_SPEC_FIELDS = ("nodeName", "nodeSelector", "affinity", "tolerations", "overhead", "resources")
_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_TOLERATION_OPERATORS = ("", "Equal", "Exists")
_INTEGER_PATTERN = re.compile(r"[+-]?\d{1,19}", re.ASCII)


def compute_pod_requests(pod: Pod) -> dict[str, int]:
    """Return the resources that the scheduler reserves for a pod, in thousandths; they include one unit of `pods`.

    The requests are the sum over the containers and sidecars, or the peak of the init containers if that is larger,
    plus the pod overhead (KEP-688, KEP-753). Pod-level requests take precedence (KEP-2837).
    """
    spec = pod["spec"]
    running: dict[str, int] = {}
    for container in spec.get("containers") or []:
        running = add_resources(running, _parse_requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        current = add_resources(sidecars, _parse_requests(container))
        if container.get("restartPolicy") == "Always":
            sidecars = current
        peak = compute_max_resources(peak, current)
    total = {**compute_max_resources(add_resources(running, sidecars), peak), **_parse_requests(spec)}
    return {**add_resources(total, parse_resources(spec.get("overhead"))), "pods": MILLI}


def _parse_requests(container: Mapping[str, Any]) -> dict[str, int]:
    return parse_resources((container.get("resources") or {}).get("requests"))


def parse_allocatable(node: Node) -> dict[str, int]:
    """Return the node's allocatable resources, in thousandths."""
    return parse_resources((node.get("status") or {}).get("allocatable"))


def find_rejection(pod: Pod, node: Node) -> str:
    """Return why the node rejects the pod regardless of free resources, "" if it accepts the pod."""
    unschedulable = {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}
    if is_cordoned(node) and not tolerates_taint(pod, unschedulable):
        return "cordoned"
    if not is_ready(node):
        return "not ready"
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in REJECTING_EFFECTS and not tolerates_taint(pod, taint):
            return f"taint {taint['key']}"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return "node selector does not match"
    terms = _get_required_node_terms(pod)
    if terms is not None and not any(_matches_node_term(term, node) for term in terms):
        return "node affinity does not match"
    return ""


def tolerates_taint(pod: Pod, taint: Mapping[str, Any]) -> bool:
    """Return whether one of the pod's tolerations matches the taint, including its value."""
    return any(_matches_taint(toleration, taint) for toleration in pod["spec"].get("tolerations") or [])


def _matches_taint(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether the toleration matches the taint; an unknown operator counts as a match."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return operator != "Equal" or same_value


def _get_affinity(pod: Pod, kind: str) -> Mapping[str, Any]:
    return (pod["spec"].get("affinity") or {}).get(kind) or {}


def _get_required_node_terms(pod: Pod) -> list[Mapping[str, Any]] | None:
    """Return the terms of the pod's required node affinity, one of which must match; None if it has none."""
    required = _get_affinity(pod, "nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else list(required.get("nodeSelectorTerms") or [])


def _matches_node_term(term: Mapping[str, Any], node: Node) -> bool:
    """Return whether the node satisfies all requirements of the term; an empty term matches no node."""
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    results = [
        *(_matches_requirement(requirement, labels) for requirement in term.get("matchExpressions") or []),
        *(_matches_requirement(requirement, fields) for requirement in term.get("matchFields") or []),
    ]
    return bool(results) and all(results)


def _matches_requirement(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """Return whether the labels or fields satisfy the requirement; an unknown operator counts as satisfied."""
    value, listed = values.get(requirement["key"]), requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return value in listed
        case "NotIn":
            return value not in listed
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_greater(value, listed[0])
        case "Lt":
            return _is_greater(listed[0], value)
    return True


def _is_greater(first: str | None, second: str | None) -> bool:
    """Return whether both arguments are integers and the first one is greater."""
    if not all(text is not None and _INTEGER_PATTERN.fullmatch(text) for text in (first, second)):
        return False
    return int(first or 0) > int(second or 0)


def list_unchecked_constraints(pod: Pod, visible_resources: Collection[str]) -> list[str]:
    """Return the pod's scheduling constraints that neither `find_rejection` nor a comparison of resources checks.

    `visible_resources` are the names of the resources that at least one node reports. A resource that no node reports
    may be provided in another way, for example by dynamic resource allocation (KEP-5004).
    """
    return [
        *_list_placement_constraints(pod),
        *_list_unmodelled_operators(pod),
        *(
            f"resource {name}"
            for name, amount in sorted(compute_pod_requests(pod).items())
            if amount and name not in visible_resources
        ),
    ]


def _list_placement_constraints(pod: Pod) -> Iterator[str]:
    """Yield the pod's constraints that depend on other pods, volumes, host ports or another scheduler."""
    spec = pod["spec"]
    if _list_required_pod_terms(pod, "podAffinity"):
        yield "pod affinity"
    if _list_required_pod_terms(pod, "podAntiAffinity"):
        yield "pod anti-affinity"
    spread = spec.get("topologySpreadConstraints") or []
    if any(constraint.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for constraint in spread):
        yield "topology spread"
    for volume in spec.get("volumes") or []:
        if any(volume.get(kind) is not None for kind in BOUND_VOLUME_TYPES):
            yield f"volume {volume['name']}"
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    for port in (port for container in containers for port in container.get("ports") or []):
        if port.get("hostPort"):
            yield f"host port {port['hostPort']}"
    if spec.get("resourceClaims"):
        yield "resource claims"
    if spec.get("workloadRef") or spec.get("schedulingGroup"):
        yield "gang scheduling"
    if spec.get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
        yield f"scheduler {spec['schedulerName']}"


def _list_unmodelled_operators(pod: Pod) -> Iterator[str]:
    for toleration in pod["spec"].get("tolerations") or []:
        if (toleration.get("operator") or "") not in _TOLERATION_OPERATORS:
            yield f"toleration operator {toleration['operator']}"
    for term in _get_required_node_terms(pod) or []:
        for requirement in (*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])):
            if requirement["operator"] not in _NODE_OPERATORS:
                yield f"node affinity operator {requirement['operator']}"


def _list_required_pod_terms(pod: Pod, kind: str) -> list[Mapping[str, Any]]:
    return _get_affinity(pod, kind).get("requiredDuringSchedulingIgnoredDuringExecution") or []


class AntiAffinityIndex:
    """The required anti-affinity terms of many pods; a term also keeps matching pods off the node of its own pod.

    In: the pods. A term applies to its pod's namespace. A term that names other namespaces is assumed to apply to all.
    """

    def __init__(self, pods: Iterable[Pod]) -> None:
        terms = ((pod, term) for pod in pods for term in _list_required_pod_terms(pod, "podAntiAffinity"))
        self._terms = {
            (_get_term_namespace(pod, term), json.dumps(term.get("labelSelector"), sort_keys=True)): term
            for pod, term in terms
        }  # The pods of one controller have equal terms, which are stored once.

    def may_reject(self, pod: Pod) -> bool:
        """Return whether an anti-affinity term, including the pod's own, may keep this pod off a node."""
        metadata = pod["metadata"]
        return any(
            namespace in (ALL_NAMESPACES, metadata["namespace"])
            and matches(term.get("labelSelector"), metadata.get("labels") or {})
            for (namespace, _), term in self._terms.items()
        )


def _get_term_namespace(pod: Pod, term: Mapping[str, Any]) -> str:
    is_wide = bool(term.get("namespaces")) or term.get("namespaceSelector") is not None
    return ALL_NAMESPACES if is_wide else str(pod["metadata"]["namespace"])


def trim_pod_for_scheduling(pod: Pod) -> Object:
    """Return the fields of a bound pod that affect which other pods can be scheduled to its node."""
    metadata, spec = pod["metadata"], pod["spec"]
    containers = {
        kind: [
            {name: container[name] for name in ("resources", "restartPolicy") if name in container}
            for container in spec.get(kind) or []
        ]
        for kind in ("containers", "initContainers")
    }
    return {
        "metadata": {name: metadata[name] for name in ("namespace", "name", "uid")},
        "spec": {**{name: spec[name] for name in POD_SPEC_FIELDS if name in spec}, **containers},
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def trim_node_for_scheduling(node: Node) -> Object:
    """Return the fields of a node that affect which pods can be scheduled to it."""
    metadata, status = node["metadata"], node.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in ("name", "labels") if name in metadata},
        "spec": node["spec"],
        "status": {name: status[name] for name in ("allocatable", "conditions") if name in status},
    }
