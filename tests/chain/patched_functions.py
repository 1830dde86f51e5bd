"""Serves the functions from a copy of the sources in which one text was replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.access import service_account
from localcluster.function_server import Wiring, function_server
from localcluster.processes import await_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, ROOT
from tests.chain.environment import Scene


@contextmanager
def edited(scene: Scene, folder: Path, file: str, old: str, new: str, port: int, **environment: str) -> Iterator[str]:
    """Replace `old` with `new` in a copy of the sources, serve the functions from it, and yield their URL.

    Args:
        scene: The environment whose cluster the functions use.
        folder: The directory for the copy.
        file: The path of the changed file, relative to the sources.
        old: The text to replace; it must occur exactly once.
        new: The replacement.
        port: The port to serve on.
        environment: Additional environment variables of the functions.
    """
    for room in ("functions", "eventing", "kube"):
        shutil.copytree(ROOT / room, folder / room)
    source = folder / file
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    url = f"http://{LOOPBACK}:{port}"
    account = scene.cluster.kubeconfig_for(service_account("functions"))
    server = function_server("edited", port, folder / "edited.log", account, Wiring("", "", ""), sources=folder)
    server.env |= {"PYTHONPATH": str(folder), **environment}
    server.start()
    try:
        await_ready("edited", lambda: is_ready(url), [server], 30)
        yield url
    finally:
        server.stop()
