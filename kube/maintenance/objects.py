"""Accesses the fields of NodeMaintenance objects, and builds the patches that begin and release a maintenance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kube.maintenance.groups import GROUPS, ApiGroup
from kube.nodes import Node
from kube.paths import Object

Maintenance = Mapping[str, Any]
MaintenanceT = TypeVar("MaintenanceT", bound=Maintenance)
FINALIZER = "nodemaintenance.dev/restore"
LEGACY_FINALIZERS = ("foregroundDeleteNodeMaintenance",)
"""Finalizers of the replaced operator; removed with this project's own, so that its objects can be deleted (NMO-16)."""
OWN_FINALIZERS = (FINALIZER, *LEGACY_FINALIZERS)
"""All finalizers to remove once the node is restored."""
INITIAL_COUNTS_ANNOTATION = "nodemaintenance.dev/snapshot"
"""Annotation with the pod counts before the first eviction; one patch sets it and the finalizer (NMO-11).

The annotation contains the object's uid. An object that was created from a backup, or from another object's manifest,
has that object's annotation but has not begun.
"""
REQUESTER_ANNOTATION = "nodemaintenance.dev/requested-by"
"""Annotation with the name of the user who created the object, set by the CLI or the console.

The ValidatingAdmissionPolicy of the component `admission` rejects any name other than that of the requesting user.
"""
ENDER_ANNOTATION = "nodemaintenance.dev/ended-by"
"""Annotation with the name of the user who ended the maintenance, set before the deletion; also validated."""
MAX_LEASE_ERRORS = 3
"""Number of consecutive failed Lease renewals that a maintenance tolerates; one more loses the Lease (NMO-27a)."""
MAX_POD_COUNT = 2**31
"""Exclusive upper bound of pod counts; the schema of the status allows no larger numbers."""
RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"


def get_group(maintenance: Maintenance) -> ApiGroup:
    """Return the API group of the object."""
    return GROUPS[maintenance["apiVersion"]]


def build_path(maintenance: Maintenance) -> str:
    """Return the API path of the NodeMaintenance."""
    return f"{get_group(maintenance).path}/{maintenance['metadata']['name']}"


def format_full_name(maintenance: Maintenance) -> str:
    """Return `kind.group/name` of the NodeMaintenance, the form that kubectl prints and accepts."""
    group = maintenance["apiVersion"].split("/")[0]
    return f"nodemaintenance.{group}/{maintenance['metadata']['name']}"


def get_spec(maintenance: Maintenance) -> Mapping[str, Any]:
    """Return the spec, {} if it is missing or not an object; another product's CRD may allow any value."""
    return _get_mapping(maintenance.get("spec"))


def get_status(maintenance: Maintenance) -> Mapping[str, Any]:
    """Return the status, {} if it is missing or not an object."""
    return _get_mapping(maintenance.get("status"))


def _get_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def get_node_name(maintenance: Maintenance) -> str:
    """Return `spec.nodeName`, "" if an older schema accepted an object without that field."""
    return str(get_spec(maintenance).get("nodeName") or "")


def trim_maintenance(maintenance: Maintenance) -> Object:
    """Return the object without its large parts, such as the list of pending pods.

    The result contains the node name, the drain options, the phase, and the fields that show whether the maintenance
    has begun or is released.
    """
    metadata, field_names = (
        maintenance["metadata"],
        ("name", "uid", "resourceVersion", "deletionTimestamp", "finalizers"),
    )
    kept = {name: metadata[name] for name in field_names if name in metadata}
    counts_text = (metadata.get("annotations") or {}).get(INITIAL_COUNTS_ANNOTATION)
    annotations = {"annotations": {INITIAL_COUNTS_ANNOTATION: counts_text}} if counts_text else {}
    drain = get_spec(maintenance).get("drain")
    spec, status = {"nodeName": get_node_name(maintenance)}, {"phase": get_phase(maintenance)}
    if drain is not None:
        spec["drain"] = drain
    return {"metadata": {**kept, **annotations}, "spec": spec, "status": status}


def is_deleting(maintenance: Maintenance) -> bool:
    """Return whether the object has a deletion timestamp."""
    return bool(maintenance["metadata"].get("deletionTimestamp"))


def get_finalizers(maintenance: Maintenance) -> list[str]:
    """Return all finalizers of the object."""
    return list(maintenance["metadata"].get("finalizers") or [])


