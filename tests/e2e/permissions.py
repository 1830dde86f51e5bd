"""Compares a function account's permissions on the API server (`kubectl auth can-i --list`) with its docstring."""

from __future__ import annotations

from contextlib import closing

from kube.client.sync_client import Cluster
from localcluster.knative.fake_kubelet import kubeconfig
from tests.e2e.environment import Stage
from tests.manifests.documented_rights import NAMESPACES, OURS, allowed, documented, reaching


def assert_as_documented(stage: Stage, function: str) -> None:
    """Assert that in each namespace the account may do exactly what the function's `Touches:` lines list.

    Permissions that every account has are ignored.
    """
    with closing(_door(stage, function)) as own, closing(_door(stage, "default")) as everybody:
        for namespace in NAMESPACES:
            more = own.run(allowed(own.api, namespace)) - everybody.run(allowed(everybody.api, namespace))
            assert more == reaching(documented(function), namespace), (function, namespace)


def _door(stage: Stage, account: str) -> Cluster:
    """Return an API client with the account's token."""
    return Cluster(str(kubeconfig(stage.local, OURS, account)))
