"""The functions from a copy of the sources in which one line was changed by hand."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.access import service_account
from localcluster.api import Api
from localcluster.functions import READY
from localcluster.processes import Server, await_ready
from localcluster.servers import LOOPBACK, ROOT
from tests.chain.scene import Scene


@contextmanager
def edited(scene: Scene, folder: Path, file: str, old: str, new: str, port: int, **environment: str) -> Iterator[str]:
    """Serve them on that port while the block runs; gives their URL."""
    for room in ("functions", "eventing", "kube"):
        shutil.copytree(ROOT / room, folder / room)
    source = folder / file
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    url = f"http://{LOOPBACK}:{port}"
    app = (
        "functions.app:create_app()",
        "-c",
        folder / "functions" / "gunicorn.conf.py",
        "--bind",
        f"{LOOPBACK}:{port}",
    )
    account = str(scene.cluster.kubeconfig_for(service_account("functions")))
    more = {"KUBECONFIG": account, "PYTHONPATH": str(folder), **environment}
    command: list[str | Path] = [sys.executable, "-P", "-m", "gunicorn", *app]
    server = Server("edited", command, folder / "edited.log", more, folder)
    server.start()
    try:
        await_ready("edited", lambda: Api(url).answers(READY), [server], 30)
        yield url
    finally:
        server.stop()
