"""Program that runs `begin` and kills itself after WRITES write requests: `killed_begin KUBECONFIG PATH WRITES`."""

from __future__ import annotations

import sys

from functions.maintenance.begin import begin
from kube.client.sync_client import SyncClient
from tests.functions.certificates.killed_pass import SelfKillingApi
from tests.functions.event_builders import build_added_event


def main(kubeconfig: str, path: str, write_count: str) -> None:
    cluster = SyncClient(kubeconfig)
    event = build_added_event(cluster.get(path))
    cluster.api = cluster.run(SelfKillingApi.connect(kubeconfig))
    SelfKillingApi.writes_left = int(write_count)
    begin(event, cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
