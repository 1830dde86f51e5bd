"""Reduces objects to the fields that the rules read, for caches of thousands of objects. Pure functions.

`kube.pods` and `kube.budgets` give the same results for a full pod or budget and for a trimmed one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import msgspec

from kube.paths import Object
from kube.pods import MIRROR_ANNOTATION, controller, has_local_storage, is_mirror, is_ready, node_of


class _Owner(TypedDict, total=False):
    kind: str
    name: str
    uid: str
    controller: bool


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str
    deletionTimestamp: str
    finalizers: list[str]
    labels: dict[str, str]
    annotations: dict[str, str]
    ownerReferences: list[_Owner]


class _Volume(TypedDict, total=False):
    emptyDir: Any


class _Spec(TypedDict, total=False):
    nodeName: str
    tolerations: list[Any]
    volumes: list[_Volume]


class _Condition(TypedDict):
    type: str
    status: str


class _Status(TypedDict, total=False):
    phase: str
    conditions: list[_Condition]


class _Pod(TypedDict, total=False):
    metadata: _Metadata
    spec: _Spec
    status: _Status


class _ListMetadata(TypedDict):
    resourceVersion: str


class _Pods(TypedDict):
    metadata: _ListMetadata
    items: list[_Pod]


PODS = msgspec.json.Decoder(_Pods)
"""Decoder for pod lists that builds only the fields read by `drained_pod`, a tenth of each pod."""


def whole(item: Object) -> Object:
    """Return the object unchanged."""
    return item


def trimmed_pod(pod: Mapping[str, Any]) -> Object:
    """Return the fields that decide whether and how the pod is evicted, and which budget covers it.

    They take less than a tenth of the memory of a typical pod.
    """
    metadata: Object = pod["metadata"]
    spec: Object = {"volumes": [{"emptyDir": {}}]} if has_local_storage(pod) else {}
    return {"metadata": {**_identity(metadata), **_owned(pod)}, "spec": spec, "status": _status(pod)}


def drained_pod(pod: Mapping[str, Any]) -> Object:
    """Return `trimmed_pod` plus the other fields that a drain needs.

    These are the node name, the finalizers, the creation time and the tolerations, which may allow the pod to return.
    """
    trimmed = trimmed_pod(pod)
    metadata = {**trimmed["metadata"], **_only(pod["metadata"], ("creationTimestamp", "finalizers"))}
    place = {"nodeName": sys.intern(node_of(pod))}
    return {
        **trimmed,
        "metadata": metadata,
        "spec": {**trimmed["spec"], **place, **_only(pod["spec"], ("tolerations",))},
    }


def trimmed_node(node: Object) -> Object:
    """Return the node without its status, annotations and managed fields.

    The image list in the status alone takes kilobytes.
    """
    return {"metadata": _only(node["metadata"], ("name", "uid", "resourceVersion", "labels")), "spec": node["spec"]}


def trimmed_budget(budget: Mapping[str, Any]) -> Object:
    """Return the budget without managed fields, annotations and the conditions, which repeat the counts."""
    metadata: Object = budget["metadata"]
    status = _only(budget.get("status") or {}, ("observedGeneration", "disruptionsAllowed", *COUNTS))
    known = {**_identity(metadata), **_only(metadata, ("generation",))}
    return {"metadata": known, "spec": budget["spec"], "status": status}


COUNTS = ("currentHealthy", "desiredHealthy", "expectedPods")


def _identity(metadata: Mapping[str, Any]) -> Object:
    """Return the identifying metadata, with repeated strings such as labels interned to save memory."""
    kept = _only(metadata, ("name", "uid", "resourceVersion", "deletionTimestamp"))
    labels = metadata.get("labels") or {}
    return {
        **kept,
        "namespace": sys.intern(metadata["namespace"]),
        "labels": {sys.intern(name): sys.intern(value) for name, value in labels.items()},
    }


def _owned(pod: Mapping[str, Any]) -> Object:
    owner = controller(pod)
    owners = [{**_only(owner, ("kind", "name", "uid")), "controller": True}] if owner else []
    mirror = {"annotations": {MIRROR_ANNOTATION: ""}} if is_mirror(pod) else {}
    return {**({"ownerReferences": owners} if owners else {}), **mirror}


def _status(pod: Mapping[str, Any]) -> Object:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]} if is_ready(pod) else {}
    return {**_only(pod.get("status") or {}, ("phase",)), **ready}


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> Object:
    return {name: fields[name] for name in names if name in fields}
