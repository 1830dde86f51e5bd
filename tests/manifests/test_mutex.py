"""What the accounts of the upgrade mutex may do, asked of a real API server (table 5.3 of the requirements)."""

from __future__ import annotations

import pytest

from localcluster.cluster import LocalCluster
from tests.manifests.test_rights import own
from tests.manifests.touches import OURS, Right
from tests.proofs import proves
from tests.sources import OPT_IN

JOBS = "node-upgrade-mutex-operator"
OWN = ("mutexrules", "mutextargets", "mutexrunconfigs")
MAY = {
    "jobs": {"create", "get", "list"},
    "nodes": {"get", "list", "patch"},
    "clusterversions": {"get"},
    "machineconfigpools": {"get", "list", "patch"},
    "events": {"create"},
    "nodemaintenances": {"list"},
}


def together(cluster: LocalCluster, namespace: str) -> set[Right]:
    return set[Right]().union(*(own(cluster, account, namespace) for account in OPT_IN))


@proves("MUT-1")
def test_together_they_may_do_what_the_document_lists(installed: LocalCluster) -> None:
    """Less what every account may: no deletion, no update of a Job, nothing of the ClusterVersion but to read it."""
    rights = together(installed, JOBS)
    found = {
        resource: {right.verb for right in rights if right.resource == resource}
        for resource in {right.resource for right in rights}
        if not resource.startswith(OWN)
    }
    assert found == MAY
    ours = {(right.resource, right.verb) for right in rights if right.resource.startswith(OWN)}
    assert {verb for _, verb in ours} == {"get", "list", "patch"}
    assert {resource for resource, verb in ours if verb == "patch"} == {
        "mutexrunconfigs",
        *(f"{kind}/status" for kind in OWN),
    }


@proves("MUT-1")
@pytest.mark.parametrize("namespace", [OURS, "kube-system", "default"])
def test_jobs_are_created_where_an_administrator_lists_it_and_nowhere_else(
    installed: LocalCluster, namespace: str
) -> None:
    """A MutexRule does not let its author run pods as any account of any namespace."""
    assert Right("batch", "jobs", "create", JOBS) in together(installed, JOBS)
    assert Right("batch", "jobs", "create", namespace) not in together(installed, namespace)


@proves("MUT-1")
def test_a_step_may_do_its_own_and_no_other(installed: LocalCluster) -> None:
    """Only one creates Jobs for real; who detects an upgrade changes no pool; who judges a rule changes no node."""
    verbs = {name: {(each.resource, each.verb) for each in own(installed, name, JOBS)} for name in OPT_IN}
    assert {name for name, may in verbs.items() if ("jobs", "create") in may} == {"run-job", "check-rule"}
    assert {name for name, may in verbs.items() if ("nodes", "patch") in may} == {
        *("label-nodes", "run-job", "release-node", "restore-pools")
    }
    assert {name for name, may in verbs.items() if ("machineconfigpools", "patch") in may} == {
        *("claim-pools", "pause-pools", "edit-pools", "restore-pools")
    }
