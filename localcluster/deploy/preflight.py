"""Finds reasons not to apply an overlay: missing kinds, and conflicts with another install. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KNATIVE_DOMAIN = ".knative.dev"
BROKER_CLASS_ANNOTATION = "eventing.knative.dev/broker.class"
SIGNING_SECRET = "signing"  # noqa: S105 - a name, not a secret
"""The Secret that contains the key with which the product signs events."""
PLACEHOLDER_IMAGE = "nodemaintenance"
"""The placeholder image in the manifests, which no registry contains; `images` of an overlay must replace it."""
NAMESPACED_KINDS = ("Broker", "Service", "ContainerSource")
"""Kinds of which the checks need each object's namespace before anything is applied."""
Kind = tuple[str, str]
"""An `apiVersion` and a `kind`."""


def list_required_kinds(manifests: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Return the kinds that the cluster must already serve: kinds that the manifests use but do not define."""
    defined = {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
        for spec in (manifest["spec"] for manifest in manifests if manifest["kind"] == "CustomResourceDefinition")
        for version in spec["versions"]
    }
    return {(manifest["apiVersion"], manifest["kind"]) for manifest in manifests} - defined


def set_default_namespace(manifests: Sequence[Mapping[str, Any]], namespace: str) -> list[Mapping[str, Any]]:
    """Return the manifests; those of `NAMESPACED_KINDS` without a namespace get `namespace`, as with kubectl."""
    return [
        {**manifest, "metadata": {"namespace": namespace, **manifest["metadata"]}}
        if manifest["kind"] in NAMESPACED_KINDS
        else manifest
        for manifest in manifests
    ]


def list_namespaces(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the namespaces in which the manifests define a Broker, or a core or Knative Service."""
    return sorted(
        {manifest["metadata"]["namespace"] for manifest in manifests if manifest["kind"] in ("Broker", "Service")}
    )


def list_conflicts(manifests: Sequence[Mapping[str, Any]], live_objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each live object that a manifest cannot replace, because an overlay with other components created it.

    The class of a Broker is immutable. Knative Serving neither adopts a foreign core Service nor releases its own.
    """
    live_by_key = {
        (live_object["kind"], live_object["metadata"]["namespace"], live_object["metadata"]["name"]): live_object
        for live_object in live_objects
    }
    conflicts = []
    for manifest in manifests:
        kind, namespace, name = (
            manifest["kind"],
            manifest["metadata"].get("namespace", ""),
            manifest["metadata"]["name"],
        )
        live = live_by_key.get((kind, namespace, name))
        if live is None:
            continue
        if kind == "Broker" and _get_broker_class(live) != _get_broker_class(manifest):
            conflicts.append(
                f"Broker {namespace}/{name} has the class {_get_broker_class(live)}, not {_get_broker_class(manifest)}"
            )
        elif kind == "Service" and _is_owned_by_serving(live) != (KNATIVE_DOMAIN in manifest["apiVersion"]):
            verb = "belongs" if _is_owned_by_serving(live) else "does not belong"
            conflicts.append(f"Service {namespace}/{name} {verb} to Knative Serving")
    return conflicts


def find_accounts_losing_roles(
    manifests: Sequence[Mapping[str, Any]], live_bindings: Sequence[Mapping[str, Any]]
) -> set[tuple[str, str]]:
    """Return the ServiceAccounts that live ClusterRoleBindings would lose if these manifests were applied."""
    new_accounts = {
        manifest["metadata"]["name"]: _list_service_accounts(manifest)
        for manifest in manifests
        if manifest["kind"] == "ClusterRoleBinding"
    }
    lost = (
        _list_service_accounts(binding) - new_accounts.get(binding["metadata"]["name"], _list_service_accounts(binding))
        for binding in live_bindings
    )
    return set().union(*lost)


def list_objects_with_placeholder_image(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the objects that would run the placeholder image, which cannot be pulled, as "KIND NAME"."""
    return [
        f"{manifest['kind']} {manifest['metadata']['name']}" for manifest in manifests if _has_placeholder(manifest)
    ]


def _has_placeholder(part: Any) -> bool:
    """Return whether `part`, a manifest or a value in one, contains a container with the placeholder image."""
    if isinstance(part, Mapping):
        return part.get("image") == PLACEHOLDER_IMAGE or any(map(_has_placeholder, part.values()))
    return isinstance(part, list) and any(map(_has_placeholder, part))


def list_pods_with_key_variable(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the pods that read the signing key at startup and have not terminated.

    If the key does not exist, all these pods run without it.
    """
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        and any(
            _reads_signing_key(variable)
            for container in pod["spec"]["containers"]
            for variable in container.get("env", ())
        )
    ]


def _reads_signing_key(variable: Mapping[str, Any]) -> bool:
    return bool(variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == SIGNING_SECRET)


def _list_service_accounts(binding: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the namespace and name of each ServiceAccount among a binding's subjects."""
    accounts = (subject for subject in binding.get("subjects") or () if subject["kind"] == "ServiceAccount")
    return {(account["namespace"], account["name"]) for account in accounts}


def _get_broker_class(broker: Mapping[str, Any]) -> str:
    return str((broker["metadata"].get("annotations") or {}).get(BROKER_CLASS_ANNOTATION, ""))


def _is_owned_by_serving(service: Mapping[str, Any]) -> bool:
    """Return whether a core Service was created by Knative Serving."""
    return any(KNATIVE_DOMAIN in owner["apiVersion"] for owner in service["metadata"].get("ownerReferences") or [])


def list_signing_namespaces(manifests: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the namespaces in which the product signs events: those with a ContainerSource."""
    return {manifest["metadata"]["namespace"] for manifest in manifests if manifest["kind"] == "ContainerSource"}
