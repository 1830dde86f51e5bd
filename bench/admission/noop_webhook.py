"""A webhook that allows everything without reading it: the minimum cost of HTTPS and JSON on this host.

`python -m bench.admission.noop_webhook FOLDER HOST` serves with the certificate in FOLDER, prints its port, and exits on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from functions.serving.https_server import serving, until_told
from kube.admission.reviews import answer, question


async def allow(request: web.Request) -> web.Response:
    """Return a review response that allows the request."""
    return web.json_response(answer(question(await request.json())))


async def main(folder: Path, host: str) -> None:
    """Serve until SIGTERM."""
    application = web.Application()
    application.router.add_post("/validate", allow)
    async with serving(application, folder, 0, host) as port:
        print(port, flush=True)
        await until_told()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
