"""Removes an install from the cluster of the current kubeconfig: first its effects on nodes, then its objects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kube.cpu_labels.capabilities import CAPABILITIES_LABEL
from kube.cpu_labels.node_patch import MANAGED_LABEL
from kube.install_lease import LEASE_NAME as INSTALL_LEASE
from kube.mutex.objects import RUN_LABEL
from kube.node_conditions.conditions import CONDITIONS_LABEL
from kube.paths import LEASE_NAMESPACE
from kube.virtualization.migration_claims import LEASE_NAME as MIGRATIONS_LEASE
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from localcluster.deploy.kubectl import Kubectl, find_overlay
from localcluster.deploy.preflight import SIGNING_SECRET, list_signing_namespaces
from localcluster.errors import LocalClusterError

ALPHA_RESOURCE = "nodemaintenances.kubevirt.io"
EFFECTFUL_RESOURCES = (
    "nodemaintenances.nodemaintenance.medik8s.io",
    "nodemaintenances.nodemaintenance.kubevirt.io",
    ALPHA_RESOURCE,
    "mutexrunconfigs.openshift-optional.skrzypek.io",
)
"""Resources whose objects have a finalizer, which the functions remove after they have restored nodes or pools."""
ALPHA_SOURCE = "maintenances-v1alpha1"
"""Name of the ApiServerSource in manifests/v1alpha1. If it does not exist, another operator owns `ALPHA_RESOURCE`."""
POD_SOURCE = "podsource"
"""Name of the ContainerSource that each install has."""
SHARED_SELECTOR = "!nodemaintenance.dev/shared"
"""Label selector of the objects that no other product uses."""
END_TIMEOUT_SECONDS = 600
"""Seconds to wait until the functions have restored all nodes and pools."""
LABEL_TIMEOUT_SECONDS = 60.0
"""Seconds to wait until the functions have removed their labels from the nodes."""


def remove(overlay: str, force: bool) -> None:
    """Remove an install, or an overlay that contains only a part of one. Raises `LocalClusterError` with the reason.

    If maintenances or upgrade runs exist, nothing is removed; with `force`, they are ended first.
    """
    try:
        folder, kubectl = find_overlay(overlay), Kubectl.find()
        rendered = kubectl.render(folder)
        manifests = kubectl.parse(rendered)
        is_install = any(manifest["kind"] == "ContainerSource" for manifest in manifests)
        _check_no_other_install(kubectl, manifests)
        names_by_resource = {
            resource: _list_object_names(kubectl, resource)
            for resource in _list_own_resources(kubectl, manifests, is_install)
        }
        live_objects = {resource: names for resource, names in names_by_resource.items() if names}
        if live_objects and not force:
            raise LocalClusterError(_format_existing_objects_error(live_objects))
        for resource in live_objects:
            _delete_all_and_wait(kubectl, resource)
    except LocalClusterError as error:
        raise LocalClusterError(f"the install was not removed: {error}") from None
    if is_install:
        _remove_node_labels(kubectl, list_signing_namespaces(manifests))
    for deletion in _list_deletions(manifests, is_install):
        if not kubectl.show("delete", "--ignore-not-found", *deletion, stdin=rendered):
            raise LocalClusterError(
                f"kubectl did not delete all of {overlay}: fix the errors above, then run `make undeploy` again"
            )


def _list_deletions(manifests: Sequence[Mapping[str, Any]], is_install: bool) -> list[tuple[str, ...]]:
    """Return each `kubectl delete`'s arguments: for the overlay, and for other objects that the install created."""
    deletions: list[tuple[str, ...]] = [("-f", "-", "-l", SHARED_SELECTOR)]
    if is_install:
        deletions += [("secret", SIGNING_SECRET, "-n", namespace) for namespace in list_signing_namespaces(manifests)]
        deletions += [
            ("poddisruptionbudgets", "-A", "-l", VMI_UID_LABEL),
            ("jobs", "-A", "-l", RUN_LABEL),
            ("leases", INSTALL_LEASE, MIGRATIONS_LEASE, "-n", LEASE_NAMESPACE),
        ]
    return deletions


