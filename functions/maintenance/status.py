"""Write the status, as its only writer, and only if more than the time changes (NMO-10 to NMO-13, KNM-2, 3).

In: `maintenance.begun`, `pods.evicted`, `pods.gone` flagged `progress`, `node.drained`, `maintenance.failed`.
Out: nothing.
Touches: nodemaintenances get; nodemaintenances/status patch; nodes get; pods list;
leases get in medik8s-leases; events list, create, patch in default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from functions.event_data import data_of, version_of
from functions.failures import Retry
from functions.installs import acts
from functions.maintenance import metrics
from functions.maintenance.kubernetes_events import announce_on_node, announce_progress
from functions.maintenance.reported_pods import blocked_of, looked_of
from functions.maintenance.event_objects import log_about, read_maintenance, reference_of
from functions.status_write_cache import OwnWrites, Write
from functions.write_batcher import Gathering
from kube.client.api import absent_ok
from kube.client.api_errors import Conflict, NotFound
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.kubernetes_events import BEGIN, CORDON, FAIL, SUCCEED, TEXTS
from kube.maintenance.lookup import pods_on_node
from kube.maintenance.status_patch import Findings, status_patch
from kube.maintenance.node_snapshot import Looked, Shown
from kube.nodes import node_path
from kube.paths import Object
from kube.resource_versions import newest

CONSUMES = events.FLAGS["progress"]
EMITS = ()
ATTEMPTS = 5
"""Maximum number of attempts per write.

Another process may write at the same time. After these attempts, the step leaves the retry to the broker.
"""


class Told(NamedTuple):
    """An event, what it adds to the state in the cluster, and the resourceVersion of its pods ("" if it has none).

    `looked` is the snapshot that the event's step took, None if the event has none.
    """

    event: BaseCloudEvent
    findings: Findings
    version: str
    looked: Looked | None


GATHERING = Gathering[Told]()
OWN_WRITES = OwnWrites()


def status(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Update `.status` from the cluster and from the event's data.

    Events that arrive while the same status is being written share the next write (`shared_writes`); replays do not.
    The event's data cannot be verified in the cluster, so the server rejects unsigned events before this step. Raises
    `Retry` if other clients keep changing the status.
    """
    if not acts(cluster):
        return []
    told = Told(event, findings_of(event), version_of(event, "podsVersion"), looked_of(event))
    if replay_extensions.is_replay(event):
        _write([told], cluster)
    else:
        GATHERING.write(reference_of(event).uid, told, lambda gathered: _write(gathered, cluster))
    return []


def _write(gathered: Sequence[Told], cluster: Cluster) -> None:
    """Write the status of one maintenance from these events, in their order."""
    event = gathered[0].event
    for _ in range(ATTEMPTS):
        maintenance = read_maintenance(event, cluster)
        if maintenance is None:
            return
        patch, pods = _patch(maintenance, gathered, cluster)
        if not patch:
            return
        try:
            written = cluster.patch(f"{m.path(maintenance)}/status", patch)
        except Conflict:
            continue
        except NotFound:
            return
        if not replay_extensions.is_replay(event):
            metrics.written(maintenance, patch["status"], datetime.now(timezone.utc))
            OWN_WRITES.add(reference_of(event).uid, _as_write(maintenance, written, pods))
        _announce(maintenance, patch["status"], cluster)
        return
    raise Retry("others keep writing the status")


def _as_write(before: m.Maintenance, after: m.Maintenance, pods: str) -> Write:
    read, written = (item["metadata"]["resourceVersion"] for item in (before, after))
    return Write(read, written, pods)


def findings_of(event: BaseCloudEvent) -> Findings:
    """Return what the event adds to the state in the cluster."""
    data = data_of(event)
    drained = event.get_type() == events.NODE_DRAINED
    error, blocked = str(data.get("error") or ""), blocked_of(event)
    step = data.get("step") if event.get_type() == events.MAINTENANCE_FAILED else ""
    return Findings(
        error,
        [] if drained else blocked,
        drained=drained,
        restoring=step == "restore",
        renewing=step == "begin",
        beginning=step == "begin" and not ("begun" in data or "leaseErrors" in data),
        waits=bool(data.get("waits")),
        lease_errors=_lease_errors(event),
    )


