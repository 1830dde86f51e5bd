"""NodeMaintenance objects: what they ask for, who asked, what begins and releases them. Pure."""

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
"""Left on objects by the old operator; taken off with ours, so that those objects can be deleted (NMO-16)."""
OURS = (FINALIZER, *LEGACY_FINALIZERS)
"""All that we take off once the node is restored."""
SNAPSHOT = "nodemaintenance.dev/snapshot"
"""Annotation with the counts taken before anything was evicted; written with the finalizer, in one patch (NMO-11).

With the object's uid: one made of another's file, or of a backup, comes with that one's, and has not begun."""
REQUESTER = "nodemaintenance.dev/requested-by"
"""Annotation with the user who asked, as the command line and the console know him. A claim, not a proof."""
MOST_LEASE_ERRORS = 3
"""Of so many failed renewals in a row a maintenance thinks nothing; at one more it gives up (NMO-27a)."""
MOST_PODS = 2**31
"""Above any count of pods; no schema of a status has more."""
RUNNING, SUCCEEDED, FAILED = "Running", "Succeeded", "Failed"


def group(maintenance: Maintenance) -> Group:
    """The API group the object belongs to."""
    return GROUPS[maintenance["apiVersion"]]


def path(maintenance: Maintenance) -> str:
    """Path of the object."""
    return f"{group(maintenance).path}/{maintenance['metadata']['name']}"


def spec_of(maintenance: Maintenance) -> Mapping[str, Any]:
    """The spec, {} where there is none: somebody else's CRD may let in anything in its place."""
    return _object(maintenance.get("spec"))


def status_of(maintenance: Maintenance) -> Mapping[str, Any]:
    """The status, {} before the first one, and where there is anything else in its place."""
    return _object(maintenance.get("status"))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def node_name(maintenance: Maintenance) -> str:
    """`spec.nodeName`, "" when an old schema let an object without one in."""
    return str(spec_of(maintenance).get("nodeName") or "")


def trimmed(maintenance: Maintenance) -> Object:
    """What tells which node it is about, which pods leave, whether it has begun, and is over; pending pods are many."""
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
    """Deletion was requested."""
    return bool(maintenance["metadata"].get("deletionTimestamp"))


def finalizers(maintenance: Maintenance) -> list[str]:
    """All finalizers of the object."""
    return list(maintenance["metadata"].get("finalizers") or [])


def has_finalizer(maintenance: Maintenance) -> bool:
    """One of our finalizers is on the object: it stays until its node is restored."""
    return bool(set(OURS) & set(finalizers(maintenance)))


def is_over(maintenance: Maintenance) -> bool:
    """Deleted and released: if it is still there, then for somebody else's finalizer, and its node is none of its."""
    return is_deleting(maintenance) and not has_finalizer(maintenance)


def standing(maintenances: Iterable[Item]) -> list[Item]:
    """All but those that are over."""
    return [item for item in maintenances if not is_over(item)]


def has_begun(maintenance: Maintenance) -> bool:
    """Finalizer and snapshot are in place: the node is ours to change, and ours to give back."""
    return FINALIZER in finalizers(maintenance) and snapshot(maintenance) is not None


def phase(maintenance: Maintenance) -> str:
    """`status.phase`, "" before the first status."""
    return str(status_of(maintenance).get("phase") or "")


def last_error(maintenance: Maintenance) -> str:
    """`status.lastError`, "" for none."""
    return str(status_of(maintenance).get("lastError") or "")


def lease_errors(maintenance: Maintenance) -> int:
    """How many renewals of the node's lease have failed since the last one that did not (NMO-27a)."""
    count = status_of(maintenance).get("errorOnLeaseCount")
    return count if isinstance(count, int) else 0


def has_given_up(maintenance: Maintenance) -> bool:
    """Another tool has the lease, and so the node: nothing more is done for this one but to give the node back."""
    return lease_errors(maintenance) > MOST_LEASE_ERRORS


def has_node(maintenance: Maintenance) -> bool:
    """It has begun, and its node is no other tool's: it has the node until it is deleted and gives it back."""
    return has_begun(maintenance) and not has_given_up(maintenance)


def claims_node(maintenance: Maintenance) -> bool:
    """It has its node, waits for it, or is about to give it back: somebody answers for the node."""
    return not (is_over(maintenance) or has_given_up(maintenance))


def is_changed(maintenance: Maintenance) -> bool:
    """Whether the spec was written since the status spoke of it: what was refused then may be granted now (DRN-1a)."""
    seen, now = condition(maintenance, "Drained").get("observedGeneration"), maintenance["metadata"].get("generation")
    return isinstance(seen, int) and isinstance(now, int) and seen < now


