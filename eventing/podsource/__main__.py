"""PodSource as a program, run by a ContainerSource: `python -m eventing.podsource`, which emits to `$K_SINK`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

from eventing.podsource.sender import Sender
from eventing.podsource.watcher import PodSource
from kube.door.api import Api


async def main() -> None:
    """Run until SIGTERM or SIGINT."""
    sink = os.environ.get("K_SINK")
    if not sink:
        raise SystemExit("podsource: K_SINK is not set; run as a ContainerSource, or set it to a broker's address")
    api = await Api.connect()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Sender(sink) as sender:
        source = asyncio.create_task(PodSource(api, sender).run())
        await asyncio.wait({source, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if source.done():
            source.result()
        source.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await source
    await api.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
