"""Reduces API objects to the fields that this project reads, for caches of thousands of objects. Pure functions.

The functions of `kube.pods` and `kube.budgets` that PodSource calls return the same results for full and trimmed
objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import msgspec

from kube.paths import Object
from kube.pods import (
    MIRROR_ANNOTATION,
    build_pvc_volume,
    get_controller,
    get_node_name,
    has_local_storage,
    is_mirror_pod,
    is_ready,
    is_terminating,
    list_pvc_names,
)


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
    deletionGracePeriodSeconds: int
    finalizers: list[str]
    labels: dict[str, str]
    annotations: dict[str, str]
    ownerReferences: list[_Owner]


class _Claim(TypedDict):
    claimName: str


class _Volume(TypedDict, total=False):
    emptyDir: Any
    persistentVolumeClaim: _Claim


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


class _PodList(TypedDict):
    metadata: _ListMetadata
    items: list[_Pod]


POD_LIST_DECODER = msgspec.json.Decoder(_PodList)
"""Decoder for pod lists that builds only the fields that `trim_pod_for_drain` reads, a tenth of each pod."""


def return_unchanged(obj: Object) -> Object:
    """Return the object unchanged, where a trimming function is expected."""
    return obj


def trim_pod(pod: Mapping[str, Any]) -> Object:
    """Return the fields that determine whether and how the pod is evicted, and which PodDisruptionBudget covers it.

    These fields take less than a tenth of the memory of a typical pod.
    """
    metadata: Object = pod["metadata"]
    spec: Object = {"volumes": [{"emptyDir": {}}]} if has_local_storage(pod) else {}
    return {"metadata": {**_trim_metadata(metadata), **_trim_ownership(pod)}, "spec": spec, "status": _trim_status(pod)}


def trim_pod_for_drain(pod: Mapping[str, Any]) -> Object:
    """Return the fields that `trim_pod` keeps, and further fields that a drain needs.

    These are the node name, the finalizers, the grace period, the creation time and the tolerations, which may allow
    the pod to return. For a terminating pod, they include its PersistentVolumeClaims, whose volumes may delay its
    removal.
    """
    trimmed = trim_pod(pod)
    names = ("creationTimestamp", "finalizers", "deletionGracePeriodSeconds")
    metadata = {**trimmed["metadata"], **_pick_fields(pod["metadata"], names)}
    node_field = {"nodeName": sys.intern(get_node_name(pod))}
    claims = [build_pvc_volume(name) for name in list_pvc_names(pod)] if is_terminating(pod) else []
    volumes = [*trimmed["spec"].get("volumes", []), *claims]
    return {
        **trimmed,
        "metadata": metadata,
        "spec": {
            **({"volumes": volumes} if volumes else {}),
            **node_field,
            **_pick_fields(pod["spec"], ("tolerations",)),
        },
    }


def trim_node(node: Object) -> Object:
    """Return the node without its status, annotations and managed fields.

    The image list in the status alone takes kilobytes.
    """
    return {
        "metadata": _pick_fields(node["metadata"], ("name", "uid", "resourceVersion", "labels")),
        "spec": node["spec"],
    }


def trim_budget(budget: Mapping[str, Any]) -> Object:
    """Return the PodDisruptionBudget without managed fields, annotations and conditions, which repeat the counts."""
    metadata: Object = budget["metadata"]
    status = _pick_fields(budget.get("status") or {}, ("observedGeneration", "disruptionsAllowed", *COUNT_FIELDS))
    trimmed_metadata = {**_trim_metadata(metadata), **_pick_fields(metadata, ("generation",))}
    return {"metadata": trimmed_metadata, "spec": budget["spec"], "status": status}


COUNT_FIELDS = ("currentHealthy", "desiredHealthy", "expectedPods")


def _trim_metadata(metadata: Mapping[str, Any]) -> Object:
    """Return the metadata that identifies the object, with repeated strings such as labels interned to save memory."""
    kept = _pick_fields(metadata, ("name", "uid", "resourceVersion", "deletionTimestamp"))
    labels = metadata.get("labels") or {}
    return {
        **kept,
        "namespace": sys.intern(metadata["namespace"]),
        "labels": {sys.intern(name): sys.intern(value) for name, value in labels.items()},
    }


def _trim_ownership(pod: Mapping[str, Any]) -> Object:
    owner = get_controller(pod)
    owners = [{**_pick_fields(owner, ("kind", "name", "uid")), "controller": True}] if owner else []
    mirror = {"annotations": {MIRROR_ANNOTATION: ""}} if is_mirror_pod(pod) else {}
    return {**({"ownerReferences": owners} if owners else {}), **mirror}


def _trim_status(pod: Mapping[str, Any]) -> Object:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]} if is_ready(pod) else {}
    return {**_pick_fields(pod.get("status") or {}, ("phase",)), **ready}


def _pick_fields(fields: Mapping[str, Any], names: Iterable[str]) -> Object:
    return {name: fields[name] for name in names if name in fields}
