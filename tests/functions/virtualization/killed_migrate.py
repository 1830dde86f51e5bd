"""Runs `migrate` on a tick and kills the process before one of its requests: `killed_migrate KUBECONFIG TICK REQUESTS`.

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
from kube.client.sync_client import SyncClient
from kube.paths import Object
from tests.functions.event_builders import build_tick


class SelfKillingApi(Api):
    """An API client that kills its process instead of sending a request once it has sent `requests_left` requests."""

    requests_left = 0

    async def request(self, method: str, path: str, **options: Any) -> Object:
        if SelfKillingApi.requests_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        SelfKillingApi.requests_left -= 1
        return await super().request(method, path, **options)


def main(kubeconfig: str, event_id: str, request_count: str) -> None:
    client = SyncClient(kubeconfig)
    client.api = client.run(SelfKillingApi.connect(kubeconfig))
    SelfKillingApi.requests_left = int(request_count)
    migrate(CloudEvent({**build_tick().get_attributes(), "id": event_id}, {}), client)


if __name__ == "__main__":
    main(*sys.argv[1:])
