"""Requests that are cancelled at any moment leave no socket behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.door.api import Api
from kube.nodes import NODES
from localcluster.cluster import LocalCluster

STEPS = 80
STEP_SECONDS = 0.00025
"""A connection and its first answer take some 5 ms here: the cancels fall on each part of it."""


def sockets() -> set[Path]:
    """What this process has open."""
    return {Path("/proc/self/fd") / str(number) for number in _descriptors()}


def _descriptors() -> Iterator[int]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.readlink().name.startswith("socket:"):
                yield int(link.name)
        except FileNotFoundError:  # the directory itself
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
    """Between its handshake and its first byte a connection is in no pool, and ends with a farewell of its own."""
    for step in range(first, STEPS, 4):
        left = asyncio.run(_left_after(str(cluster.kubeconfig), step * STEP_SECONDS))
        assert not left, f"cancelled after {step * STEP_SECONDS * 1000:g} ms"
