"""Removes an install from the cluster of the current kubeconfig: first its effects on nodes, then its objects."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kube.cpu_labels.capabilities import CAPABILITIES_LABEL
from kube.cpu_labels.node_patch import MANAGED_LABEL
from kube.install_lease import LEASE_NAME
from kube.mutex.objects import RUN_LABEL
from kube.paths import LEASE_NAMESPACE
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from localcluster.deploy.kubectl import Kubectl, find_overlay
from localcluster.deploy.preflight import SIGNING_SECRET, list_signing_namespaces
from localcluster.errors import LocalClusterError

EFFECTFUL_RESOURCES = (
    "nodemaintenances.nodemaintenance.medik8s.io",
    "nodemaintenances.nodemaintenance.kubevirt.io",
    "nodemaintenances.kubevirt.io",
    "mutexrunconfigs.openshift-optional.skrzypek.io",
)
"""Resources whose objects have a finalizer, which the functions remove after they have restored nodes or pools."""
POD_SOURCE = "podsource"
"""Name of the ContainerSource that each install has."""
SHARED_SELECTOR = "!nodemaintenance.dev/shared"
"""Label selector of the objects that no other product uses."""
END_TIMEOUT_SECONDS = 600
"""Seconds to wait until the functions have restored all nodes and pools."""
LABEL_TIMEOUT_SECONDS = 60.0
"""Seconds to wait until `label-cpu` has removed its labels from the nodes."""


def remove(overlay: str, force: bool) -> None:
    """Remove an install. Raises `LocalClusterError` with the reason, and prints what it removes.

    If maintenances or upgrade runs exist, the function removes nothing; with `force`, it first ends them.
    """
    try:
        folder, kubectl = find_overlay(overlay), Kubectl.find()
        rendered = kubectl.render(folder)
        manifests = kubectl.parse(rendered)
        _check_only_install(kubectl, manifests)
        live_objects = {
            resource: names for resource in EFFECTFUL_RESOURCES if (names := _list_names(kubectl, resource))
        }
        if live_objects and not force:
            raise LocalClusterError(_format_refusal(live_objects))
        for resource in live_objects:
            _end_all(kubectl, resource)
        for namespace in list_signing_namespaces(manifests):
            _remove_cpu_labels(kubectl, namespace)
    except LocalClusterError as error:
        raise LocalClusterError(f"the install was not removed: {error}") from None
    deletions: list[tuple[str, ...]] = [("-f", "-", "-l", SHARED_SELECTOR)]
    deletions += [("secret", SIGNING_SECRET, "-n", namespace) for namespace in list_signing_namespaces(manifests)]
    deletions += [
        ("poddisruptionbudgets", "-A", "-l", VMI_UID_LABEL),
        ("jobs", "-A", "-l", RUN_LABEL),
        ("lease", LEASE_NAME, "-n", LEASE_NAMESPACE),
    ]
    for deletion in deletions:
        if not kubectl.show("delete", "--ignore-not-found", *deletion, stdin=rendered):
            raise LocalClusterError(
                f"kubectl did not delete all of {overlay}: fix the errors above, then run `make undeploy` again"
            )


def _check_only_install(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if another install, in another namespace, needs the CRDs and cluster roles."""
    own_namespaces = list_signing_namespaces(manifests)
    sources = _list_objects(kubectl, "containersources.sources.knative.dev", f"metadata.name={POD_SOURCE}")
    others = sorted({source["metadata"]["namespace"] for source in sources} - own_namespaces)
    if own_namespaces and others:
        raise LocalClusterError(
            f'namespace {others[0]} has another install: see "Remove one of two installs" in docs/uninstall.md'
        )


def _list_names(kubectl: Kubectl, resource: str) -> list[str]:
    return [item["metadata"]["name"] for item in _list_objects(kubectl, resource)]


def _list_objects(kubectl: Kubectl, resource: str, field_selector: str = "") -> list[Mapping[str, Any]]:
    """Return the objects of a resource in all namespaces, none if the API server does not serve the resource."""
    arguments = ("get", resource, "-A", "-o", "json", f"--field-selector={field_selector}")
    done = kubectl.run(*arguments, check=False)
    if done.returncode and "the server doesn't have a resource type" in done.stderr:
        return []
    if done.returncode:
        raise LocalClusterError(f"cannot list {resource}: {done.stderr.strip()}")
    items: list[Mapping[str, Any]] = json.loads(done.stdout)["items"]
    return items


def _format_refusal(live_objects: Mapping[str, Sequence[str]]) -> str:
    """Describe the objects that must be ended first, and the two ways to end them."""
    described = "; ".join(f"{resource}: {', '.join(names)}" for resource, names in live_objects.items())
    return (
        f"these objects change nodes, and only the running functions can restore the nodes: {described}: end them "
        "with `kubectl maintenance stop` and `kubectl delete`, or run `make undeploy` with FORCE=1, which ends them all"
    )


def _end_all(kubectl: Kubectl, resource: str) -> None:
    """Delete all objects of a resource, and wait until the functions have restored what the objects changed."""
    if not kubectl.show("delete", resource, "--all", "-A", f"--timeout={END_TIMEOUT_SECONDS}s"):
        left = ", ".join(_list_names(kubectl, resource))
        raise LocalClusterError(
            f"{resource} {left} did not end within {END_TIMEOUT_SECONDS} s: check with `kubectl get pods -A -l "
            "app.kubernetes.io/part-of=node-maintenance` that the functions run, then run `make undeploy` again"
        )


def _remove_cpu_labels(kubectl: Kubectl, namespace: str) -> None:
    """Delete the CPU capabilities in a namespace, and wait until `label-cpu` has removed its labels from the nodes.

    Labels that stay, for example because the function does not run, are reported and stop nothing.
    """
    selector = ("-n", namespace, "-l", CAPABILITIES_LABEL)
    if not kubectl.run("get", "configmaps", *selector, "-o", "name").stdout:
        return
    kubectl.show("delete", "configmaps", *selector)
    deadline = time.monotonic() + LABEL_TIMEOUT_SECONDS
    while labelled := kubectl.run("get", "nodes", "-l", MANAGED_LABEL, "-o", "name").stdout.split():
        if time.monotonic() > deadline:
            print(f"these nodes keep their CPU labels (see docs/uninstall.md): {', '.join(labelled)}")
            return
        time.sleep(1)
