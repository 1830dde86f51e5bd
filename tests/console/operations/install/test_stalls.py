"""Tests for the rule that decides which maintenances are stalled."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from console.operations.install.stalls import STALLED_SECONDS, select_stalled
from kube.maintenance.objects import FINALIZER
from kube.paths import Object
from kube.times import format_time

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
LONG_AGO, RECENTLY = (format_time(NOW - timedelta(seconds=STALLED_SECONDS + offset)) for offset in (0, -1))
DELETED_LONG_AGO: Object = {"deletionTimestamp": LONG_AGO, "finalizers": [FINALIZER]}
DRAINED = {"phase": "Succeeded", "lastUpdate": LONG_AGO}


def build_maintenance(status: Object | None, created: str = LONG_AGO, **metadata: object) -> Object:
    """Build a NodeMaintenance with this status."""
    return {"metadata": {"name": "node-1", "creationTimestamp": created, **metadata}} | (
        {} if status is None else {"status": status}
    )


@pytest.mark.parametrize(
    "maintenance",
    [
        build_maintenance(None),
        build_maintenance({"lastError": "the Lease is held by another tool", "lastUpdate": LONG_AGO}),
        build_maintenance({"phase": "Running", "lastUpdate": LONG_AGO}),
        build_maintenance({"phase": "Running", "lastUpdate": "yesterday"}),
        build_maintenance({**DRAINED, "conditions": [{"type": "Cordoned", "status": "False"}]}),
        build_maintenance(DRAINED, **DELETED_LONG_AGO),
    ],
    ids=["no-status", "no-phase", "running", "invalid-time", "uncordoned", "deleting"],
)
def test_maintenance_without_change_of_status_is_stalled(maintenance: Object) -> None:
    assert select_stalled([maintenance], NOW) == [maintenance]


@pytest.mark.parametrize(
    "maintenance",
    [
        build_maintenance(None, created=RECENTLY),
        build_maintenance({"phase": "Running", "lastUpdate": RECENTLY}),
        build_maintenance(DRAINED),
        build_maintenance({"phase": "Failed", "lastUpdate": LONG_AGO}),
        build_maintenance(None, **{**DELETED_LONG_AGO, "deletionTimestamp": RECENTLY}),
        build_maintenance(None, **{**DELETED_LONG_AGO, "finalizers": ["backup.example/keep"]}),
    ],
    ids=["new", "running", "drained", "failed", "deleted-recently", "released"],
)
def test_maintenance_that_changed_or_has_ended_is_not_stalled(maintenance: Object) -> None:
    assert select_stalled([maintenance], NOW) == []
