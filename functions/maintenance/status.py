"""Write the status: the only writer of it, and only when something but the time changes (NMO-10 to NMO-13, KNM-2, 3).

In: `maintenance.begun`, `pods.evicted`, `pods.gone` flagged `progress`, `node.drained`, `maintenance.failed`.
Out: nothing.
Touches: nodemaintenances get; nodemaintenances/status patch; nodes get; pods list;
leases get in medik8s-leases; events list, create, patch in default.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from eventing.signatures import require_ours
from functions.data import data_of, version_of
from functions.failures import Retry
from functions.installs import acts
from functions.maintenance import fleet
from functions.maintenance.announcing import announce_on_node, announce_progress
from functions.maintenance.reported_pods import blocked_of
from functions.maintenance.subject import log_about, read_maintenance, reference_of
from functions.shared_writes import Gathering
from kube.door.api import absent_ok
from kube.door.api_errors import Conflict, NotFound
from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.announcements import BEGIN, CORDON, FAIL, SUCCEED, TEXTS
from kube.maintenance.lookup import pods_on_node
from kube.maintenance.progress import Findings, status_patch
from kube.nodes import node_path
from kube.paths import Object
from kube.resource_versions import newest

CONSUMES = events.FLAGS["progress"]
EMITS = ()
ATTEMPTS = 5
"""Another process may write at the same time; after this many the broker's backoff is the better wait."""


class Told(NamedTuple):
    """An event, what it adds to what the cluster shows, and the version of the pods that it speaks of, "" for any."""

    event: BaseCloudEvent
    findings: Findings
    version: str


GATHERING = Gathering[Told]()


def status(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Bring `.status` to what the cluster shows and the event adds.

    Events that come while the same status is being written are written together (`shared_writes`). Not so replays.
    What an event adds, nobody can look up: one that is not ours adds nothing, and writes nothing. Raises `Forged` then,
    and `Retry` when others keep writing. A dry replay writes nothing anyway, and may be of another installation's.
    """
    if not marks.is_dry_run(event):
        require_ours(event)
    if not acts(cluster):
        return []
    told = Told(event, findings_of(event), version_of(event, "podsVersion"))
    if marks.is_replay(event):
        _write([told], cluster)
    else:
        GATHERING.write(reference_of(event).uid, told, lambda gathered: _write(gathered, cluster))
    return []


def _write(gathered: Sequence[Told], cluster: Cluster) -> None:
    """Write what these events about one maintenance add, in their order."""
    event, findings = gathered[0].event, [told.findings for told in gathered]
    version = newest(told.version for told in gathered) or "0"
    for _ in range(ATTEMPTS):
        maintenance = read_maintenance(event, cluster)
        patch = maintenance and _patch(maintenance, findings, version, cluster)
        if maintenance is None or not patch:
            return
        try:
            cluster.patch(f"{m.path(maintenance)}/status", patch)
        except Conflict:
            continue
        except NotFound:
            return
        if not marks.is_replay(event):
            fleet.written(maintenance, patch["status"], datetime.now(timezone.utc))
        _announce(maintenance, patch["status"], cluster)
        return
    raise Retry("others keep writing the status")


def findings_of(event: BaseCloudEvent) -> Findings:
    """What the event adds to what the cluster shows."""
    data = data_of(event)
    drained = event.get_type() == events.NODE_DRAINED
    error, blocked = str(data.get("error") or ""), blocked_of(event)
    restoring = event.get_type() == events.MAINTENANCE_FAILED and data.get("step") == "restore"
    return Findings(
        error,
        [] if drained else blocked,
        drained=drained,
        restoring=restoring,
        waits=bool(data.get("waits")),
        lease_errors=_lease_errors(event),
    )


def _lease_errors(event: BaseCloudEvent) -> int | None:
    """Renewals of the lease that failed in a row, 0 after one that did not; None when the event does not tell."""
    count = 0 if event.get_type() == events.MAINTENANCE_BEGUN else data_of(event).get("leaseErrors")
    return count if isinstance(count, int) else None


def _patch(maintenance: m.Maintenance, findings: Sequence[Findings], version: str, cluster: Cluster) -> Object | None:
    """The status patch. What would take a success back is looked at twice: a cached list may still show gone pods."""
    name, now = m.node_name(maintenance), datetime.now(timezone.utc)
    node, pods = cluster.together(absent_ok(cluster.api.get(node_path(name))), pods_on_node(cluster.api, name, version))
    patch = status_patch(maintenance, node, pods.items, findings, now)
    if patch and m.phase(maintenance) == m.SUCCEEDED and patch["status"].get("phase") == m.RUNNING:
        patch = status_patch(maintenance, node, cluster.run(pods_on_node(cluster.api, name)).items, findings, now)
    return patch


def _announce(maintenance: m.Maintenance, written: Object, cluster: Cluster) -> None:
    """Log and announce what has changed; the write was ours, so it is announced once, and no eviction waits for it."""
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
    elif m.phase(maintenance) != m.SUCCEEDED:  # else it runs again, for a pod that came late
        announce_progress(BEGIN, maintenance, cluster, (maintenance.get("spec") or {}).get("reason") or "")


def _now_cordoned(maintenance: m.Maintenance, written: Object) -> bool:
    """Whether this status is the first to show that the node is cordoned (OSV-12)."""
    before, after = (m.condition(item, "Cordoned").get("status") for item in (maintenance, {"status": written}))
    return after == "True" != before
