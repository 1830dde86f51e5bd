"""Tests that a cancelled request leaves no open socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.api import Api
from kube.nodes import NODES_PATH
from localcluster.cluster import LocalCluster

CANCELLATION_STEPS = 80
STEP_SECONDS = 0.00025
"""Difference between the delays of two cancellations; 80 delays cover 20 ms, and a first response takes about 5 ms."""


def list_open_sockets() -> set[Path]:
    """Return the paths of this process's open sockets."""
    return {Path("/proc/self/fd") / str(number) for number in _list_socket_descriptors()}


def _list_socket_descriptors() -> Iterator[int]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.readlink().name.startswith("socket:"):
                yield int(link.name)
        except FileNotFoundError:  # The descriptor with which the directory was listed is already closed.
            continue


async def _find_leaked_sockets(kubeconfig: str, cancel_after_seconds: float) -> set[Path]:
    sockets_before = list_open_sockets()
    api = await Api.connect(kubeconfig)
    request_task = asyncio.create_task(api.get(NODES_PATH))
    await asyncio.sleep(cancel_after_seconds)
    request_task.cancel()
    await asyncio.gather(request_task, return_exceptions=True)
    await api.close()
    return list_open_sockets() - sockets_before


@pytest.mark.parametrize("first_step", range(4))
def test_request_cancelled_at_any_moment_leaves_no_open_socket(cluster: LocalCluster, first_step: int) -> None:
    """Check that a connection is closed even if its request is cancelled before the connection pool contains it."""
    for step in range(first_step, CANCELLATION_STEPS, 4):
        leaked_sockets = asyncio.run(_find_leaked_sockets(str(cluster.kubeconfig), step * STEP_SECONDS))
        assert not leaked_sockets, f"cancelled after {step * STEP_SECONDS * 1000:g} ms"
