"""Runs `migrate` with a tick, and kills the process before one of its API requests.

Usage: `killed_migrate KUBECONFIG EVENT_ID REQUEST_COUNT`.

The exit code is 0 if the pass needs at most REQUEST_COUNT requests. Otherwise the process is killed before its next
request, and the exit code is -9.
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
    """An API client that sends `requests_left` requests, and kills its process instead of sending the next one."""

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