def requester(maintenance: Maintenance) -> str:
    """Who asked for it: the user who is named on it, else the program that wrote its spec; "" when neither is known."""
    metadata = maintenance["metadata"]
    user = (metadata.get("annotations") or {}).get(REQUESTER)
    programs = [item.get("manager") for item in metadata.get("managedFields") or [] if "f:spec" in item["fieldsV1"]]
    return str(user or next((f"the program {name}" for name in programs if name), ""))


def snapshot(maintenance: Maintenance) -> Object | None:
    """`{totalpods, evictionPods}` as counted when the maintenance began; None before."""
    metadata = maintenance["metadata"]
    try:
        noted = json.loads((metadata.get("annotations") or {}).get(SNAPSHOT, "null"))
    except (ValueError, RecursionError):  # anybody may write it
        return None
    return _counts(noted) if isinstance(noted, dict) and noted.get("uid") == metadata.get("uid", "") else None


def counted(maintenance: Maintenance) -> Object | None:
    """The counts of when it began, as the status or the snapshot has them; None of one that has not begun.

    Whoever replaces the object by a file of his own loses the snapshot, but not the status.
    """
    return _counts(status_of(maintenance)) or (snapshot(maintenance) if has_begun(maintenance) else None)


def _counts(known: Mapping[str, Any]) -> Object | None:
    """Those of an annotation or a status, which anybody may write; None where one of them could be in no status."""
    found = {name: known.get(name) for name in ("totalpods", "evictionPods")}
    return found if all(map(is_count, found.values())) else None


def is_count(value: object) -> bool:
    """Whether it can be how many pods there are."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_PODS


def begin_patch(maintenance: Maintenance, node: Node, counts: Mapping[str, int]) -> Object:
    """Merge patch that begins: finalizer, owner reference (NMO-20) and snapshot, if nobody wrote meanwhile.

    Empty where all of it is there.
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
    """Merge patch that sets our finalizer: deleted from then on, it waits for us; refused when it is being deleted."""
    return {"metadata": _with_finalizer(maintenance)}


def _with_finalizer(maintenance: Maintenance) -> Object:
    version = maintenance["metadata"]["resourceVersion"]
    kept = [name for name in finalizers(maintenance) if name != FINALIZER]
    return {"resourceVersion": version, "finalizers": [*kept, FINALIZER]}


def is_owned(maintenance: Maintenance) -> bool:
    """An owner reference says on which node it began."""
    return any(owner.get("kind") == "Node" for owner in maintenance["metadata"].get("ownerReferences") or [])


def began_on(maintenance: Maintenance, node: Node) -> bool:
    """Whether this is the node that the maintenance began on, and none made anew under its name (NMO-20, rule 1).

    The owner reference has the uid; where somebody took that off, the name must do.
    """
    owners = maintenance["metadata"].get("ownerReferences") or []
    uids = {owner.get("uid") for owner in owners if owner.get("kind") == "Node"}
    return not uids or node["metadata"]["uid"] in uids


def release_patch(maintenance: Maintenance) -> Object:
    """Merge patch that takes our finalizer off, and the old operator's."""
    kept = [name for name in finalizers(maintenance) if name not in OURS]
    return {"metadata": {"resourceVersion": maintenance["metadata"]["resourceVersion"], "finalizers": kept}}


def condition(maintenance: Maintenance, kind: str) -> Object:
    """The condition of that type, {} when there is none."""
    conditions = status_of(maintenance).get("conditions") or []
    return next((dict(item) for item in conditions if item.get("type") == kind), {})


def is_cordoned(maintenance: Maintenance) -> bool:
    """Its status says that the node takes no new pods."""
    return bool(condition(maintenance, "Cordoned").get("status") == "True")


def is_told_open(maintenance: Maintenance) -> bool:
    """Its status says that the node is open, or not tainted.

    A status may have no conditions: of an older release, or under another operator's CRD, which keeps none.
    """
    return bool(condition(maintenance, "Cordoned").get("status") == "False")


def is_told_drained(maintenance: Maintenance) -> bool:
    """Its status says that the node is drained, and not that it is open: another look has nothing to add."""
    return phase(maintenance) == SUCCEEDED and not is_told_open(maintenance)


def blocked_pods(maintenance: Maintenance) -> list[Mapping[str, Any]]:
    """The blocked pods of the status, those that are named and have a reason: another program may have written it."""
    known = status_of(maintenance).get("blockedPods")
    items = [item for item in known if isinstance(item, dict)] if isinstance(known, list) else []
    return [item for item in items if all(isinstance(item.get(name), str) for name in ("namespace", "name", "reason"))]
