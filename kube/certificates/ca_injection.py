"""CA injection targets: objects whose `caBundle` is requested with cert-manager's annotation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from kube.paths import Object, encode_path_segment

INJECT_ANNOTATION = "cert-manager.io/inject-ca-from"
"""Annotation that names the Secret with the CA bundle to inject, as `namespace/name`.

cert-manager expects the name of a Certificate in this annotation. If the Secret and the Certificate have the same name,
the annotation works for both.
"""
RULES_ANNOTATION = "nodemaintenance.dev/rules"
"""Annotation on a webhook configuration with the rules, as JSON, to set on its webhooks without rules.

The rules are set in the same write as the CA bundle, so that the API server never calls a webhook server that it cannot
verify yet. If an upgrade changes the annotation, the rules that were set from it change, too. Rules that another client
wrote are not changed.
"""
FIELD_MANAGER = "nodemaintenance"
"""This project's field manager name in `managedFields`."""
RULE_DEFAULTS = {"scope": "*"}
"""Defaults that the API server sets in a webhook rule."""
TARGET_PATHS = {
    "ValidatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
"""API path of the list of CA injection targets, by kind."""
METADATA_ONLY_KINDS = ("CustomResourceDefinition",)
"""Kinds to list with metadata only, because a list of complete objects would take megabytes in each pass."""


def parse_source_secret(target: Object) -> tuple[str, str]:
    """Return the namespace and name of the Secret whose CA bundle the object requests, or two empty strings."""
    value = str((target["metadata"].get("annotations") or {}).get(INJECT_ANNOTATION) or "")
    namespace, _, name = value.partition("/")
    return (namespace, name) if name else ("", "")


def build_target_path(target: Object) -> str:
    """Return the API path of the CA injection target."""
    return f"{TARGET_PATHS[target['kind']]}/{encode_path_segment(target['metadata']['name'])}"


def has_ca_bundle_and_annotated_rules(target: Object, bundle: str) -> bool:
    """Return whether every `caBundle` of the object is this bundle, and its webhooks have the annotated rules."""
    encoded_bundle = _encode_bundle(bundle)
    rules = _parse_annotated_rules(target)
    has_rules = not rules or all(_select_rules(target, hook, rules) == hook.get("rules") for hook in target["webhooks"])
    return has_rules and all(
        client_config.get("caBundle") == encoded_bundle for client_config in _iterate_client_configs(target)
    )


def get_trusted_bundle(target: Object) -> str:
    """Return all CA certificates in the object's `caBundle` fields, which the API server trusts."""
    return "".join(_decode_bundle(client_config.get("caBundle")) for client_config in _iterate_client_configs(target))


def build_injection_patch(target: Object, bundle: str) -> Object:
    """Build the merge patch that sets every `caBundle` of the object and the annotated rules.

    The patch fails if another client has changed the object since it was read.
    """
    version = {"metadata": {"resourceVersion": target["metadata"]["resourceVersion"]}}
    ca_field = {"caBundle": _encode_bundle(bundle)}
    if target["kind"] == "CustomResourceDefinition":
        return {**version, "spec": {"conversion": {"webhook": {"clientConfig": ca_field}}}}
    if target["kind"] == "APIService":
        return {**version, "spec": ca_field}
    rules = _parse_annotated_rules(target)
    changed = [{**hook, "clientConfig": {**hook["clientConfig"], **ca_field}} for hook in target["webhooks"]]
    if rules:
        changed = [{**hook, "rules": _select_rules(target, hook, rules)} for hook in changed]
    return {**version, "webhooks": changed}


def _iterate_client_configs(target: Object) -> Iterator[dict[str, Any]]:
    """Yield those parts of the object that contain a `caBundle`."""
    if target["kind"] == "APIService":
        if (target.get("spec") or {}).get("service"):  # without a service, the API server serves the API
            yield target["spec"]
        return
    if target["kind"] == "CustomResourceDefinition":
        webhook = ((target.get("spec") or {}).get("conversion") or {}).get("webhook") or {}
        if webhook.get("clientConfig"):
            yield webhook["clientConfig"]
        return
    for webhook in target.get("webhooks") or []:
        yield webhook["clientConfig"]


def _parse_annotated_rules(target: Object) -> list[Object]:
    """Return the rules in the annotation; [] if it is missing or malformed, or if the object has no webhooks."""
    try:
        rules = json.loads((target["metadata"].get("annotations") or {}).get(RULES_ANNOTATION) or "[]")
    except ValueError:
        return []
    is_valid = isinstance(rules, list) and all(isinstance(rule, dict) for rule in rules)
    return [{**RULE_DEFAULTS, **rule} for rule in rules] if is_valid and target.get("webhooks") else []


def _select_rules(target: Object, webhook: Mapping[str, Any], rules: list[Object]) -> list[Object]:
    """Return the rules for a webhook: another client's rules if it has any, else the annotated rules."""
    return webhook["rules"] if webhook.get("rules") and not _owns_rules(target, webhook) else rules


def _owns_rules(target: Object, webhook: Mapping[str, Any]) -> bool:
    """Return whether this project is the only field manager of the webhook's rules."""
    key = f'k:{{"name":{json.dumps(webhook.get("name"))}}}'
    entries = target["metadata"].get("managedFields") or []
    fields = ((entry.get("manager"), (entry.get("fieldsV1") or {}).get("f:webhooks") or {}) for entry in entries)
    return {manager for manager, webhooks in fields if "f:rules" in (webhooks.get(key) or {})} == {FIELD_MANAGER}


def _encode_bundle(bundle: str) -> str:
    return base64.b64encode(bundle.encode()).decode()


def _decode_bundle(value: object) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except ValueError:
        return ""
