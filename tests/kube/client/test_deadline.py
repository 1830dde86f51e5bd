"""Tests for the deadlines of API requests to a server that never responds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from kube.client.api_errors import Unavailable
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient
from kube.evictions.executor import execute_eviction_plan
from kube.evictions.planner import plan_evictions
from tests.kube.samples import make_pod


@pytest.fixture
def unresponsive_client(tmp_path: Path) -> Iterator[SyncClient]:
    """Yield an API client for a server that accepts connections and never responds."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        cluster = {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}
        kubeconfig = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}]}
        contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump({**kubeconfig, "contexts": contexts, "current-context": "x"}))
        client = SyncClient(str(file))
        yield client
        client.close()


def test_api_requests_in_block_share_one_deadline(unresponsive_client: SyncClient) -> None:
    """Design rule 3: two sequential pairs of concurrent requests all end at the deadline of their `with` block."""
    start_time = time.monotonic()

    with set_deadline(0.3):
        for _ in range(2):
            with pytest.raises(Unavailable, match="no response from the API server"):
                unresponsive_client.gather_all(
                    unresponsive_client.api.get("/version"), unresponsive_client.api.get("/version")
                )

    assert 0.3 <= time.monotonic() - start_time < 2


def test_eviction_without_response_stays_in_flight_for_next_batch(unresponsive_client: SyncClient) -> None:
    """NMO-6, X-6: an eviction without a response stays in flight, and the next batch waits for it.

    A batch that starts after the deadline raises `Unavailable` and sends no eviction.
    """
    pod = make_pod("a")

    for _ in range(2):
        with set_deadline(0.2):
            result = unresponsive_client.run(execute_eviction_plan(unresponsive_client.api, plan_evictions([pod], [])))
        assert (result.evicted, result.blocked, result.deferred) == ([], [], [])
        assert [pod["name"] for pod in result.in_flight] == ["a"]

    with set_deadline(0.09), pytest.raises(Unavailable, match="no time left for evictions"):
        unresponsive_client.run(execute_eviction_plan(unresponsive_client.api, plan_evictions([make_pod("b")], [])))


def test_no_api_request_is_sent_after_deadline(unresponsive_client: SyncClient) -> None:
    """Design rule 3: a request after the deadline fails immediately; the HTTP client would treat zero as no timeout."""
    with set_deadline(0.0), pytest.raises(Unavailable, match="no response from the API server in time"):
        unresponsive_client.run(asyncio.wait_for(unresponsive_client.api.get("/version"), 2))
