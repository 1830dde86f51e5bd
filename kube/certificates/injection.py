"""Objects that carry a CA bundle for the API server, and ask for it by the annotation of cert-manager's users. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kube.paths import Object, segment

INJECT = "cert-manager.io/inject-ca-from"
"""`namespace/name`: for cert-manager a Certificate's, here the Secret of a server. Where both have one name, the same
annotation serves either of the two."""
RULES = "nodemaintenance.dev/rules"
"""Annotation of a webhook configuration: the rules, in JSON, that webhooks without any get together with the bundle. So
the API server asks nobody whose answer it could not believe yet. Rules that were written so follow the annotation when
an upgrade changes it; those that anybody else wrote stay."""
MANAGER = "nodemaintenance"
"""How the API server calls us in `managedFields`."""
DEFAULTED = {"scope": "*"}
"""What the API server adds to a rule that does not say it."""
CARRIERS = {
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
"""Kind → path of its list."""
LARGE = ("CustomResourceDefinition",)
"""Kinds of whose list only the metadata is read: the whole is megabytes, at every look."""


def asked_from(carrier: Object) -> tuple[str, str]:
    """Namespace and name of the Secret whose CA bundle it asks for, both "" for none."""
    value = str((carrier["metadata"].get("annotations") or {}).get(INJECT) or "")
    namespace, _, name = value.partition("/")
    return (namespace, name) if name else ("", "")


def carrier_path(carrier: Object) -> str:
    """Path of the object."""
    return f"{CARRIERS[carrier['kind']]}/{segment(carrier['metadata']['name'])}"


def carries(carrier: Object, bundle: str) -> bool:
    """Whether every place in it has this bundle, and the rules that come with it."""
    wanted = _encoded(bundle)
    rules = _rules(carrier)
    is_asked = not rules or all(_rules_for(carrier, hook, rules) == hook.get("rules") for hook in carrier["webhooks"])
    return is_asked and all(place.get("caBundle") == wanted for place in _places(carrier))


def trusted(carrier: Object) -> str:
    """What the API server trusts by it, all its places together."""
    return "".join(_decoded(place.get("caBundle")) for place in _places(carrier))


def injected(carrier: Object, bundle: str) -> Object:
    """Merge patch that puts the bundle into every place, and the rules with it, if nobody has written the object since
    it was read."""
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
    """The parts of it that may have `caBundle`."""
    if carrier["kind"] == "APIService":
        if (carrier.get("spec") or {}).get("service"):  # one without is served by the API server itself
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
    """The rules of its annotation; none where there is no list of them, and in what has no webhooks."""
    try:
        found = json.loads((carrier["metadata"].get("annotations") or {}).get(RULES) or "[]")
    except ValueError:
        return []
    return [{**DEFAULTED, **rule} for rule in found] if _are_rules(found) and carrier.get("webhooks") else []


def _are_rules(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(rule, dict) for rule in found)


def _rules_for(carrier: Object, hook: Mapping[str, Any], rules: list[Object]) -> list[Object]:
    """The rules that a webhook should have: its own if somebody else wrote them, else those of the annotation."""
    return hook["rules"] if hook.get("rules") and not _is_ours(carrier, hook) else rules


def _is_ours(carrier: Object, hook: Mapping[str, Any]) -> bool:
    """Whether we, and nobody else, wrote the rules of this webhook."""
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
