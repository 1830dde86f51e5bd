"""The webhook as a program: `python -m functions.admission`.

It serves HTTPS at `$PORT` (8443) of `$HOST` (all addresses) with `tls.crt` and `tls.key` of the folder `$CERTIFICATE`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

from eventing import logs
from functions.admission.endpoints import pages
from functions.admission.watched import Watched
from functions.serving.secure import serving, until_told
from kube.door.api import Api

FOLDER = "/etc/admission"
YOUNG = 200_000
"""Objects between two collections. A list of a hundred pods is 30,000, none of them in a cycle; at Python's 700 the
collector takes twice the time of the decoding, and the more the more is watched."""


async def main() -> None:
    """Run until SIGTERM or SIGINT. A watch that dies ends it with an error, so that the platform starts it again."""
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
    """Wait until a watch dies, whose error this raises, or until told to end."""
    running, stopping = asyncio.create_task(watched.run()), asyncio.create_task(until_told())
    done, rest = await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for ended in done:
        ended.result()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
