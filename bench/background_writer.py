"""A background client that writes objects at a constant rate from its own process: ConfigMaps, or node Leases.

`python -m bench.background_writer KUBECONFIG KIND RATE` prints a line when it starts to write. On SIGTERM, it prints
the number of completed writes, and exits.
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
from kube.client.api import Api, gather_all
from kube.client.paging import list_all
from kube.nodes import NODES_PATH
from kube.paths import Object
from kube.times import format_micro_time

CONFIGMAPS_PATH = "/api/v1/namespaces/default/configmaps"
CONFIGMAP_COUNT = 10
"""Number of ConfigMaps that the client writes in turn."""
LEASES_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_SECONDS = 40
"""Duration of a kubelet's Lease, which the kubelet renews four times in this period."""
CONFIGMAPS, HEARTBEATS = "configmaps", "heartbeats"


@contextmanager
def run_background_writer(kubeconfig: Path, writes_per_second: int, kind: str = CONFIGMAPS) -> Iterator[None]:
    """Write `writes_per_second` objects per second in another process during the `with` block; 0 means no writes.

    Raises `RuntimeError` if fewer than 90 % of the writes were completed, because the measurement is then invalid.
    """
    if not writes_per_second:
        yield
        return
    command = [sys.executable, "-m", "bench.background_writer", str(kubeconfig), kind, str(writes_per_second)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout  # noqa: S101 - set because of stdout=PIPE
        try:
            ready_line = process.stdout.readline()
            started = time.monotonic()
            yield
            seconds = time.monotonic() - started
        finally:
            process.terminate()
        written = int(process.stdout.readline() or 0)
    if not ready_line or written < 0.9 * writes_per_second * seconds:
        raise RuntimeError(
            f"background writer: {written} writes in {seconds:.0f} s instead of {writes_per_second} per second: "
            "measure again on a host with less load"
        )


async def write_until_sigterm(kubeconfig: str, kind: str, writes_per_second: int) -> int:
    """Write objects until SIGTERM; return the number of completed writes."""
    api = await Api.connect(kubeconfig)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    path, names, build_body = await TARGET_BUILDERS[kind](api)
    await gather_all(*(api.create(path, {"metadata": {"name": name}, **build_body(0)}) for name in names))
    print("writing", flush=True)
    started_at, sent = loop.time(), 0
    in_flight: set[asyncio.Task[object]] = set()
    while not stop.is_set():
        in_flight.add(asyncio.create_task(api.patch(f"{path}/{names[sent % len(names)]}", build_body(sent))))
        sent += 1
        in_flight = {task for task in in_flight if not _is_task_done(task)}
        await _wait_for_stop(stop, started_at + sent / writes_per_second)
    await gather_all(*in_flight)
    await gather_all(*(api.request("DELETE", f"{path}/{name}") for name in names))
    await api.close()
    return sent


WriteTarget = tuple[str, list[str], Callable[[int], Object]]
"""The path of a collection, the names of the objects in it, and a function that builds the body of the n-th write."""


async def _build_configmap_target(_api: Api) -> WriteTarget:
    return (
        CONFIGMAPS_PATH,
        [f"background-{number}" for number in range(CONFIGMAP_COUNT)],
        lambda sent: {"data": {"number": str(sent)}},
    )


async def _build_lease_target(api: Api) -> WriteTarget:
    """Return the target for the Leases of all nodes, which kubelets renew as their heartbeats.

    Besides its heartbeats, an idle kubelet only writes the node's status, about every five minutes.
    """
    names = [node["metadata"]["name"] for node in (await list_all(api, NODES_PATH)).items]
    return (
        LEASES_PATH,
        names,
        lambda _sent: {"spec": {"leaseDurationSeconds": LEASE_SECONDS, "renewTime": _format_now()}},
    )


TARGET_BUILDERS: dict[str, Callable[[Api], Awaitable[WriteTarget]]] = {
    CONFIGMAPS: _build_configmap_target,
    HEARTBEATS: _build_lease_target,
}


def _format_now() -> str:
    return format_micro_time(datetime.now(timezone.utc))


def _is_task_done(task: asyncio.Task[object]) -> bool:
    """Return whether the task is done. Raises the task's exception if it failed."""
    if task.done():
        task.result()
    return task.done()


async def _wait_for_stop(stop: asyncio.Event, deadline: float) -> None:
    """Wait until `stop` is set, or until `deadline` on the event loop's clock."""
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, deadline - asyncio.get_running_loop().time()))
    except asyncio.TimeoutError:
        return


if __name__ == "__main__":
    print(asyncio.run(write_until_sigterm(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
