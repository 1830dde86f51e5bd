"""Tests of deadlines against a server that never responds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from kube.budgets import plan
from kube.client.api_errors import Unavailable
from kube.client.deadline import within
from kube.client.eviction_batch import evict_batch
from kube.client.sync_client import Cluster
from tests.kube.samples import pod


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Cluster]:
    """Yield an API client for a server that accepts connections and never responds."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        where = {"server": f"http://127.0.0.1:{server.getsockname()[1]}"}
        known = {"clusters": [{"name": "c", "cluster": where}], "users": [{"name": "u", "user": {}}]}
        contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump({**known, "contexts": contexts, "current-context": "x"}))
        door = Cluster(str(file))
        yield door
        door.close()


def test_all_requests_of_a_block_share_its_time(silent: Cluster) -> None:
    """Design rule 3: two sequential pairs of concurrent requests all end at the deadline of their block."""
    began = time.monotonic()

    with within(0.3):
        for _ in range(2):
            with pytest.raises(Unavailable, match="no answer from the API server"):
                silent.together(silent.api.get("/version"), silent.api.get("/version"))

    assert 0.3 <= time.monotonic() - began < 2


def test_an_eviction_without_an_answer_goes_on_and_the_next_batch_waits_for_the_same(silent: Cluster) -> None:
    """NMO-6, X-6: an unanswered eviction stays in flight, and the next batch waits for it instead of sending another.

    A batch without any time left raises `Unavailable` and sends no eviction.
    """
    waiting = pod("a")

    for _ in range(2):
        with within(0.2):
            done = silent.run(evict_batch(silent.api, plan([waiting], [])))
        assert (done.evicted, done.blocked, done.unsent) == ([], [], [])
        assert [item["name"] for item in done.under_way] == ["a"]

    with within(0.05), pytest.raises(Unavailable, match="no time was left for evictions"):
        silent.run(evict_batch(silent.api, plan([pod("b")], [])))


def test_no_request_is_sent_when_the_time_is_up(silent: Cluster) -> None:
    """Design rule 3: a request after the deadline fails at once; the HTTP client would treat zero as no timeout."""
    with within(0.0), pytest.raises(Unavailable, match="no answer from the API server in time"):
        silent.run(asyncio.wait_for(silent.api.get("/version"), 2))
