"""Reasons not to apply an overlay: kinds that the cluster lacks, and conflicts with another install. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KNATIVE = ".knative.dev"
BROKER_CLASS = "eventing.knative.dev/broker.class"
KEY = "signing"
"""The Secret with the key that the product's programs sign events with."""
PLACEHOLDER = "nodemaintenance"
"""The image name in the manifests, which `images` of an overlay must replace: it is in no registry."""
LOOKED_AT = ("Broker", "Service", "ContainerSource")
"""Kinds whose namespace is needed for the checks before anything is applied."""
Kind = tuple[str, str]
"""An `apiVersion` and a `kind`."""


def needed(items: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Return the kinds that the cluster must already serve: those that the objects use but do not define."""
    defined = {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
        for spec in (item["spec"] for item in items if item["kind"] == "CustomResourceDefinition")
        for version in spec["versions"]
    }
    return {(item["apiVersion"], item["kind"]) for item in items} - defined


def placed(items: Sequence[Mapping[str, Any]], home: str) -> list[Mapping[str, Any]]:
    """Return the objects, with `home` as the namespace of each `LOOKED_AT` object that names none, as kubectl does."""
    return [
        {**item, "metadata": {"namespace": home, **item["metadata"]}} if item["kind"] in LOOKED_AT else item
        for item in items
    ]


def spaces(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the namespaces in which these objects have a Broker, or a core or Knative Service."""
    return sorted({item["metadata"]["namespace"] for item in items if item["kind"] in ("Broker", "Service")})


def obstacles(items: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each live object that these objects cannot replace because another choice of components created it.

    The class of a Broker is immutable. Knative Serving neither adopts a foreign core Service nor releases its own.
    """
    there = {(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]): item for item in live}
    found = []
    for item in items:
        kind, space, name = item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
        other = there.get((kind, space, name))
        if other is None:
            continue
        if kind == "Broker" and _class(other) != _class(item):
            found.append(f"Broker {space}/{name} is of the class {_class(other)}, not {_class(item)}")
        elif kind == "Service" and _is_of_serving(other) != (KNATIVE in item["apiVersion"]):
            whose = "" if _is_of_serving(other) else "not "
            found.append(f"Service {space}/{name} is {whose}of Knative Serving")
    return found


def robbed(items: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the ServiceAccounts that applying these objects would remove from live ClusterRoleBindings."""
    ours = {item["metadata"]["name"]: _accounts(item) for item in items if item["kind"] == "ClusterRoleBinding"}
    lost = (_accounts(item) - ours.get(item["metadata"]["name"], _accounts(item)) for item in live)
    return set().union(*lost)


def nameless(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the objects that would run the placeholder image, which cannot be pulled."""
    return [f"{item['kind']} {item['metadata']['name']}" for item in items if _has_placeholder(item)]


def _has_placeholder(part: Any) -> bool:
    """Return whether a container in this object, or in this part of one, has the placeholder image."""
    if isinstance(part, Mapping):
        return part.get("image") == PLACEHOLDER or any(map(_has_placeholder, part.values()))
    return isinstance(part, list) and any(map(_has_placeholder, part))


def unkeyed(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the pods that read the key at startup and have not terminated.

    If the key does not exist, all these pods run without it.
    """
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        and any(_reads_key(each) for container in pod["spec"]["containers"] for each in container.get("env", ()))
    ]


def _reads_key(variable: Mapping[str, Any]) -> bool:
    return bool(variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == KEY)


def _accounts(binding: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the ServiceAccounts among a binding's subjects, by namespace and name."""
    subjects = (each for each in binding.get("subjects") or () if each["kind"] == "ServiceAccount")
    return {(each["namespace"], each["name"]) for each in subjects}


def _class(broker: Mapping[str, Any]) -> str:
    return str((broker["metadata"].get("annotations") or {}).get(BROKER_CLASS, ""))


def _is_of_serving(service: Mapping[str, Any]) -> bool:
    """Return whether a core Service was created by Knative Serving."""
    return any(KNATIVE in owner["apiVersion"] for owner in service["metadata"].get("ownerReferences") or [])


def signing(items: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the namespaces whose programs sign events."""
    return {item["metadata"]["namespace"] for item in items if item["kind"] == "ContainerSource"}
