"""A background client that writes objects at a constant rate from its own process: ConfigMaps, or all nodes' leases.

`python -m bench.background_writer KUBECONFIG WHAT RATE` prints a line when it starts. On SIGTERM it prints the number of
completed writes and exits.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from bench.observer_process import ROOT
from kube.client.api import Api
from kube.client.concurrent_requests import together
from kube.client.paging import pages
from kube.nodes import NODES
from kube.paths import Object
from kube.times import microtime

MAPS_PATH = "/api/v1/namespaces/default/configmaps"
MAPS = 10
"""The number of ConfigMaps that are written in turn."""
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
"""The duration of a kubelet's lease, which the kubelet renews four times in that period."""
CONFIGMAPS, HEARTBEATS = "configmaps", "heartbeats"


@contextmanager
def writing(kubeconfig: Path, rate: int, what: str = CONFIGMAPS) -> Iterator[None]:
    """Write `rate` objects per second while the block runs, in turn; write none if `rate` is 0.

    Raises `RuntimeError` if fewer than 90 % were written, since the measurement does not match the case then.
    """
    if not rate:
        yield
        return
    command = [sys.executable, "-m", "bench.background_writer", str(kubeconfig), what, str(rate)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout  # noqa: S101 - it is a pipe
        try:
            begun = process.stdout.readline()
            started = time.monotonic()
            yield
            seconds = time.monotonic() - started
        finally:
            process.terminate()
        written = int(process.stdout.readline() or 0)
    if not begun or written < 0.9 * rate * seconds:
        raise RuntimeError(f"{written} foreign writes in {seconds:.0f} s, {rate} a second were wanted")


async def write(kubeconfig: str, what: str, rate: int) -> int:
    """Write until SIGTERM; return the number of completed writes."""
    api = await Api.connect(kubeconfig)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    path, names, body_of = await KINDS[what](api)
    await together(*(api.create(path, {"metadata": {"name": name}, **body_of(0)}) for name in names))
    print("writing", flush=True)
    begun, sent = loop.time(), 0
    under_way: set[asyncio.Task[object]] = set()
    while not stop.is_set():
        under_way.add(asyncio.create_task(api.patch(f"{path}/{names[sent % len(names)]}", body_of(sent))))
        sent += 1
        under_way = {task for task in under_way if not _answered(task)}
        await _until(stop, begun + sent / rate)
    await together(*under_way)
    await together(*(api.request("DELETE", f"{path}/{name}") for name in names))
    await api.close()
    return sent


Kind = tuple[str, list[str], Callable[[int], Object]]
"""The path of a collection, the names in it, and a function that returns the body of the n-th write."""


async def _configmaps(_api: Api) -> Kind:
    return MAPS_PATH, [f"foreign-{number}" for number in range(MAPS)], lambda sent: {"data": {"number": str(sent)}}


async def _heartbeats(api: Api) -> Kind:
    """Return the writes of the leases that kubelets renew as their heartbeat.

    Between heartbeats a kubelet only writes the node's status, about every five minutes.
    """
    names = [node["metadata"]["name"] for node in (await pages(api, NODES)).items]
    return LEASES_PATH, names, lambda _sent: {"spec": {"leaseDurationSeconds": LEASE_SECONDS, "renewTime": _now()}}


KINDS: dict[str, Callable[[Api], Awaitable[Kind]]] = {CONFIGMAPS: _configmaps, HEARTBEATS: _heartbeats}


def _now() -> str:
    return microtime(datetime.now(timezone.utc))


def _answered(task: asyncio.Task[object]) -> bool:
    """Return whether the task has ended. Raises the task's exception."""
    if task.done():
        task.result()
    return task.done()


async def _until(stop: asyncio.Event, moment: float) -> None:
    """Wait until this time of the loop's clock, or until `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, moment - asyncio.get_running_loop().time()))
    except asyncio.TimeoutError:
        return


if __name__ == "__main__":
    print(asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