def has_finalizer(maintenance: Maintenance) -> bool:
    """Return whether the object has one of this project's finalizers, which keep it until its node is restored."""
    return bool(set(OWN_FINALIZERS) & set(get_finalizers(maintenance)))


def is_released(maintenance: Maintenance) -> bool:
    """Return whether the object is being deleted and has none of this project's finalizers.

    A released object exists only as long as another controller's finalizer keeps it. It no longer blocks other
    maintenances of its node.
    """
    return is_deleting(maintenance) and not has_finalizer(maintenance)


def select_unreleased(maintenances: Iterable[MaintenanceT]) -> list[MaintenanceT]:
    """Return the maintenances that are not released."""
    return [item for item in maintenances if not is_released(item)]


def has_begun(maintenance: Maintenance) -> bool:
    """Return whether the finalizer and the initial pod counts are set.

    From then on, the maintenance may change its node and must restore it.
    """
    return FINALIZER in get_finalizers(maintenance) and parse_annotated_pod_counts(maintenance) is not None


def get_phase(maintenance: Maintenance) -> str:
    """Return `status.phase`, "" before the first status write."""
    return str(get_status(maintenance).get("phase") or "")


def get_last_error(maintenance: Maintenance) -> str:
    """Return `status.lastError`, "" if there is none."""
    return str(get_status(maintenance).get("lastError") or "")


def get_lease_error_count(maintenance: Maintenance) -> int:
    """Return the number of failed renewals of the node's Lease since the last successful one (NMO-27a)."""
    count = get_status(maintenance).get("errorOnLeaseCount")
    return count if isinstance(count, int) else 0


def has_lost_lease(maintenance: Maintenance) -> bool:
    """Return whether the maintenance has lost its Lease, and thus its node, so that it may only restore the node."""
    return get_lease_error_count(maintenance) > MAX_LEASE_ERRORS


def owns_node(maintenance: Maintenance) -> bool:
    """Return whether the maintenance has begun and has not lost its Lease.

    Such a maintenance owns its node until it has been deleted and the node is restored.
    """
    return has_begun(maintenance) and not has_lost_lease(maintenance)


def owns_or_awaits_node(maintenance: Maintenance) -> bool:
    """Return whether the maintenance owns its node, waits for it, or must still restore it."""
    return not (is_released(maintenance) or has_lost_lease(maintenance))


def is_spec_changed(maintenance: Maintenance) -> bool:
    """Return whether the status describes an older spec, so that its refusals may no longer apply (DRN-1a)."""
    observed_generation, generation = (
        get_condition(maintenance, "Drained").get("observedGeneration"),
        maintenance["metadata"].get("generation"),
    )
    return isinstance(observed_generation, int) and isinstance(generation, int) and observed_generation < generation


def get_requester(maintenance: Maintenance) -> str:
    """Return the annotated user who requested the maintenance, else the field manager of its spec, "" if unknown."""
    metadata = maintenance["metadata"]
    user = (metadata.get("annotations") or {}).get(REQUESTER_ANNOTATION)
    managers = [item.get("manager") for item in metadata.get("managedFields") or [] if "f:spec" in item["fieldsV1"]]
    return str(user or next((f"the program {name}" for name in managers if name), ""))


def get_ending_user(maintenance: Maintenance) -> str:
    """Return the annotated user who ended the maintenance, "" if it is not being deleted or the user is unknown."""
    user = (maintenance["metadata"].get("annotations") or {}).get(ENDER_ANNOTATION)
    return str(user or "") if is_deleting(maintenance) else ""


def parse_annotated_pod_counts(maintenance: Maintenance) -> Object | None:
    """Return the `{totalpods, evictionPods}` counts from the start of the maintenance; None before the start."""
    metadata = maintenance["metadata"]
    try:
        parsed = json.loads((metadata.get("annotations") or {}).get(INITIAL_COUNTS_ANNOTATION, "null"))
    except (ValueError, RecursionError):  # any client may write the annotation
        return None
    return _parse_counts(parsed) if isinstance(parsed, dict) and parsed.get("uid") == metadata.get("uid", "") else None


def find_initial_pod_counts(maintenance: Maintenance) -> Object | None:
    """Return the pod counts from the start of the maintenance; None if it has not begun.

    The counts come from the status, else from the annotation. A user who replaces the object with a manifest removes
    the annotation but not the status.
    """
    return _parse_counts(get_status(maintenance)) or (
        parse_annotated_pod_counts(maintenance) if has_begun(maintenance) else None
    )


