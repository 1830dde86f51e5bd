"""The door for func, behind func's own middleware from PyPI, as its scaffolding starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.wire import binary, received, structured
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready, free_port
from localcluster.product import DIRECT
from localcluster.servers import LOOPBACK
from tests.workload import Workload

ROOT = Path(__file__).parents[2]
SCAFFOLDING = "from func_python.http import serve\nfrom function import new as handler\nserve(handler)\n"
"""What func writes around a function before it builds it."""
BOTH = pytest.mark.parametrize("mode", [binary, structured], ids=["binary", "structured"])
"""The two ways in which a CloudEvent comes over HTTP."""


def scaffolded(cluster: LocalCluster, log: Path, port: int, **more: str) -> Server:
    environment = {
        **DIRECT,
        "KUBECONFIG": str(cluster.kubeconfig_for(access.service_account("functions"))),
        "LISTEN_ADDRESS": f"{LOOPBACK}:{port}",
        **more,
    }
    return Server("func", [sys.executable, "-c", SCAFFOLDING], log, environment, ROOT)


@pytest.fixture(scope="module")
def door(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of all functions behind func's middleware."""
    yield from serving(installed, tmp_path_factory.mktemp("func"))


@pytest.fixture(scope="module")
def cordon(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of one function alone, as a func of its own would be deployed."""
    yield from serving(installed, tmp_path_factory.mktemp("func"), FUNCTION="cordon")


def serving(cluster: LocalCluster, folder: Path, **more: str) -> Iterator[str]:
    port = free_port()
    server = scaffolded(cluster, folder / "func.log", port, **more)
    server.start()
    try:
        url = f"http://{LOOPBACK}:{port}"
        await_ready("func's middleware", lambda: answers(url), [server], seconds=30)
        yield url
    finally:
        server.stop()


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health/readiness", timeout=5).ok
    except requests.ConnectionError:
        return False


def added(maintenance: dict[str, object], **more: object) -> CloudEvent:
    attributes = {
        "type": events.RESOURCE_ADDED,
        "source": "/api",
        "kind": "NodeMaintenance",
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes | more, maintenance)


def post(url: str, event: BaseCloudEvent, mode: object) -> requests.Response:
    message = structured(event) if mode is structured else binary(event)
    return requests.post(url, message.body, headers=message.headers, timeout=30)
