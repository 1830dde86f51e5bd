"""Tells by Kubernetes Events what somebody has to mend, each once in a while. What fails at it is only logged."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, MutableMapping
from datetime import datetime, timezone
from weakref import WeakKeyDictionary

from functions.announcing import refusal
from kube import announcements
from kube.cpu.problems import Problem
from kube.door.api import Api
from kube.door.sync_client import Cluster
from kube.paths import Object

AT_ONCE = 20
"""Events that one look writes; of hundreds the rest comes with the next looks."""
SAID_SECONDS = 600.0
"""Between two times that this process tells the same. The API server keeps an Event for longer."""
log = logging.getLogger("functions")


class Told:
    """What this process has told of late, by the door that it went through."""

    def __init__(self) -> None:
        self._told: MutableMapping[Cluster, dict[str, float]] = WeakKeyDictionary()

    def is_news(self, what: str, cluster: Cluster) -> bool:
        """Whether it was not told of late; it is taken for told from now on."""
        now = time.monotonic()
        lately = {old: moment for old, moment in self._told.get(cluster, {}).items() if now - moment < SAID_SECONDS}
        self._told[cluster] = {what: now, **lately}
        return what not in lately

    def forget(self) -> None:
        """Take everything for news again."""
        self._told.clear()


TOLD = Told()


def announce(problems: Iterable[Problem], cluster: Cluster) -> None:
    """Announce a Warning for each problem, at its object, unless that was done of late."""
    now = datetime.now(timezone.utc)
    written = (_event(problem, now) for problem in problems)
    news: list[Object] = []
    for event in written:
        if len(news) < AT_ONCE and TOLD.is_news(event["metadata"]["name"], cluster):
            log.warning("%s: %s", event["reason"], event["message"], extra={"fields": _named(event)})
            news.append(event)
    cluster.together(*(_create(cluster.api, event) for event in news))


def _event(problem: Problem, now: datetime) -> Object:
    """The Event of a problem: the same name for the same words about the same object."""
    about = problem.about
    name = announcements.event_name(about["name"], about["uid"], problem.reason, problem.message)
    space = about.get("namespace") or "default"  # where `kubectl describe` looks for those of a node
    # and it looks them up by name in place of the uid, as kubelets write them
    involved = {**about, "uid": about["name"]} if about["kind"] == "Node" else about
    return announcements.event(name, space, involved, announcements.WARNING, problem.reason, problem.message, now)


async def _create(api: Api, event: Object) -> None:
    """Write one; it may be there already."""
    if error := await refusal(api, event):
        message = f"the Event {event['reason']} could not be written: {error.message}"
        log.warning(message, extra={"fields": _named(event)})


def _named(event: Object) -> dict[str, str]:
    involved = event["involvedObject"]
    return {"reconciler kind": involved["kind"], "name": involved["name"], "namespace": involved.get("namespace", "")}
