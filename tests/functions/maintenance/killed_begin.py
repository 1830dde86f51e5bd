"""Program that runs `begin` and is killed after some writes: `killed_begin KUBECONFIG PATH WRITES`."""

from __future__ import annotations

import sys

from functions.maintenance.begin import begin
from kube.client.sync_client import SyncClient
from tests.functions.certificates.killed_pass import SelfKillingApi
from tests.functions.event_builders import build_added


def main(kubeconfig: str, path: str, writes: str) -> None:
    cluster = SyncClient(kubeconfig)
    event = build_added(cluster.get(path))
    cluster.api = cluster.run(SelfKillingApi.connect(kubeconfig))
    SelfKillingApi.writes_left = int(writes)
    begin(event, cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
