"""CA injection targets: objects with a CA bundle for the API server that request it by cert-manager's annotation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kube.paths import Object, segment

INJECT = "cert-manager.io/inject-ca-from"
"""Annotation: `namespace/name` of a server's Secret; for cert-manager, of a Certificate.

If Secret and Certificate have the same name, the annotation is valid for both.
"""
RULES = "nodemaintenance.dev/rules"
"""Annotation of a webhook configuration: the rules, in JSON, for webhooks that have none.

The rules are set in the same write as the bundle, so that the API server never calls a server that it cannot verify
yet. If an upgrade changes the annotation, rules that were set this way follow it. Rules that another client wrote stay.
"""
MANAGER = "nodemaintenance"
"""Our field manager name in `managedFields`."""
DEFAULTED = {"scope": "*"}
"""Default that the API server adds to a rule."""
CARRIERS = {
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
"""Kind → API path of its list."""
LARGE = ("CustomResourceDefinition",)
"""Kinds of which only the metadata is listed, because each pass would read megabytes."""


def asked_from(carrier: Object) -> tuple[str, str]:
    """Return the namespace and name of the Secret whose CA bundle the object requests, both "" for none."""
    value = str((carrier["metadata"].get("annotations") or {}).get(INJECT) or "")
    namespace, _, name = value.partition("/")
    return (namespace, name) if name else ("", "")


def carrier_path(carrier: Object) -> str:
    """Return the API path of the object."""
    return f"{CARRIERS[carrier['kind']]}/{segment(carrier['metadata']['name'])}"


def carries(carrier: Object, bundle: str) -> bool:
    """Return whether each `caBundle` of the object has this bundle, and its webhooks have the annotated rules."""
    wanted = _encoded(bundle)
    rules = _rules(carrier)
    is_asked = not rules or all(_rules_for(carrier, hook, rules) == hook.get("rules") for hook in carrier["webhooks"])
    return is_asked and all(place.get("caBundle") == wanted for place in _places(carrier))


def trusted(carrier: Object) -> str:
    """Return all certificates that the API server trusts because of this object."""
    return "".join(_decoded(place.get("caBundle")) for place in _places(carrier))


def injected(carrier: Object, bundle: str) -> Object:
    """Build the merge patch that sets every `caBundle` of the object, and the annotated rules.

    It fails if another client has changed the object since it was read.
    """
    version = {"metadata": {"resourceVersion": carrier["metadata"]["resourceVersion"]}}
    place = {"caBundle": _encoded(bundle)}
    if carrier["kind"] == "CustomResourceDefinition":
        return {**version, "spec": {"conversion": {"webhook": {"clientConfig": place}}}}
    if carrier["kind"] == "APIService":
        return {**version, "spec": place}
    rules = _rules(carrier)
    changed = [{**hook, "clientConfig": {**hook["clientConfig"], **place}} for hook in carrier["webhooks"]]
    if rules:
        changed = [{**hook, "rules": _rules_for(carrier, hook, rules)} for hook in changed]
    return {**version, "webhooks": changed}


def _places(carrier: Object) -> Iterator[dict[str, Any]]:
    """Yield the parts of the object that may have a `caBundle`."""
    if carrier["kind"] == "APIService":
        if (carrier.get("spec") or {}).get("service"):  # without it, the API server itself serves the API
            yield carrier["spec"]
        return
    if carrier["kind"] == "CustomResourceDefinition":
        webhook = ((carrier.get("spec") or {}).get("conversion") or {}).get("webhook") or {}
        if webhook.get("clientConfig"):
            yield webhook["clientConfig"]
        return
    for webhook in carrier.get("webhooks") or []:
        yield webhook["clientConfig"]


def _rules(carrier: Object) -> list[Object]:
    """Return the annotated rules; [] if they are missing or malformed, or if the object has no webhooks."""
    try:
        found = json.loads((carrier["metadata"].get("annotations") or {}).get(RULES) or "[]")
    except ValueError:
        return []
    return [{**DEFAULTED, **rule} for rule in found] if _are_rules(found) and carrier.get("webhooks") else []


def _are_rules(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(rule, dict) for rule in found)


def _rules_for(carrier: Object, hook: Mapping[str, Any], rules: list[Object]) -> list[Object]:
    """Return the rules that a webhook should have: its own if another client wrote them, else the annotated ones."""
    return hook["rules"] if hook.get("rules") and not _is_ours(carrier, hook) else rules


def _is_ours(carrier: Object, hook: Mapping[str, Any]) -> bool:
    """Return whether we are the only field manager of this webhook's rules."""
    key = f'k:{{"name":{json.dumps(hook.get("name"))}}}'
    entries = carrier["metadata"].get("managedFields") or []
    fields = ((each.get("manager"), (each.get("fieldsV1") or {}).get("f:webhooks") or {}) for each in entries)
    return {manager for manager, webhooks in fields if "f:rules" in (webhooks.get(key) or {})} == {MANAGER}


def _encoded(bundle: str) -> str:
    return base64.b64encode(bundle.encode()).decode()


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except ValueError:
        return ""
