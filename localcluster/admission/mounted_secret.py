"""Emulates a kubelet's Secret volume: writes the Secret's entries as files, and replaces all of them atomically."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, suppress
from pathlib import Path

from kube.certificates import objects
from kube.certificates.objects import CA_ENTRY, CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY
from kube.client.api import Api
from kube.client.list_watch import follow
from kube.paths import Object
from localcluster import access
from localcluster.processes import Startable

SECRET_KEYS = (CERTIFICATE_ENTRY, PRIVATE_KEY_ENTRY, CA_ENTRY)


class MountedSecret(Startable):
    """Mirrors a Secret to a directory, as a kubelet does for a volume.

    Each version of the Secret is written to a new directory, and then a symlink is switched to that directory.

    Args:
        kubeconfig: The credentials for reading the Secret.
        directory: The directory to write to.
        namespace: The Secret's namespace.
        name: The Secret's name.

    Attributes:
        certificates: The distinct certificates written so far, latest last.
        updated: An event that is set after each write.
    """

    def __init__(self, kubeconfig: Path, directory: Path, namespace: str, name: str) -> None:
        self.directory = directory
        self.certificates: list[str] = []
        self.updated = threading.Event()
        self._kubeconfig, self._path, self._name = kubeconfig, objects.build_secrets_path(namespace), name
        self._revision = 0
        self._loop = asyncio.new_event_loop()
        self._watch_task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _start_and_wait(self) -> None:
        """Start to watch the Secret; `updated` is set once the first certificate is written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in SECRET_KEYS:
            with suppress(FileExistsError):
                (self.directory / entry).symlink_to(f"..data/{entry}")
        self._watch_task = self._loop.create_task(self._watch_secret())
        self._thread.start()

    def stop(self) -> None:
        """Stop watching the Secret; its files stay unchanged."""
        if self._watch_task and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._watch_task.cancel)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        assert self._watch_task  # noqa: S101 - the task is created before the thread starts
        self._loop.run_until_complete(asyncio.wait([self._watch_task]))

    async def _watch_secret(self) -> None:
        api = await Api.connect(str(self._kubeconfig))
        try:
            async with aclosing(follow(api, self._path, field_selector=f"metadata.name={self._name}")) as changes:
                async for change in changes:
                    if change.change_type in ("ADDED", "MODIFIED") and objects.get_current_key_pair(change.object):
                        self._write_files(change.object)
        finally:
            await api.close()

    def _write_files(self, secret: Object) -> None:
        self._revision += 1
        version_dir = self.directory / f"..{self._revision}"
        version_dir.mkdir(exist_ok=True)
        for entry in SECRET_KEYS:
            access.write_secret(version_dir / entry, objects.decode_entry(secret, entry))
        link = self.directory / "..new"
        link.unlink(missing_ok=True)
        link.symlink_to(version_dir.name)
        link.replace(self.directory / "..data")
        certificate = objects.decode_entry(secret, CERTIFICATE_ENTRY)
        if certificate not in self.certificates:
            self.certificates.append(certificate)
        self.updated.set()
