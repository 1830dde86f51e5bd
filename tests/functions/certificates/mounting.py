"""A Secret as a pod has it, files in a folder that change at once; and a server of its own process that serves by it.

`python -m tests.functions.certificates.mounting FOLDER` serves, and prints its port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

from aiohttp import web

from functions.serving.secure import serving, until_told
from kube.certificates import holders
from kube.certificates.holders import CERTIFICATE, KEY
from kube.door.api import Api
from kube.door.list_watch import follow
from kube.paths import Object
from tests.sources import ROOT

HOST = "127.0.0.1"


class Mount:
    """Follows one Secret into a folder, as a kubelet does: a new folder, and one link that is moved to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self._writes = 0
        self.came = threading.Event()
        for name in (CERTIFICATE, KEY):
            (folder / name).symlink_to(f"..data/{name}")

    async def follow(self, kubeconfig: Path, path: str, name: str) -> None:
        """Follow it without end."""
        api = await Api.connect(str(kubeconfig))
        try:
            async with aclosing(follow(api, path, fields=f"metadata.name={name}")) as changes:
                async for change in changes:
                    if change.kind in ("ADDED", "MODIFIED") and holders.current(change.object):
                        self.write(change.object)
        finally:
            await api.close()

    def write(self, secret: Object) -> None:
        self._writes += 1
        fresh = self.folder / f"..{self._writes}"
        fresh.mkdir()
        for name in (CERTIFICATE, KEY):
            (fresh / name).write_text(holders.text(secret, name))
        (self.folder / "..new").symlink_to(fresh.name)
        (self.folder / "..new").replace(self.folder / "..data")
        shown = holders.text(secret, CERTIFICATE)
        if shown not in self.shown:
            self.shown.append(shown)
        self.came.set()


@contextmanager
def mounted(kubeconfig: Path, path: str, name: str, folder: Path) -> Iterator[Mount]:
    """Keep the Secret's files in the folder within the block."""
    mount, loop = Mount(folder), asyncio.new_event_loop()
    following = loop.create_task(mount.follow(kubeconfig, path, name))
    thread = threading.Thread(target=loop.run_until_complete, args=(asyncio.wait([following]),))
    thread.start()
    try:
        yield mount
    finally:
        loop.call_soon_threadsafe(following.cancel)
        thread.join()
        loop.close()


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """A server by the certificate in the folder, in a process of its own. Gives its port."""
    command = [sys.executable, "-m", "tests.functions.certificates.mounting", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _serve(folder: Path) -> None:
    async def who(request: web.Request) -> web.Response:
        peer = request.transport.get_extra_info("peername") if request.transport else ("", 0)
        return web.Response(text=str(peer[1]))

    async def admit(request: web.Request) -> web.Response:
        review = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    pages = web.Application()
    pages.router.add_get("/", who)
    pages.router.add_post("/admit", admit)
    async with serving(pages, folder, 0, HOST) as port:
        print(port, flush=True)
        await until_told()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
