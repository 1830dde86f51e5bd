"""HTTPS server that runs in its own process with the certificate in a directory.

`python -m tests.functions.certificates.tls_server DIRECTORY` starts the server and prints its port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from functions.serving.https_server import serve_https, wait_for_signal
from tests.sources import ROOT

HOST = "127.0.0.1"


@contextmanager
def run_tls_server(directory: Path) -> Iterator[int]:
    """Run the server with the certificate in the directory, in its own process, and yield the server's port."""
    command = [sys.executable, "-m", "tests.functions.certificates.tls_server", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _serve(directory: Path) -> None:
    async def get_peer_port(request: web.Request) -> web.Response:
        peer = request.transport.get_extra_info("peername") if request.transport else ("", 0)
        return web.Response(text=str(peer[1]))

    async def allow_review(request: web.Request) -> web.Response:
        review = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    app = web.Application()
    app.router.add_get("/", get_peer_port)
    app.router.add_post("/admit", allow_review)
    async with serve_https(app, directory, 0, HOST) as port:
        print(port, flush=True)
        await wait_for_signal()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
