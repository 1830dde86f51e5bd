"""Watches the exit codes of pods' containers, because the API server deletes the pods soon afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager

from kube.client.api import Api
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from localcluster.waiting import run_until_set
from tests.real.environment import RealNodesEnvironment

ExitCodes = dict[str, dict[str, int]]
"""Map from map from pod name to container name to exit code."""
TIMEOUT_SECONDS = 60.0


@contextmanager
def watch_exit_codes(environment: RealNodesEnvironment, path: str, label_selector: str) -> Iterator[ExitCodes]:
    """Yield the exit codes of the containers that terminate while the block runs; the mapping grows meanwhile."""
    exit_codes: ExitCodes = {}
    synced, stop = threading.Event(), threading.Event()

    def follow_pods() -> None:
        with closing(SyncClient(str(environment.cluster.kubeconfig))) as client:
            client.run(run_until_set(stop, _record_exit_codes(client.api, path, label_selector, exit_codes, synced)))

    thread = threading.Thread(target=follow_pods)
    thread.start()
    try:
        assert synced.wait(TIMEOUT_SECONDS), f"no list of {path}"
        yield exit_codes
    finally:
        stop.set()
        thread.join()


async def _record_exit_codes(
    api: Api, path: str, label_selector: str, exit_codes: ExitCodes, synced: threading.Event
) -> None:
    async with aclosing(follow(api, path, label_selector=label_selector)) as changes:
        async for change in changes:
            if change.change_type == "SYNCED":
                synced.set()
                continue
            pod = change.object
            for status in pod.get("status", {}).get("containerStatuses", []):
                if terminated := status.get("state", {}).get("terminated"):
                    exit_codes.setdefault(pod["metadata"]["name"], {})[status["name"]] = terminated["exitCode"]
