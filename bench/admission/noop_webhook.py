"""A webhook that allows every request without a check; its latency is the lower bound for HTTPS and JSON on this host.

`python -m bench.admission.noop_webhook DIRECTORY HOST` listens on HOST with the certificate in DIRECTORY, prints its
port, and exits on SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from functions.serving.https_server import serve_https, wait_for_signal
from kube.admission.reviews import build_review_response, parse_review


async def handle_review(request: web.Request) -> web.Response:
    """Respond to an AdmissionReview: allow the request."""
    return web.json_response(build_review_response(parse_review(await request.json())))


async def main(directory: Path, host: str) -> None:
    """Serve the webhook until SIGTERM."""
    application = web.Application()
    application.router.add_post("/validate", handle_review)
    async with serve_https(application, directory, 0, host) as port:
        print(port, flush=True)
        await wait_for_signal()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
