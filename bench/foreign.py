"""Somebody else who writes: ConfigMaps, so many times a second, from a process of its own.

`python -m bench.foreign KUBECONFIG RATE` prints a line when it has begun, and when SIGTERM ends it how many writes were
answered.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.watching import ROOT
from kube.door.api import Api

PATH = "/api/v1/namespaces/default/configmaps"
MAPS = 10
"""So many are written in turn."""


@contextmanager
def writing(kubeconfig: Path, rate: int) -> Iterator[None]:
    """Have so many ConfigMaps written a second while the block runs; none with 0.

    Raises `RuntimeError` when fewer than nine in ten were: what was measured meanwhile is no such case.
    """
    if not rate:
        yield
        return
    command = [sys.executable, "-m", "bench.foreign", str(kubeconfig), str(rate)]
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


async def write(kubeconfig: str, rate: int) -> int:
    """Write until SIGTERM; returns how many writes were answered."""
    api = await Api.connect(kubeconfig)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for number in range(MAPS):
        await api.create(PATH, {"metadata": {"name": f"foreign-{number}"}})
    print("writing", flush=True)
    begun, sent = loop.time(), 0
    under_way: set[asyncio.Task[object]] = set()
    while not stop.is_set():
        body = {"data": {"number": str(sent)}}
        under_way.add(asyncio.create_task(api.patch(f"{PATH}/foreign-{sent % MAPS}", body)))
        sent += 1
        under_way = {task for task in under_way if not _answered(task)}
        await _until(stop, begun + sent / rate)
    await asyncio.gather(*under_way)
    for number in range(MAPS):
        await api.request("DELETE", f"{PATH}/foreign-{number}")
    await api.close()
    return sent


def _answered(task: asyncio.Task[object]) -> bool:
    """Whether it has ended; raises what it raised."""
    if task.done():
        task.result()
    return task.done()


async def _until(stop: asyncio.Event, moment: float) -> None:
    """Wait until that moment of the loop's clock, or until it is to stop."""
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, moment - asyncio.get_running_loop().time()))
    except asyncio.TimeoutError:
        return


if __name__ == "__main__":
    print(asyncio.run(write(sys.argv[1], int(sys.argv[2]))), flush=True)