def _list_own_resources(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]], is_install: bool) -> list[str]:
    """Return the resources whose objects only this install can end: those of its CRDs, and of manifests/v1alpha1."""
    own = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "CustomResourceDefinition"}
    if is_install and _list_objects(kubectl, "apiserversources.sources.knative.dev", f"metadata.name={ALPHA_SOURCE}"):
        own.add(ALPHA_RESOURCE)
    return [resource for resource in EFFECTFUL_RESOURCES if resource in own]


def _check_no_other_install(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if another namespace contains an install, which needs the CRDs and ClusterRoles."""
    own_namespaces = {manifest["metadata"].get("namespace", "") for manifest in manifests}
    sources = _list_objects(kubectl, "containersources.sources.knative.dev", f"metadata.name={POD_SOURCE}")
    others = sorted({source["metadata"]["namespace"] for source in sources} - own_namespaces)
    if others:
        raise LocalClusterError(
            f'namespace {others[0]} has another install: see "Remove one of two installs" in docs/uninstall.md'
        )


def _list_object_names(kubectl: Kubectl, resource: str) -> list[str]:
    return [item["metadata"]["name"] for item in _list_objects(kubectl, resource)]


def _list_objects(kubectl: Kubectl, resource: str, field_selector: str = "") -> list[Mapping[str, Any]]:
    """Return all objects of a resource, or an empty list if the API server does not serve the resource."""
    arguments = ("get", resource, "-A", "-o", "json", f"--field-selector={field_selector}")
    done = kubectl.run(*arguments, check=False)
    if done.returncode and "the server doesn't have a resource type" in done.stderr:
        return []
    if done.returncode:
        raise LocalClusterError(f"cannot list {resource}: {done.stderr.strip()}")
    items: list[Mapping[str, Any]] = json.loads(done.stdout)["items"]
    return items


def _format_existing_objects_error(live_objects: Mapping[str, Sequence[str]]) -> str:
    """Return an error message that lists the objects to end first, and the two ways to end them."""
    described = "; ".join(f"{resource}: {', '.join(names)}" for resource, names in live_objects.items())
    return (
        f"these objects change nodes, and only the running functions can restore the nodes: {described}: end them "
        "with `kubectl maintenance stop` and `kubectl delete`, or run `make undeploy` with FORCE=1, which ends them all"
    )


def _delete_all_and_wait(kubectl: Kubectl, resource: str) -> None:
    """Delete all objects of a resource, and wait until the functions have restored what the objects changed."""
    if not kubectl.show("delete", resource, "--all", "-A", f"--timeout={END_TIMEOUT_SECONDS}s"):
        left = ", ".join(_list_object_names(kubectl, resource))
        raise LocalClusterError(
            f"{resource} {left} did not end within {END_TIMEOUT_SECONDS} s: check with `kubectl get pods -A -l "
            "app.kubernetes.io/part-of=node-maintenance` that the functions run, then run `make undeploy` again"
        )


def _remove_node_labels(kubectl: Kubectl, namespaces: Iterable[str]) -> None:
    """Delete the CPU capabilities, and wait until the functions have removed all labels and conditions from the nodes.

    If labels remain after the timeout, for example because a function does not run, print them and return.
    """
    for namespace in namespaces:
        kubectl.show("delete", "configmaps", "--ignore-not-found", "-n", namespace, "-l", CAPABILITIES_LABEL)
    deadline = time.monotonic() + LABEL_TIMEOUT_SECONDS
    for label in (MANAGED_LABEL, CONDITIONS_LABEL):
        while labelled := kubectl.run("get", "nodes", "-l", label, "-o", "name").stdout.split():
            if time.monotonic() > deadline:
                print(f"these nodes keep the label {label} (see docs/uninstall.md): {', '.join(labelled)}")
                break
            time.sleep(1)
