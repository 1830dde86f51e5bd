"""Applies an overlay to the cluster of the current kubeconfig, if the cluster meets the overlay's requirements."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from localcluster.deploy.kubectl import Kubectl, find_overlay
from localcluster.deploy.preflight import (
    KNATIVE_DOMAIN,
    PLACEHOLDER_IMAGE,
    SIGNING_SECRET,
    Kind,
    find_accounts_losing_roles,
    list_conflicts,
    list_namespaces,
    list_objects_with_placeholder_image,
    list_pods_with_key_variable,
    list_required_kinds,
    list_signing_namespaces,
)
from localcluster.errors import LocalClusterError

POD_SELECTOR = "app.kubernetes.io/part-of=node-maintenance"
"""Label selector of the product's pods."""
BINDINGS_PATH = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def deploy(overlay: str, image: str = "", pushed_image: str = "") -> None:
    """Apply an overlay, with `image`, or else `pushed_image`, instead of the placeholder image.

    Raises `LocalClusterError` if the overlay cannot be applied, or if `image` is given but the overlay does not contain
    the placeholder image. After an error, nothing was applied, except possibly the signing key's Secret, and the
    objects that `kubectl apply` accepted.
    """
    try:
        kubectl, rendered = _render_if_applicable(overlay, image, pushed_image)
    except LocalClusterError as error:
        raise LocalClusterError(f"nothing was applied: {error}") from None
    if not kubectl.show("apply", "-f", "-", stdin=rendered):
        raise LocalClusterError(
            f"kubectl did not apply all of {overlay}: fix the errors above, then run `make deploy` again"
        )


def _render_if_applicable(overlay: str, image: str, pushed_image: str) -> tuple[Kubectl, str]:
    """Check the cluster, create the signing key, and return kubectl and the overlay's rendered YAML."""
    if image.startswith("/"):
        raise LocalClusterError(f"the image {image} has no registry: set REGISTRY, such as REGISTRY=registry.example")
    folder, kubectl = find_overlay(overlay), Kubectl.find()
    rendered = kubectl.render(folder)
    manifests = kubectl.parse(rendered)
    _check_kinds_served(kubectl, manifests)
    _check_no_other_install(kubectl, manifests)
    object_names = list_objects_with_placeholder_image(manifests)
    if image and not object_names:
        raise LocalClusterError(
            f"the overlay does not contain the placeholder image {PLACEHOLDER_IMAGE}, which {image} would replace: "
            "change the image in the overlay, or omit VERSION"
        )
    if object_names:
        image = image or pushed_image
        if not image:
            raise LocalClusterError(
                f"{', '.join(object_names)} would run the placeholder image {PLACEHOLDER_IMAGE}: push an image with "
                "`VERSION=1.2.3 make container-build-and-push-community`, or set the image under `images` in an "
                "overlay of your own (see docs/install.md)"
            )
        print(f"image: {image}")
        rendered = kubectl.render(folder, image)
    _check_no_pods_without_signing_key(kubectl, manifests)
    _ensure_signing_secret(kubectl, manifests)
    return kubectl, rendered


def _check_kinds_served(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the cluster does not serve the kind of one of these manifests."""
    missing = sorted(list_required_kinds(manifests) - _list_served_kinds(kubectl, manifests))
    if missing:
        names = ", ".join(f"{kind} ({version})" for version, kind in missing)
        remedy = (
            ": install Knative first (see docs/install.md)"
            if any(KNATIVE_DOMAIN in version for version, _ in missing)
            else ""
        )
        raise LocalClusterError(f"the cluster does not serve {names}{remedy}")


def _check_no_other_install(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if these manifests would take over objects or roles of another install."""
    live_objects = [
        live_object
        for namespace in list_namespaces(manifests)
        for live_object in _list_live_objects(kubectl, namespace)
    ]
    if conflicts := [*list_conflicts(manifests, live_objects), *_describe_accounts_losing_roles(kubectl, manifests)]:
        remedy = 'see "Change the broker or the overlay" in docs/upgrade.md'
        raise LocalClusterError(f"conflicts with another install: {'; '.join(conflicts)}; {remedy}")


def _check_no_pods_without_signing_key(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise `LocalClusterError` if the signing key's Secret does not exist, but pods already run without the key.

    If the key were created, new pods would sign events with it and permanently reject the running pods' events. Only
    the administrator may decide to delete the running pods.
    """
    for namespace in list_signing_namespaces(manifests):
        path = f"/api/v1/namespaces/{namespace}"
        running = list_pods_with_key_variable(
            kubectl.get_raw(f"{path}/pods?labelSelector={quote(POD_SELECTOR)}").get("items", ())
        )
        if running and not kubectl.get_raw(f"{path}/secrets/{SIGNING_SECRET}"):
            raise LocalClusterError(
                f"namespace {namespace} lacks the Secret {SIGNING_SECRET}, and pods run without "
                f"it, such as {running[0]}: while no maintenance is active, run these commands, then `make deploy` "
                "again (see docs/security.md): "
                f"kubectl create secret generic {SIGNING_SECRET} -n {namespace} "
                '--from-literal=key="$(openssl rand -hex 32)"; '
                f"kubectl delete pods -n {namespace} -l {POD_SELECTOR}"
            )


def _ensure_signing_secret(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> None:
    """Create the signing key's Secret in each namespace that needs it, unless it exists.

    If the manifests contain the namespace, the function applies it first.
    """
    for namespace in list_signing_namespaces(manifests):
        bodies = [
            manifest
            for manifest in manifests
            if manifest["kind"] == "Namespace" and manifest["metadata"]["name"] == namespace
        ]
        for body in bodies:
            kubectl.run("apply", "-f", "-", stdin=json.dumps(body))
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SIGNING_SECRET, "namespace": namespace}}
        body = {**secret, "stringData": {"key": secrets.token_urlsafe(32)}}
        created = kubectl.run("create", "-f", "-", stdin=json.dumps(body), check=False)
        if created.returncode and "AlreadyExists" not in created.stderr:
            raise LocalClusterError(f"cannot create Secret {namespace}/{SIGNING_SECRET}: {created.stderr.strip()}")


def _list_served_kinds(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Return the kinds that the cluster serves in the API groups of these manifests."""
    found: set[Kind] = set()
    for version in {manifest["apiVersion"] for manifest in manifests}:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found |= {(version, resource["kind"]) for resource in kubectl.get_raw(path).get("resources", ())}
    return found


def _describe_accounts_losing_roles(kubectl: Kubectl, manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each existing ServiceAccount that would lose its ClusterRoleBindings.

    Such a ServiceAccount belongs to another install, or to another overlay's deployment of the same functions.
    """
    lost = sorted(find_accounts_losing_roles(manifests, kubectl.get_raw(BINDINGS_PATH).get("items", ())))
    existing = (pair for pair in lost if kubectl.get_raw("/api/v1/namespaces/{}/serviceaccounts/{}".format(*pair)))
    return [f"ServiceAccount {namespace}/{name} would lose its cluster roles" for namespace, name in existing]


def _list_live_objects(kubectl: Kubectl, namespace: str) -> list[Mapping[str, Any]]:
    """Return the Brokers, and the Services of API version v1, in a namespace."""
    paths = (
        f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers",
        f"/api/v1/namespaces/{namespace}/services",
    )
    found: list[Mapping[str, Any]] = []
    for kind, path in zip(("Broker", "Service"), paths, strict=True):
        found += [{**item, "kind": kind} for item in kubectl.get_raw(path).get("items", ())]
    return found
