"""Tells by metric and log what came of the evictions of a look (NMO-17, NMO-17a)."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import marks
from functions.maintenance.fleet import EVICTIONS
from functions.maintenance.subject import log_about
from kube.evictions import Batch
from kube.maintenance.blocked_pods import summary
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import Maintenance, group
from kube.words import counted


def tell(maintenance: Maintenance, batch: Batch, event: BaseCloudEvent) -> None:
    """Tell what came of a batch: by the metric, but for a replay, and by the log."""
    if not marks.is_replay(event):
        _count(batch)
    _log(maintenance, batch)


def _count(batch: Batch) -> None:
    EVICTIONS.labels("evicted").inc(len(batch.evicted))
    EVICTIONS.labels("gone").inc(len(batch.gone))
    EVICTIONS.labels("blocked").inc(len(batch.blocked))


def _log(maintenance: Maintenance, batch: Batch) -> None:
    if batch.evicted:
        log_about("Evict all Pods from Node", maintenance)
    for pod in batch.evicted:
        whole = f"{pod['namespace']}/{pod['name']}"
        shown = whole if group(maintenance) is MEDIK8S else f'"{pod["name"]}"'  # as each group's document has it
        log_about(f"evicting pod {shown}", maintenance, pod=whole)
    if batch.blocked:
        log_about(f"{counted(len(batch.blocked), 'pod')} blocked", maintenance, error=summary(batch.blocked))
