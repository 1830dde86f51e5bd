"""NodeMaintenance objects: what they request and for whom, and the patches that begin and release them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kube.maintenance.groups import GROUPS, Group
from kube.nodes import Node
from kube.paths import Object

Maintenance = Mapping[str, Any]
Item = TypeVar("Item", bound=Maintenance)
FINALIZER = "nodemaintenance.dev/restore"
LEGACY_FINALIZERS = ("foregroundDeleteNodeMaintenance",)
"""Finalizers of the replaced operator; removed together with ours, so that its objects can be deleted (NMO-16)."""
OURS = (FINALIZER, *LEGACY_FINALIZERS)
"""All finalizers that are removed once the node is restored."""
SNAPSHOT = "nodemaintenance.dev/snapshot"
"""Annotation with the pod counts from before the first eviction; set in one patch with the finalizer (NMO-11).

It includes the object's uid. An object that was created from another one's manifest, or from a backup, carries that
object's annotation and has not begun.
"""
REQUESTER = "nodemaintenance.dev/requested-by"
"""Annotation with the requesting user as reported by the command line or the console; not authenticated."""
MOST_LEASE_ERRORS = 3
"""Consecutive failed lease renewals that a maintenance tolerates; at one more, its lease is lost (NMO-27a)."""
MOST_PODS = 2**31
"""Exclusive upper bound for pod counts; no status schema allows larger numbers."""
RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"


def group(maintenance: Maintenance) -> Group:
    """Return the API group that the object belongs to."""
    return GROUPS[maintenance["apiVersion"]]


def path(maintenance: Maintenance) -> str:
    """Return the API path of the object."""
    return f"{group(maintenance).path}/{maintenance['metadata']['name']}"


def spec_of(maintenance: Maintenance) -> Mapping[str, Any]:
    """Return the spec, or {} if it is missing or not an object; another product's CRD may allow any value."""
    return _object(maintenance.get("spec"))


def status_of(maintenance: Maintenance) -> Mapping[str, Any]:
    """Return the status, or {} if it is missing or not an object."""
    return _object(maintenance.get("status"))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def node_name(maintenance: Maintenance) -> str:
    """Return `spec.nodeName`, "" if an older schema admitted an object without it."""
    return str(spec_of(maintenance).get("nodeName") or "")


def trimmed(maintenance: Maintenance) -> Object:
    """Return the object without its large parts, such as the list of pending pods.

    It keeps the node, the drain options, the phase, and what shows whether the maintenance has begun or was released.
    """
    metadata, wanted = maintenance["metadata"], ("name", "uid", "resourceVersion", "deletionTimestamp", "finalizers")
    kept = {name: metadata[name] for name in wanted if name in metadata}
    noted = (metadata.get("annotations") or {}).get(SNAPSHOT)
    annotations = {"annotations": {SNAPSHOT: noted}} if noted else {}
    drain = spec_of(maintenance).get("drain")
    spec, status = {"nodeName": node_name(maintenance)}, {"phase": phase(maintenance)}
    if drain is not None:
        spec["drain"] = drain
    return {"metadata": {**kept, **annotations}, "spec": spec, "status": status}


def is_deleting(maintenance: Maintenance) -> bool:
    """Return whether the object's deletion was requested."""
    return bool(maintenance["metadata"].get("deletionTimestamp"))


def finalizers(maintenance: Maintenance) -> list[str]:
    """Return all finalizers of the object."""
    return list(maintenance["metadata"].get("finalizers") or [])


def has_finalizer(maintenance: Maintenance) -> bool:
    """Return whether the object carries one of our finalizers, which keep it until its node is restored."""
    return bool(set(OURS) & set(finalizers(maintenance)))


def is_over(maintenance: Maintenance) -> bool:
    """Return whether the object is being deleted and was released.

    If such an object still exists, another controller's finalizer keeps it. It has no claim to its node.
    """
    return is_deleting(maintenance) and not has_finalizer(maintenance)


def standing(maintenances: Iterable[Item]) -> list[Item]:
    """Return the unreleased maintenances."""
    return [item for item in maintenances if not is_over(item)]


def has_begun(maintenance: Maintenance) -> bool:
    """Return whether finalizer and snapshot are set.

    From then on, the maintenance may change its node and must restore it.
    """
    return FINALIZER in finalizers(maintenance) and snapshot(maintenance) is not None


def phase(maintenance: Maintenance) -> str:
    """Return `status.phase`, "" before the first status."""
    return str(status_of(maintenance).get("phase") or "")


def last_error(maintenance: Maintenance) -> str:
    """Return `status.lastError`, "" for none."""
    return str(status_of(maintenance).get("lastError") or "")


def lease_errors(maintenance: Maintenance) -> int:
    """Return the number of failed renewals of the node's lease since the last successful one (NMO-27a)."""
    count = status_of(maintenance).get("errorOnLeaseCount")
    return count if isinstance(count, int) else 0


def has_given_up(maintenance: Maintenance) -> bool:
    """Return whether the maintenance lost its lease, and thus the node, to another tool, and only restores the node."""
    return lease_errors(maintenance) > MOST_LEASE_ERRORS


def has_node(maintenance: Maintenance) -> bool:
    """Return whether the maintenance has begun and has not lost its lease.

    It then owns its node until it is deleted and has restored the node.
    """
    return has_begun(maintenance) and not has_given_up(maintenance)


def claims_node(maintenance: Maintenance) -> bool:
    """Return whether the maintenance owns its node, waits for it, or is about to restore it."""
    return not (is_over(maintenance) or has_given_up(maintenance))


