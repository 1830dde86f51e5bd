"""Tests for the cached checks that determine which optional pages the navigation contains."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing

import pytest

from console.web import context
from console.web.context import AVAILABILITY_WAIT_SECONDS, Availability
from kube.client.api import Api
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready


def test_unanswered_checks_delay_page_only_once(installed_cluster: LocalCluster) -> None:
    """Check that a page waits only once for all checks together, even if none of them gets a response."""

    async def never_end(_api: Api) -> bool:
        await asyncio.Event().wait()
        return True

    async def end(_api: Api) -> bool:
        return False

    names = [str(number) for number in range(20)]
    checks = {**dict.fromkeys(names, never_end), "absent": end}
    with closing(SyncClient(str(installed_cluster.kubeconfig))) as client:
        availability, started_at = Availability(client, checks), time.monotonic()
        results = [availability.is_available(name) for name in checks]
        duration = time.monotonic() - started_at

    assert duration < 10 * AVAILABILITY_WAIT_SECONDS
    assert results == [True] * len(names) + [False]


def test_late_result_of_check_is_shown_on_later_page(
    installed_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a check continues after the page has stopped waiting for it, and that it is not started twice."""
    monkeypatch.setattr(context, "AVAILABILITY_TTL_SECONDS", 0.0)
    monkeypatch.setattr(context, "AVAILABILITY_WAIT_SECONDS", 0.05)
    is_released, calls = threading.Event(), list[str]()

    async def end_when_released(_api: Api) -> bool:
        calls.append("call")
        while not is_released.is_set():
            await asyncio.sleep(0.01)
        return False

    availability = Availability(installed_cluster.get_client(), {"runs": end_when_released})

    assert [availability.is_available("runs") for _ in range(3)] == [True] * 3
    assert calls == ["call"]
    is_released.set()
    wait_until_ready("the result", lambda: not availability.is_available("runs"), [], 10)
