"""Writes Kubernetes Events about runs. A run is worth more than its announcement: an API error is only logged."""

from __future__ import annotations

from functions.announcing import refusal
from functions.mutex.subject import log_about, now
from kube import announcements
from kube.door.sync_client import Cluster
from kube.paths import Object


def announce(run: Object, reason: str, message: str, cluster: Cluster) -> None:
    """Announce a warning at a run config. Its name is made of what it says: announced again it is the same one."""
    metadata = run["metadata"]
    involved = {"apiVersion": run["apiVersion"], "kind": run["kind"]}
    involved |= {name: metadata[name] for name in ("name", "namespace", "uid")}
    name = announcements.event_name(metadata["name"], metadata["uid"], reason, message)
    space, kind = metadata["namespace"], announcements.WARNING
    event = announcements.event(name, space, involved, kind, reason, message, now())
    if error := cluster.run(refusal(cluster.api, event)):
        log_about(f"the Event {reason} could not be written: {error.message}", run)