def is_changed(maintenance: Maintenance) -> bool:
    """Return whether the spec is newer than the status, so that earlier refusals may no longer apply (DRN-1a)."""
    seen, now = condition(maintenance, "Drained").get("observedGeneration"), maintenance["metadata"].get("generation")
    return isinstance(seen, int) and isinstance(now, int) and seen < now


def requester(maintenance: Maintenance) -> str:
    """Return who requested the maintenance: the annotated user, else the program that wrote the spec, "" if unknown."""
    metadata = maintenance["metadata"]
    user = (metadata.get("annotations") or {}).get(REQUESTER)
    programs = [item.get("manager") for item in metadata.get("managedFields") or [] if "f:spec" in item["fieldsV1"]]
    return str(user or next((f"the program {name}" for name in programs if name), ""))


def snapshot(maintenance: Maintenance) -> Object | None:
    """Return `{totalpods, evictionPods}` as counted when the maintenance began; None before that."""
    metadata = maintenance["metadata"]
    try:
        noted = json.loads((metadata.get("annotations") or {}).get(SNAPSHOT, "null"))
    except (ValueError, RecursionError):  # any client may write the annotation
        return None
    return _counts(noted) if isinstance(noted, dict) and noted.get("uid") == metadata.get("uid", "") else None


def counted(maintenance: Maintenance) -> Object | None:
    """Return the pod counts from the start of the maintenance; None if it has not begun.

    They come from the status, else from the snapshot. A user who replaces the object from a manifest removes the
    snapshot, but not the status.
    """
    return _counts(status_of(maintenance)) or (snapshot(maintenance) if has_begun(maintenance) else None)


def _counts(known: Mapping[str, Any]) -> Object | None:
    """Return the counts in an annotation or a status, or None if one is invalid; any client may have written them."""
    found = {name: known.get(name) for name in ("totalpods", "evictionPods")}
    return found if all(map(is_count, found.values())) else None


def is_count(value: object) -> bool:
    """Return whether the value is a valid number of pods."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_PODS


def begin_patch(maintenance: Maintenance, node: Node, counts: Mapping[str, int]) -> Object:
    """Build the merge patch that begins a maintenance: finalizer, owner reference (NMO-20) and snapshot.

    It fails if another client changed the object meanwhile. It is empty if nothing is missing.
    """
    metadata = maintenance["metadata"]
    if has_begun(maintenance) and is_owned(maintenance):
        return {}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    others = [item for item in metadata.get("ownerReferences") or [] if item["uid"] != owner["uid"]]
    begun = {
        "ownerReferences": [*others, owner],
        "annotations": {SNAPSHOT: json.dumps({**counts, "uid": metadata["uid"]}, sort_keys=True)},
    }
    return {"metadata": {**_with_finalizer(maintenance), **begun}}


def keep_patch(maintenance: Maintenance) -> Object:
    """Build the merge patch that sets our finalizer, so that a later deletion waits for us.

    The API server rejects the patch if the object is already being deleted.
    """
    return {"metadata": _with_finalizer(maintenance)}


def _with_finalizer(maintenance: Maintenance) -> Object:
    version = maintenance["metadata"]["resourceVersion"]
    kept = [name for name in finalizers(maintenance) if name != FINALIZER]
    return {"resourceVersion": version, "finalizers": [*kept, FINALIZER]}


def is_owned(maintenance: Maintenance) -> bool:
    """Return whether an owner reference names the node on which the maintenance began."""
    return any(owner.get("kind") == "Node" for owner in maintenance["metadata"].get("ownerReferences") or [])


def began_on(maintenance: Maintenance, node: Node) -> bool:
    """Return whether the maintenance began on this node, and not on an earlier node of the same name (NMO-20, rule 1).

    The function compares the uid in the owner reference. If another client removed that reference, it returns True.
    """
    owners = maintenance["metadata"].get("ownerReferences") or []
    uids = {owner.get("uid") for owner in owners if owner.get("kind") == "Node"}
    return not uids or node["metadata"]["uid"] in uids


def release_patch(maintenance: Maintenance) -> Object:
    """Build the merge patch that removes our finalizer and those of the replaced operator."""
    kept = [name for name in finalizers(maintenance) if name not in OURS]
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"], "finalizers": kept}}


def condition(maintenance: Maintenance, kind: str) -> Object:
    """Return the condition of this type, or {} if there is none."""
    conditions = status_of(maintenance).get("conditions") or []
    return next((dict(item) for item in conditions if item.get("type") == kind), {})


def is_cordoned(maintenance: Maintenance) -> bool:
    """Return whether the condition Cordoned is True: the node accepts no new pods."""
    return bool(condition(maintenance, "Cordoned").get("status") == "True")


def is_told_open(maintenance: Maintenance) -> bool:
    """Return whether the condition Cordoned is False: the cordon or a taint is missing.

    A status may have no conditions if an older release wrote it, or if another operator's CRD prunes them.
    """
    return bool(condition(maintenance, "Cordoned").get("status") == "False")


def is_told_drained(maintenance: Maintenance) -> bool:
    """Return whether the status reports the node as drained and not as uncordoned: another pass adds nothing."""
    return phase(maintenance) == SUCCEEDED and not is_told_open(maintenance)


def blocked_pods(maintenance: Maintenance) -> list[Mapping[str, Any]]:
    """Return the well-formed entries of `status.blockedPods`; another program may have written the list."""
    known = status_of(maintenance).get("blockedPods")
    items = [item for item in known if isinstance(item, dict)] if isinstance(known, list) else []
    return [item for item in items if all(isinstance(item.get(name), str) for name in ("namespace", "name", "reason"))]
