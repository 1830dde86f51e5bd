"""Runs `migrate` on a tick and kills the process before one of its requests: `dying KUBECONFIG TICK REQUESTS`.

The exit code is -9 after the kill, and 0 if the pass has completed with at most that many requests.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from functions.virtualization.migrate import migrate
from kube.client.api import Api
from kube.client.sync_client import Cluster
from kube.paths import Object
from tests.functions.event_builders import tick


class Dying(Api):
    """An API client that kills its process instead of sending a request once it has sent `left` requests."""

    left = 0

    async def request(self, method: str, path: str, **options: Any) -> Object:
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Dying.left -= 1
        return await super().request(method, path, **options)


def main(kubeconfig: str, event: str, requests: str) -> None:
    cluster = Cluster(kubeconfig)
    cluster.api = cluster.run(Dying.connect(kubeconfig))
    Dying.left = int(requests)
    migrate(CloudEvent({**tick().get_attributes(), "id": event}, {}), cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