def _lease_errors(event: BaseCloudEvent) -> int | None:
    """Return how many lease renewals failed in a row, 0 after a success; None if the event does not report it."""
    count = 0 if event.get_type() == events.MAINTENANCE_BEGUN else data_of(event).get("leaseErrors")
    return count if isinstance(count, int) else None


def _patch(maintenance: m.Maintenance, gathered: Sequence[Told], cluster: Cluster) -> tuple[Object | None, str]:
    """Return the status patch and the resourceVersion of its pods, "" if its node state may be newer.

    Before a patch revokes a success, the pods are read again, since a cached list may still show deleted pods.
    """
    findings, now = [told.findings for told in gathered], datetime.now(timezone.utc)
    shown, pods = _shown(maintenance, gathered, cluster)
    patch = status_patch(maintenance, shown, findings, now)
    if patch and m.phase(maintenance) == m.SUCCEEDED and patch["status"].get("phase") == m.RUNNING:
        fresh = cluster.run(pods_on_node(cluster.api, m.node_name(maintenance))).items
        return status_patch(maintenance, replace(shown, pods=fresh), findings, now), ""
    return patch, pods


def _shown(maintenance: m.Maintenance, gathered: Sequence[Told], cluster: Cluster) -> tuple[Shown, str]:
    """Return the node and its pods with the pods' resourceVersion, "" if the node state may be newer.

    The function uses the snapshot of the event's step if that is still valid, and reads the rest. If all events are
    `pods.gone` and the status shows a cordoned node, the node is not read, since `guard` watches it. A snapshot without
    remaining pods is verified by listing the pods.
    """
    looked = _still_true(maintenance, gathered)
    if looked and looked.left:
        return Shown(looked.is_closed, left=looked.left), gathered[0].version
    name, version = m.node_name(maintenance), newest(told.version for told in gathered) or "0"
    pods = pods_on_node(cluster.api, name, version)
    if looked.is_closed if looked else _only_gone(gathered) and m.is_cordoned(maintenance):
        listed = cluster.run(pods)
        return Shown(is_closed=True, pods=listed.items), listed.version
    node, found = cluster.together(absent_ok(cluster.api.get(node_path(name))), pods)
    return Shown.of(maintenance, node, found.items), ""


def _still_true(maintenance: m.Maintenance, gathered: Sequence[Told]) -> Looked | None:
    """Return the snapshot of a single event's step if the maintenance has not changed since, else None.

    A status write of this process does not invalidate a snapshot whose pods are at least as new. The function also
    returns None for a maintenance that succeeded, since only a new read may revoke that, and for a replay.
    """
    looked = gathered[0].looked if len(gathered) == 1 else None
    if looked is None or m.phase(maintenance) == m.SUCCEEDED or replay_extensions.is_replay(gathered[0].event):
        return None
    read, uid = maintenance["metadata"]["resourceVersion"], maintenance["metadata"]["uid"]
    return looked if OWN_WRITES.lie_between(uid, looked.version, read, gathered[0].version) else None


def _only_gone(gathered: Sequence[Told]) -> bool:
    return all(told.event.get_type() == events.PODS_GONE for told in gathered)


def _announce(maintenance: m.Maintenance, written: Object, cluster: Cluster) -> None:
    """Log what has changed and record Kubernetes Events for it.

    Each change is recorded once, by the process that wrote it, and after the write, so that no eviction waits for it.
    """
    if _now_cordoned(maintenance, written):
        announce_on_node(m.node_name(maintenance), CORDON, TEXTS[CORDON], maintenance, cluster, kind="Normal")
    phase, error = written.get("phase"), written.get("lastError") or ""
    if not phase:
        return
    log_about(f"phase is {phase} now", maintenance, phase=phase, error=error)
    if phase == m.SUCCEEDED:
        announce_progress(SUCCEED, maintenance, cluster)
    elif phase == m.FAILED:
        announce_progress(FAIL, maintenance, cluster, error)
    elif m.phase(maintenance) != m.SUCCEEDED:  # otherwise it runs again, because of a pod that came late
        announce_progress(BEGIN, maintenance, cluster, m.spec_of(maintenance).get("reason") or "")


def _now_cordoned(maintenance: m.Maintenance, written: Object) -> bool:
    """Return whether this status is the first one to report that the node is cordoned (OSV-12)."""
    before, after = (m.condition(item, "Cordoned").get("status") for item in (maintenance, {"status": written}))
    return after == "True" != before
