"""What the API server says that whoever has a function's token may do, as `kubectl auth can-i --list` shows it."""

from __future__ import annotations

from contextlib import closing

from kube.door.sync_client import Cluster
from localcluster.knative.kubelet import kubeconfig
from tests.e2e.stage import Stage
from tests.manifests.touches import NAMESPACES, OURS, allowed, documented, reaching


def assert_as_documented(stage: Stage, function: str) -> None:
    """In each namespace it is what the function says that it touches, beside what every account may."""
    with closing(_door(stage, function)) as own, closing(_door(stage, "default")) as everybody:
        for namespace in NAMESPACES:
            more = own.run(allowed(own.api, namespace)) - everybody.run(allowed(everybody.api, namespace))
            assert more == reaching(documented(function), namespace), (function, namespace)


def _door(stage: Stage, account: str) -> Cluster:
    """The API server as whoever has the account's token meets it."""
    return Cluster(str(kubeconfig(stage.local, OURS, account)))
