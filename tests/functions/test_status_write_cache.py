"""Tests for the cache of status writes: a snapshot stays current after writes of this process only."""

from __future__ import annotations

import pytest

from functions import status_write_cache
from functions.status_write_cache import StatusWrite, StatusWriteCache


@pytest.fixture
def cache() -> StatusWriteCache:
    """Return the cache of a process that wrote one status, which describes the pods at version 50."""
    writes = StatusWriteCache()
    writes.record("uid-1", StatusWrite("100", "104", "50"))
    return writes


@pytest.mark.parametrize(
    ("uid", "snapshot_version", "current_version", "pods_version", "is_current"),
    [
        ("uid-1", "104", "104", "", True),
        ("uid-1", "100", "104", "51", True),
        ("uid-1", "100", "104", "50", True),
        ("uid-1", "100", "104", "49", False),  # The snapshot's pods are older than the pods in the status.
        ("uid-1", "100", "104", "", False),
        ("uid-1", "99", "104", "51", False),  # Another process wrote before this process.
        ("uid-1", "100", "105", "51", False),  # Another process wrote after this process.
        ("uid-2", "100", "104", "51", False),
    ],
)
def test_snapshot_stays_current_only_after_write_of_this_process(
    cache: StatusWriteCache, uid: str, snapshot_version: str, current_version: str, pods_version: str, is_current: bool
) -> None:
    """X-2, design rule 1: another process's write, or a status with newer pods, makes a snapshot outdated."""
    assert cache.is_current(uid, snapshot_version, current_version, pods_version) is is_current


def test_write_without_pod_version_makes_snapshots_outdated(cache: StatusWriteCache) -> None:
    """X-2: a status write without a pod version makes earlier snapshots outdated."""
    cache.record("uid-1", StatusWrite("100", "104", ""))

    assert not cache.is_current("uid-1", "100", "104", "51")


@pytest.fixture
def single_entry_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the cache to one write."""
    monkeypatch.setattr(status_write_cache, "MAX_CACHED_WRITES", 1)


@pytest.mark.usefixtures("single_entry_cache")
def test_cache_keeps_latest_writes(cache: StatusWriteCache) -> None:
    """Check that the cache has a size limit: it keeps the latest writes and evicts older writes."""
    cache.record("uid-2", StatusWrite("100", "104", "50"))

    assert not cache.is_current("uid-1", "100", "104", "51")
    assert cache.is_current("uid-2", "100", "104", "51")
