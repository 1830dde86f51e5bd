"""The rights of the upgrade mutex's accounts on a real API server (table 5.3 of the requirements)."""

from __future__ import annotations

import re

import pytest

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import ROOT, WITH_MUTEX, of_kind, overlay, pod_specs
from tests.manifests.test_rights import own
from tests.manifests.documented_rights import OURS, Right
from tests.proofs import proves
from tests.sources import OPT_IN, steps_of

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
    return set[Right]().union(*(own(cluster, account, namespace) for account in steps_of("mutex")))


@proves("MUT-1", "MUT-1a")
def test_together_they_may_do_what_the_document_lists(installed: LocalCluster) -> None:
    """Check that the accounts together have exactly the document's rights, without those of every account.

    They may not delete anything, update no Job, and only read the ClusterVersion.
    """
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


@proves("MUT-1", "MUT-1a")
@pytest.mark.parametrize("namespace", [OURS, "kube-system", "default"])
def test_jobs_are_created_where_an_administrator_lists_it_and_nowhere_else(
    installed: LocalCluster, namespace: str
) -> None:
    """Check that Jobs can only be created in one namespace, so that a MutexRule cannot run pods with any account."""
    assert Right("batch", "jobs", "create", JOBS) in together(installed, JOBS)
    assert Right("batch", "jobs", "create", namespace) not in together(installed, namespace)


@proves("MUT-1")
def test_a_step_may_do_its_own_and_no_other(installed: LocalCluster) -> None:
    """Check that each step has only its own rights to create Jobs, patch nodes and patch pools."""
    verbs = {name: {(each.resource, each.verb) for each in own(installed, name, JOBS)} for name in steps_of("mutex")}
    assert {name for name, may in verbs.items() if ("jobs", "create") in may} == {"run-job", "check-rule"}
    assert {name for name, may in verbs.items() if ("nodes", "patch") in may} == {
        *("label-nodes", "run-job", "release-node", "restore-pools")
    }
    assert {name for name, may in verbs.items() if ("machineconfigpools", "patch") in may} == {
        *("claim-pools", "pause-pools", "edit-pools", "restore-pools")
    }


@proves("MUT-4")
def test_one_overlay_has_all_that_a_run_needs_and_says_nothing_else() -> None:
    """Check that the overlay contains the product, as in `knative`, and the mutex with CRDs, functions and accounts."""
    made, plain = overlay(WITH_MUTEX), overlay("knative")
    kinds = {item["spec"]["names"]["kind"] for item in of_kind(made, "CustomResourceDefinition")}
    assert {"MutexRule", "MutexTarget", "MutexRunConfig", "NodeMaintenance"} <= kinds
    assert pod_specs(made).keys() - pod_specs(plain).keys() == steps_of("mutex")
    assert pod_specs(made).keys() >= FUNCTIONS.keys() - (OPT_IN - steps_of("mutex"))


@proves("MUT-4a")
def test_the_release_steps_of_the_document_have_a_counterpart() -> None:
    """Check that docs/contributing.md describes the document's release steps with existing make targets."""
    text = (ROOT / "docs" / "contributing.md").read_text()
    (release,) = re.findall(r"\n## Release\n(.*?)(?:\n## |\Z)", text, re.DOTALL)
    assert "*Make Release Candidate*" in release
    targets = set(re.findall(r"`make ([a-z0-9-]+)", release))
    assert "container-build-and-push-community" in targets
    assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets)
