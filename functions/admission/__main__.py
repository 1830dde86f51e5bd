"""Server of the admission webhook: `python -m functions.admission`.

It serves HTTPS on port `$PORT` (8443) of `$HOST` (all addresses). The folder `$CERTIFICATE` contains `tls.crt` and
`tls.key`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

from eventing import logs
from functions.admission.endpoints import pages
from functions.admission.watch_cache import Watched
from functions.serving.https_server import serving, until_told
from kube.client.api import Api

FOLDER = "/etc/admission"
YOUNG = 200_000
"""Allocations between two garbage collections.

A list of a hundred pods has 30,000 objects, and none of them is in a cycle. With Python's default of 700, the collector
takes twice as long as the decoding, and longer with every object that is watched.
"""


async def main() -> None:
    """Serve until SIGTERM or SIGINT. A watch that fails ends the process with an error, so that it is restarted."""
    logs.configure()
    gc.set_threshold(YOUNG)
    folder, host = Path(os.environ.get("CERTIFICATE") or FOLDER), os.environ.get("HOST") or None
    api = await Api.connect()
    watched = Watched(api)
    try:
        async with serving(pages(watched, api), folder, int(os.environ.get("PORT") or 8443), host):
            await _first(watched)
    finally:
        await api.close()


async def _first(watched: Watched) -> None:
    """Wait until a stop signal arrives, or raise the error of a watch that fails."""
    running, stopping = asyncio.create_task(watched.run()), asyncio.create_task(until_told())
    done, rest = await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for ended in done:
        ended.result()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
