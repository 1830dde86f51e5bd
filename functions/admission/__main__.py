"""The admission webhook's server: `python -m functions.admission`.

The server listens for HTTPS requests on `$HOST` (default: all addresses) and `$PORT` (default: 8443). It reads
`tls.crt` and `tls.key` from the directory `$CERTIFICATE` (default: /etc/admission).
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

from eventing import logs
from functions.admission.endpoints import build_application
from functions.admission.watch_cache import WatchCache
from functions.serving.https_server import serve_https, wait_for_signal
from kube.client.api import Api

DEFAULT_CERTIFICATE_DIRECTORY = "/etc/admission"
GC_THRESHOLD = 200_000
"""Garbage collection threshold: net number of allocations that triggers a collection.

Decoding a list of a hundred pods allocates 30,000 objects without reference cycles. With Python's default threshold of
700, garbage collection takes twice as long as the decoding. Each cached object would make it even slower.
"""


async def main() -> None:
    """Serve until SIGTERM or SIGINT; if a watch fails, exit with an error so that Kubernetes restarts the container."""
    logs.configure()
    gc.set_threshold(GC_THRESHOLD)
    directory, host = (
        Path(os.environ.get("CERTIFICATE") or DEFAULT_CERTIFICATE_DIRECTORY),
        os.environ.get("HOST") or None,
    )
    api = await Api.connect()
    cache = WatchCache(api)
    try:
        async with serve_https(build_application(cache, api), directory, int(os.environ.get("PORT") or 8443), host):
            await _run_until_stopped(cache)
    finally:
        await api.close()


async def _run_until_stopped(cache: WatchCache) -> None:
    """Run the watches until SIGTERM or SIGINT arrives; if a watch fails, raise its error."""
    running, stopping = asyncio.create_task(cache.run()), asyncio.create_task(wait_for_signal())
    done, pending = await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for finished in done:
        finished.result()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