def _parse_counts(fields: Mapping[str, Any]) -> Object | None:
    """Return the pod counts in an annotation or a status, None if one is invalid; any client may have written them."""
    counts = {name: fields.get(name) for name in ("totalpods", "evictionPods")}
    return counts if all(map(is_valid_pod_count, counts.values())) else None


def is_valid_pod_count(value: object) -> bool:
    """Return whether the value is a valid number of pods."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_POD_COUNT


def build_begin_patch(maintenance: Maintenance, node: Node, counts: Mapping[str, int]) -> Object:
    """Build the merge patch that begins a maintenance: finalizer, owner reference (NMO-20) and initial pod counts.

    The patch fails if another client has changed the object since it was read. The patch is {} if nothing is missing.
    """
    metadata = maintenance["metadata"]
    if has_begun(maintenance) and has_node_owner(maintenance):
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    others = [item for item in metadata.get("ownerReferences") or [] if item["uid"] != owner["uid"]]
    begun = {
        "ownerReferences": [*others, owner],
        "annotations": {INITIAL_COUNTS_ANNOTATION: json.dumps({**counts, "uid": metadata["uid"]}, sort_keys=True)},
    }
    return {"metadata": {**_build_finalizer_metadata(maintenance), **begun}}


def build_finalizer_patch(maintenance: Maintenance) -> Object:
    """Build the merge patch that sets this project's finalizer; a deletion then waits until the node is restored.

    The API server rejects the patch if the object is already being deleted.
    """
    return {"metadata": _build_finalizer_metadata(maintenance)}


def _build_finalizer_metadata(maintenance: Maintenance) -> Object:
    version = maintenance["metadata"]["resourceVersion"]
    kept = [name for name in get_finalizers(maintenance) if name != FINALIZER]
    return {"resourceVersion": version, "finalizers": [*kept, FINALIZER]}


def has_node_owner(maintenance: Maintenance) -> bool:
    """Return whether the maintenance has an owner reference to a node."""
    return any(owner.get("kind") == "Node" for owner in maintenance["metadata"].get("ownerReferences") or [])


def has_begun_on(maintenance: Maintenance, node: Node) -> bool:
    """Return whether the maintenance began on this node, not on an earlier node with the same name (NMO-20).

    The function compares the node's uid with the owner reference (design rule 1). If another client has removed that
    reference, the result is True.
    """
    owners = maintenance["metadata"].get("ownerReferences") or []
    uids = {owner.get("uid") for owner in owners if owner.get("kind") == "Node"}
    return not uids or node["metadata"]["uid"] in uids


def build_release_patch(maintenance: Maintenance) -> Object:
    """Build the merge patch that removes this project's finalizer and the replaced operator's finalizers."""
    kept = [name for name in get_finalizers(maintenance) if name not in OWN_FINALIZERS]
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"], "finalizers": kept}}


def get_condition(maintenance: Maintenance, condition_type: str) -> Object:
    """Return the condition of this type, {} if there is none."""
    conditions = get_status(maintenance).get("conditions") or []
    return next((dict(item) for item in conditions if item.get("type") == condition_type), {})


def is_reported_cordoned(maintenance: Maintenance) -> bool:
    """Return whether the condition Cordoned is True, which means that the node accepts no new pods."""
    return bool(get_condition(maintenance, "Cordoned").get("status") == "True")


def is_reported_uncordoned(maintenance: Maintenance) -> bool:
    """Return whether the condition Cordoned is False, which means that the cordon or a taint is missing.

    A status may have no conditions if an older release wrote it, or if another operator's CRD prunes them.
    """
    return bool(get_condition(maintenance, "Cordoned").get("status") == "False")


def is_reported_drained(maintenance: Maintenance) -> bool:
    """Return whether the status reports the node as drained and not as uncordoned, so no further pass is needed."""
    return get_phase(maintenance) == SUCCEEDED and not is_reported_uncordoned(maintenance)


def get_blocked_pods(maintenance: Maintenance) -> list[Mapping[str, Any]]:
    """Return the well-formed entries of `status.blockedPods`; another client may have written the list."""
    entries = get_status(maintenance).get("blockedPods")
    items = [item for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []
    return [item for item in items if all(isinstance(item.get(name), str) for name in ("namespace", "name", "reason"))]
