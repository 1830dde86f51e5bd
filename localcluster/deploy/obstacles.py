"""What keeps an overlay from being applied: what the cluster lacks, or has of another install. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KNATIVE = ".knative.dev"
BROKER_CLASS = "eventing.knative.dev/broker.class"
KEY = "signing"
"""The Secret with the key that our programs sign events with."""
PLACEHOLDER = "nodemaintenance"
"""The image that our manifests name, for `images` of an overlay to replace: no registry has it."""
LOOKED_AT = ("Broker", "Service", "ContainerSource")
"""Kinds whose namespace is asked for before anything is applied."""
Kind = tuple[str, str]
"""An `apiVersion` and a `kind`."""


def needed(items: Sequence[Mapping[str, Any]]) -> set[Kind]:
    """Give the kinds that a cluster has to serve before these objects are applied: those that they do not define."""
    defined = {
        (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
        for spec in (item["spec"] for item in items if item["kind"] == "CustomResourceDefinition")
        for version in spec["versions"]
    }
    return {(item["apiVersion"], item["kind"]) for item in items} - defined


def placed(items: Sequence[Mapping[str, Any]], home: str) -> list[Mapping[str, Any]]:
    """Give these objects, those that are looked at with a namespace: kubectl puts what names none into `home`."""
    return [
        {**item, "metadata": {"namespace": home, **item["metadata"]}} if item["kind"] in LOOKED_AT else item
        for item in items
    ]


def spaces(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give the namespaces in which these objects have a Broker or a Service of either kind."""
    return sorted({item["metadata"]["namespace"] for item in items if item["kind"] in ("Broker", "Service")})


def obstacles(items: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which of the live objects these cannot replace: each that another choice of components has made.

    Nobody changes the class of a Broker, and Serving takes no Service that is not its own, nor gives one away.
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
    """Give the accounts, by namespace and name, from which these objects would take a live ClusterRoleBinding."""
    ours = {item["metadata"]["name"]: _accounts(item) for item in items if item["kind"] == "ClusterRoleBinding"}
    lost = (_accounts(item) - ours.get(item["metadata"]["name"], _accounts(item)) for item in live)
    return set().union(*lost)


def nameless(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which of these objects would run the placeholder, and so nothing at all."""
    return [f"{item['kind']} {item['metadata']['name']}" for item in items if _has_placeholder(item)]


def _has_placeholder(part: Any) -> bool:
    """Whether it is the image of a container somewhere in an object of whatever kind, or in a part of one."""
    if isinstance(part, Mapping):
        return part.get("image") == PLACEHOLDER or any(map(_has_placeholder, part.values()))
    return isinstance(part, list) and any(map(_has_placeholder, part))


def unkeyed(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name those of these pods that read the key when they start, and have not ended: all, where there is no key."""
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["status"]["phase"] not in ("Succeeded", "Failed")
        and any(_reads_key(each) for container in pod["spec"]["containers"] for each in container.get("env", ()))
    ]


def _reads_key(variable: Mapping[str, Any]) -> bool:
    return bool(variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == KEY)


def _accounts(binding: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The ServiceAccounts that it is for, by namespace and name."""
    subjects = (each for each in binding.get("subjects") or () if each["kind"] == "ServiceAccount")
    return {(each["namespace"], each["name"]) for each in subjects}


def _class(broker: Mapping[str, Any]) -> str:
    return str((broker["metadata"].get("annotations") or {}).get(BROKER_CLASS, ""))


def _is_of_serving(service: Mapping[str, Any]) -> bool:
    """Whether a Service of the core was made by Serving."""
    return any(KNATIVE in owner["apiVersion"] for owner in service["metadata"].get("ownerReferences") or [])


def signing(items: Sequence[Mapping[str, Any]]) -> set[str]:
    """Give the namespaces whose programs sign."""
    return {item["metadata"]["namespace"] for item in items if item["kind"] == "ContainerSource"}
