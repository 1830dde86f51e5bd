"""Emulates a kubelet's Secret volume: writes the Secret's entries as files that all change atomically."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, suppress
from pathlib import Path

from kube.certificates import certificate_objects
from kube.certificates.certificate_objects import CERTIFICATE, KEY, TRUSTED
from kube.client.api import Api
from kube.client.list_watch import follow
from kube.paths import Object
from localcluster import access
from localcluster.processes import Startable

ENTRIES = (CERTIFICATE, KEY, TRUSTED)


class MountedSecret(Startable):
    """Follows a Secret into a directory, as a kubelet does for a volume.

    Each version of the Secret gets a new directory, and then a symlink is switched to it.

    Args:
        kubeconfig: The credentials for reading the Secret.
        folder: The directory to write to.
        namespace: The Secret's namespace.
        name: The Secret's name.

    Attributes:
        shown: The distinct certificates written so far, latest last.
        came: An event that is set after each write.
    """

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str, name: str) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self.came = threading.Event()
        self._kubeconfig, self._path, self._name = kubeconfig, certificate_objects.secrets_path(namespace), name
        self._writes = 0
        self._loop = asyncio.new_event_loop()
        self._following: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _bring_up(self) -> None:
        """Start following the Secret; `came` is set once the first certificate is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for entry in ENTRIES:
            with suppress(FileExistsError):
                (self.folder / entry).symlink_to(f"..data/{entry}")
        self._following = self._loop.create_task(self._follow())
        self._thread.start()

    def stop(self) -> None:
        """Stop following the Secret; the files stay as they are."""
        if self._following and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._following.cancel)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        assert self._following  # noqa: S101 - the thread begins after it
        self._loop.run_until_complete(asyncio.wait([self._following]))

    async def _follow(self) -> None:
        api = await Api.connect(str(self._kubeconfig))
        try:
            async with aclosing(follow(api, self._path, fields=f"metadata.name={self._name}")) as changes:
                async for change in changes:
                    if change.kind in ("ADDED", "MODIFIED") and certificate_objects.current(change.object):
                        self._write(change.object)
        finally:
            await api.close()

    def _write(self, secret: Object) -> None:
        self._writes += 1
        fresh = self.folder / f"..{self._writes}"
        fresh.mkdir(exist_ok=True)
        for entry in ENTRIES:
            access.write_secret(fresh / entry, certificate_objects.text(secret, entry))
        link = self.folder / "..new"
        link.unlink(missing_ok=True)
        link.symlink_to(fresh.name)
        link.replace(self.folder / "..data")
        shown = certificate_objects.text(secret, CERTIFICATE)
        if shown not in self.shown:
            self.shown.append(shown)
        self.came.set()
