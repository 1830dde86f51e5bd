"""The admission webhook's server: `python -m functions.admission`.

The server listens for HTTPS requests on `$HOST` (default: all addresses) and `$PORT` (default: 8443). The directory
`$CERTIFICATE` contains `tls.crt` and `tls.key`.
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
"""Number of allocations between two garbage collections.

Decoding a list of a hundred pods allocates 30,000 objects, none of which is in a reference cycle. With Python's default
of 700, garbage collection takes twice as long as the decoding, and longer still with every watched object.
"""


async def main() -> None:
    """Serve until SIGTERM or SIGINT. If a watch fails, exit with an error, so that Kubernetes restarts the pod."""
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
    """Wait until a stop signal arrives, or raise the error of a watch that fails."""
    running, stopping = asyncio.create_task(cache.run()), asyncio.create_task(wait_for_signal())
    done, pending = await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for finished in done:
        finished.result()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
