"""Reads the announcement records, and the objects on which a blockage is announced."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kube.budgets import build_namespace_budgets_path
from kube.client.api import Api, gather_all
from kube.client.api_errors import Denied, NotFound
from kube.client.paging import list_all
from kube.maintenance.blocked_groups import BlockedGroup
from kube.maintenance.kubernetes_events import EVENTS_PATH
from kube.notifications.announcements import AnnouncementRecord, Reference, parse_announcement_record
from kube.paths import Object, encode_path_segment
from kube.pods import get_controller

OPT_OUT_LABEL, OPT_OUT_VALUE = "nodemaintenance.dev/notifications", "disabled"
"""Label and value with which a namespace opts out of announcements, so that no Event is written in it."""
MAX_READ_PODS, MAX_READ_BUDGETS = 5, 2
"""Maximum number of pods whose workloads are read, and of PodDisruptionBudgets to read, for one blockage."""
log = logging.getLogger("functions")


async def list_records(api: Api, uid: str = "") -> list[AnnouncementRecord]:
    """Return the announcement records of the maintenance with this uid, or of all maintenances if `uid` is empty."""
    fields = f"involvedObject.kind=NodeMaintenance{f',involvedObject.uid={uid}' if uid else ''}"
    listed = await list_all(api, EVENTS_PATH, field_selector=fields)
    return [record for item in listed.items if (record := parse_announcement_record(item))]


async def find_announcement_objects(api: Api, group: BlockedGroup) -> list[Reference]:
    """Return references to the PodDisruptionBudget (PDB) that blocks the pods, and to the first pods' workloads.

    The result is empty if no PDB is the cause, or if the namespace has opted out or cannot be read. Objects that this
    ServiceAccount may not read are omitted. Raises `ApiError` if a retry may succeed.
    """
    if not group.budget:
        return []
    namespace = await _read_if_permitted(api, f"/api/v1/namespaces/{encode_path_segment(group.namespace)}")
    if namespace is None or has_opted_out(namespace):
        return []
    budget_paths = [
        f"{build_namespace_budgets_path(group.namespace)}/{encode_path_segment(name)}"
        for name in group.budget.split(", ")[:MAX_READ_BUDGETS]
    ]
    names = [key.partition("/")[2] for key in group.pods[:MAX_READ_PODS]]
    pod_paths = [_build_namespaced_path("/api/v1", group.namespace, "pods", name) for name in names]
    objects = await gather_all(*(_read_if_permitted(api, path) for path in (*budget_paths, *pod_paths)))
    budgets, pods = objects[: len(budget_paths)], objects[len(budget_paths) :]
    controllers = [owner for pod in pods if pod and (owner := get_controller(pod))]
    workloads = await gather_all(
        *(_find_workload(api, group.namespace, owner) for owner in _drop_duplicate_references(controllers))
    )
    references = [_build_budget_reference(budget) for budget in budgets if budget]
    return [*references, *_drop_duplicate_references(workloads)]


def has_opted_out(namespace: Mapping[str, Any]) -> bool:
    """Return whether the namespace has opted out of announcements."""
    return (namespace["metadata"].get("labels") or {}).get(OPT_OUT_LABEL) == OPT_OUT_VALUE


async def _read_if_permitted(api: Api, path: str) -> Object | None:
    """Return the object at `path`, None if it does not exist or access to it is denied; log a denial."""
    try:
        return await api.get(path)
    except NotFound:
        return None
    except Denied as error:
        log.warning("cannot read the object of an announcement: %s", error.message)
        return None


async def _find_workload(api: Api, namespace: str, owner: Mapping[str, Any]) -> Reference:
    """Return a reference to the workload of a pod's controller: a ReplicaSet's Deployment, or the controller itself."""
    if owner["kind"] == "ReplicaSet" and owner["apiVersion"].startswith("apps/"):
        replica_set = await _read_if_permitted(
            api, _build_namespaced_path("/apis/apps/v1", namespace, "replicasets", owner["name"])
        )
        owner = (get_controller(replica_set) if replica_set else None) or owner
    names = {name: str(owner[name]) for name in ("apiVersion", "kind", "name", "uid")}
    return {**names, "namespace": namespace}


def _build_namespaced_path(group_path: str, namespace: str, resource: str, name: str) -> str:
    return f"{group_path}/namespaces/{encode_path_segment(namespace)}/{resource}/{encode_path_segment(name)}"


def _build_budget_reference(budget: Mapping[str, Any]) -> Reference:
    metadata = budget["metadata"]
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return {**kind, **{name: metadata[name] for name in ("namespace", "name", "uid")}}


def _drop_duplicate_references(references: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({reference["uid"]: reference for reference in references}.values())
