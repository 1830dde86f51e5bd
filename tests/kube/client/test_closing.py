"""Tests that a cancelled request leaves no open socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.api import Api
from kube.nodes import NODES
from localcluster.cluster import LocalCluster

STEPS = 80
STEP_SECONDS = 0.00025
"""A connection and its first response take about 5 ms here, so the cancellations hit every phase of it."""


def sockets() -> set[Path]:
    """Return the open sockets of this process."""
    return {Path("/proc/self/fd") / str(number) for number in _descriptors()}


def _descriptors() -> Iterator[int]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.readlink().name.startswith("socket:"):
                yield int(link.name)
        except FileNotFoundError:  # the descriptor of the directory itself, closed by now
            continue


async def _left_after(kubeconfig: str, seconds: float) -> set[Path]:
    before = sockets()
    api = await Api.connect(kubeconfig)
    asking = asyncio.create_task(api.get(NODES))
    await asyncio.sleep(seconds)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await api.close()
    return sockets() - before


@pytest.mark.parametrize("first", range(4))
def test_a_request_cancelled_at_any_moment_leaves_no_socket(cluster: LocalCluster, first: int) -> None:
    """Close a connection even if it is cancelled between its TLS handshake and first byte, when no pool contains it."""
    for step in range(first, STEPS, 4):
        left = asyncio.run(_left_after(str(cluster.kubeconfig), step * STEP_SECONDS))
        assert not left, f"cancelled after {step * STEP_SECONDS * 1000:g} ms"
