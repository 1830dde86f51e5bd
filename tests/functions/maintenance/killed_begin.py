"""Program that runs `begin` and is killed after some writes: `dying KUBECONFIG PATH WRITES`."""

from __future__ import annotations

import sys

from functions.maintenance.begin import begin
from kube.client.sync_client import Cluster
from tests.functions.certificates.killed_pass import Dying
from tests.functions.event_builders import added


def main(kubeconfig: str, path: str, writes: str) -> None:
    cluster = Cluster(kubeconfig)
    event = added(cluster.get(path))
    cluster.api = cluster.run(Dying.connect(kubeconfig))
    Dying.left = int(writes)
    begin(event, cluster)


if __name__ == "__main__":
    main(*sys.argv[1:])
