"""Tests for the permissions of the component `mutex` on a real API server (table 5.3 of the requirements)."""

from __future__ import annotations

import re

import pytest

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from tests.manifests.documented_rights import OWN_NAMESPACE, Right
from tests.manifests.rendering import MUTEX_OVERLAY, ROOT, filter_by_kind, get_pod_templates, render_overlay
from tests.manifests.test_rights import list_extra_rights
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS, list_steps

JOBS_NAMESPACE = "node-upgrade-mutex-operator"
MUTEX_RESOURCES = ("mutexrules", "mutextargets", "mutexrunconfigs")
EXPECTED_VERBS = {
    "jobs": {"create", "get", "list"},
    "nodes": {"get", "list", "patch"},
    "clusterversions": {"get"},
    "machineconfigpools": {"get", "list", "patch"},
    "events": {"create"},
    "nodemaintenances": {"list"},
}


def list_combined_rights(cluster: LocalCluster, namespace: str) -> set[Right]:
    return set[Right]().union(*(list_extra_rights(cluster, account, namespace) for account in list_steps("mutex")))


@proves("MUT-1", "MUT-1a")
def test_mutex_service_accounts_have_documented_permissions(installed_cluster: LocalCluster) -> None:
    """Check that the ServiceAccounts together have exactly the documented permissions, except common ones.

    They may not delete anything or update Jobs, and may only read the ClusterVersion.
    """
    rights = list_combined_rights(installed_cluster, JOBS_NAMESPACE)
    granted = {
        resource: {right.verb for right in rights if right.resource == resource}
        for resource in {right.resource for right in rights}
        if not resource.startswith(MUTEX_RESOURCES)
    }
    assert granted == EXPECTED_VERBS
    documented = {(right.resource, right.verb) for right in rights if right.resource.startswith(MUTEX_RESOURCES)}
    assert {verb for _, verb in documented} == {"get", "list", "patch"}
    assert {resource for resource, verb in documented if verb == "patch"} == {
        "mutexrunconfigs",
        *(f"{kind}/status" for kind in MUTEX_RESOURCES),
    }


@proves("MUT-1", "MUT-1a")
@pytest.mark.parametrize("namespace", [OWN_NAMESPACE, "kube-system", "default"])
def test_jobs_can_be_created_only_in_jobs_namespace(installed_cluster: LocalCluster, namespace: str) -> None:
    """Check that Jobs can be created in only one namespace, so that a MutexRule cannot run pods with any account."""
    assert Right("batch", "jobs", "create", JOBS_NAMESPACE) in list_combined_rights(installed_cluster, JOBS_NAMESPACE)
    assert Right("batch", "jobs", "create", namespace) not in list_combined_rights(installed_cluster, namespace)


@proves("MUT-1")
def test_only_expected_functions_have_write_permissions(installed_cluster: LocalCluster) -> None:
    """Check that only the expected functions may create Jobs, patch nodes or patch MachineConfigPools."""
    rights_by_step = {
        name: {(right.resource, right.verb) for right in list_extra_rights(installed_cluster, name, JOBS_NAMESPACE)}
        for name in list_steps("mutex")
    }
    assert {name for name, granted in rights_by_step.items() if ("jobs", "create") in granted} == {
        "run-job",
        "check-rule",
    }
    assert {name for name, granted in rights_by_step.items() if ("nodes", "patch") in granted} == {
        *("label-nodes", "run-job", "release-node", "restore-pools")
    }
    assert {name for name, granted in rights_by_step.items() if ("machineconfigpools", "patch") in granted} == {
        *("claim-pools", "pause-pools", "edit-pools", "restore-pools")
    }


@proves("MUT-4")
def test_mutex_overlay_is_complete() -> None:
    """Check that the overlay contains the same objects as `knative`, and the CRDs and functions of `mutex`."""
    with_mutex, without_mutex = render_overlay(MUTEX_OVERLAY), render_overlay("knative")
    kinds = {crd["spec"]["names"]["kind"] for crd in filter_by_kind(with_mutex, "CustomResourceDefinition")}
    assert {"MutexRule", "MutexTarget", "MutexRunConfig", "NodeMaintenance"} <= kinds
    assert get_pod_templates(with_mutex).keys() - get_pod_templates(without_mutex).keys() == list_steps("mutex")
    assert get_pod_templates(with_mutex).keys() >= FUNCTIONS.keys() - (OPT_IN_STEPS - list_steps("mutex"))


@proves("MUT-4a")
def test_release_page_describes_steps_with_existing_make_targets() -> None:
    """Check that docs/release.md describes the release steps of the requirements with existing make targets."""
    text = (ROOT / "docs" / "release.md").read_text()
    assert "*Make Release Candidate*" in text
    targets = set(re.findall(r"\bmake ([a-z0-9-]+)", text))
    assert targets >= {"release", "release-files", "container-build-and-push-community", "container-build"}
    makefile = (ROOT / "Makefile").read_text()
    defined = {name for line in re.findall(r"^([a-z0-9 -]+):", makefile, re.MULTILINE) for name in line.split()}
    assert targets <= defined
