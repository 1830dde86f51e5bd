"""Helper that serves the functions from a copy of the source code with one piece of text replaced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster.access import make_username
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.processes import wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, ROOT
from tests.chain.environment import EventChainEnvironment


@contextmanager
def serve_patched_functions(
    environment: EventChainEnvironment, directory: Path, file: str, old: str, new: str, port: int, **variables: str
) -> Iterator[str]:
    """Replace `old` with `new` in a copy of the source code, serve the functions from the copy, and yield their URL.

    Args:
        environment: The test environment whose cluster the functions use.
        directory: The directory for the copy.
        file: The path of the file to change, relative to the source root.
        old: The text to replace; it must occur exactly once.
        new: The replacement.
        port: The port to serve on.
        variables: Additional environment variables for the functions.
    """
    for package in ("functions", "eventing", "kube"):
        shutil.copytree(ROOT / package, directory / package)
    source = directory / file
    assert source.read_text().count(old) == 1
    source.write_text(source.read_text().replace(old, new))
    url = f"http://{LOOPBACK}:{port}"
    account = environment.cluster.ensure_kubeconfig(make_username("functions"))
    server = build_function_server(
        "patched", port, directory / "patched.log", account, FunctionConfig("", "", ""), sources=directory
    )
    server.env |= {"PYTHONPATH": str(directory), **variables}
    server.start()
    try:
        wait_until_ready("patched", lambda: is_ready(url), [server], 30)
        yield url
    finally:
        server.stop()
