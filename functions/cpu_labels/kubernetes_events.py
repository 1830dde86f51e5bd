"""Records a Kubernetes Event for each problem that an administrator must fix; a failed write is only logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timezone
from weakref import WeakKeyDictionary

from functions.kubernetes_events import refusal
from kube import kubernetes_events
from kube.cpu.problems import Problem
from kube.client.api import Api
from kube.client.sync_client import Cluster
from kube.paths import Object

AT_ONCE = 20
"""Maximum number of Events that one pass writes; later passes write the rest."""
SAID_SECONDS = 600.0
"""Minimum time between two identical Events of this process; the API server keeps an Event for longer."""
log = logging.getLogger("functions")


class Told:
    """The problems that this process recorded recently, per API client."""

    def __init__(self) -> None:
        self._told: MutableMapping[Cluster, dict[str, float]] = WeakKeyDictionary()

    def is_news(self, what: str, cluster: Cluster) -> bool:
        """Return whether `what` was not recorded recently, and mark it as recorded."""
        now = time.monotonic()
        lately = {old: moment for old, moment in self._told.get(cluster, {}).items() if now - moment < SAID_SECONDS}
        self._told[cluster] = {what: now, **lately}
        return what not in lately

    def forget(self) -> None:
        """Forget all recorded problems."""
        self._told.clear()


TOLD = Told()


def announce(problems: Iterable[Problem], cluster: Cluster) -> None:
    """Record a Warning on the object of each problem, unless this process did so recently."""
    now = datetime.now(timezone.utc)
    written = (_event(problem, now) for problem in problems)
    news: list[Object] = []
    for event in written:
        if len(news) < AT_ONCE and TOLD.is_news(event["metadata"]["name"], cluster):
            log.warning("%s: %s", event["reason"], event["message"], extra={"fields": _named(event)})
            news.append(event)
    cluster.together(*(_create(cluster.api, event) for event in news))


def _event(problem: Problem, now: datetime) -> Object:
    """Build the Event of a problem; the same message about the same object gives the same name."""
    about = problem.about
    name = kubernetes_events.event_name(about["name"], about["uid"], problem.reason, problem.message)
    space = about.get("namespace") or "default"  # `kubectl describe node` searches this namespace
    # and it matches the node's name in place of the uid, as kubelets write it
    involved = {**about, "uid": about["name"]} if about["kind"] == "Node" else about
    return kubernetes_events.event(name, space, involved, kubernetes_events.WARNING, problem.reason, problem.message, now)


async def _create(api: Api, event: Object) -> None:
    """Create the Event; an existing one with the same name counts as created."""
    if error := await refusal(api, event):
        message = f"the Event {event['reason']} could not be written: {error.message}"
        log.warning(message, extra={"fields": _named(event)})


def _named(event: Object) -> dict[str, str]:
    involved = event["involvedObject"]
    return {"reconciler kind": involved["kind"], "name": involved["name"], "namespace": involved.get("namespace", "")}
