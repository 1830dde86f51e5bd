"""Tests for the CA bundle and the annotated webhook rules that are injected into a CA injection target."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube.certificates.ca_injection import RULES_ANNOTATION, build_injection_patch, has_ca_bundle_and_annotated_rules
from kube.paths import Object

RULE = {"apiGroups": ["example.com"], "operations": ["CREATE"], "scope": "Cluster"}
OTHER_RULE = {"apiGroups": ["other.example.com"], "operations": ["CREATE"]}


def make_webhook_configuration(rules: str | None, *webhooks: dict[str, Any]) -> Object:
    """Return a webhook configuration with these webhooks and, unless `rules` is None, with the rules annotation."""
    annotations = {} if rules is None else {RULES_ANNOTATION: rules}
    metadata = {"name": "hook", "resourceVersion": "7", "annotations": annotations}
    hooks = [{"clientConfig": {}, **webhook} for webhook in webhooks]
    return {"kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": hooks}


def test_webhook_rules_and_ca_bundle_are_injected_in_one_patch() -> None:
    """Check that one patch injects CA bundle and annotated rules, and keeps the rules of a webhook that has rules."""
    configuration = make_webhook_configuration(json.dumps([RULE]), {}, {"rules": [OTHER_RULE]})

    patch = build_injection_patch(configuration, "bundle")

    assert [webhook["rules"] for webhook in patch["webhooks"]] == [[RULE], [OTHER_RULE]]
    assert has_ca_bundle_and_annotated_rules({**configuration, **patch}, "bundle")
    assert "rules" not in configuration["webhooks"][0]


def test_removed_webhook_rules_are_injected_again() -> None:
    """Check that annotated rules are injected again into a webhook without rules.

    An upgrade of the product removes the rules if an earlier version's manifest contained them.
    """
    configuration = make_webhook_configuration(json.dumps([RULE]), {})
    injected = {
        **configuration,
        **build_injection_patch(configuration, "bundle"),
        "metadata": configuration["metadata"],
    }
    assert has_ca_bundle_and_annotated_rules(injected, "bundle")

    del injected["webhooks"][0]["rules"]

    assert not has_ca_bundle_and_annotated_rules(injected, "bundle")


def make_managed_fields(*managers: str) -> list[Object]:
    """Return the `managedFields` of a configuration whose webhook `hook` got its rules from these managers."""
    fields: Object = {"f:webhooks": {'k:{"name":"hook"}': {"f:rules": {}}}}
    return [{"manager": manager, "fieldsV1": fields} for manager in managers]


@pytest.mark.parametrize(
    ("managers", "is_rule_kept"),
    [(["nodemaintenance"], False), (["nodemaintenance", "kubectl"], True), (["kubectl"], True)],
)
def test_changed_annotation_replaces_only_rules_of_product_field_manager(
    managers: list[str], is_rule_kept: bool
) -> None:
    """Check that a changed annotation replaces rules of only the product's field manager, not of another manager."""
    configuration = make_webhook_configuration(json.dumps([RULE]), {"name": "hook", "rules": [OTHER_RULE]})
    configuration = {
        **configuration,
        **build_injection_patch(configuration, "bundle"),
        "metadata": configuration["metadata"],
    }
    configuration["metadata"]["managedFields"] = make_managed_fields(*managers)

    assert has_ca_bundle_and_annotated_rules(configuration, "bundle") is is_rule_kept
    assert build_injection_patch(configuration, "bundle")["webhooks"][0]["rules"] == [
        OTHER_RULE if is_rule_kept else RULE
    ]


def test_api_server_defaults_of_webhook_rules_cause_no_injection() -> None:
    """Check that the API server's rule defaults are ignored, so that not every tick writes the configuration."""
    rule_without_scope = {"apiGroups": ["example.com"], "operations": ["CREATE"]}
    configuration = make_webhook_configuration(
        json.dumps([rule_without_scope]), {"name": "hook", "rules": [{**rule_without_scope, "scope": "*"}]}
    )
    configuration = {
        **configuration,
        **build_injection_patch(configuration, "bundle"),
        "metadata": configuration["metadata"],
    }
    configuration["metadata"]["managedFields"] = make_managed_fields("nodemaintenance")

    assert has_ca_bundle_and_annotated_rules(configuration, "bundle")


@pytest.mark.parametrize("rules", [None, "", "no JSON", "[", "[1]", '{"rules": 1}', "[]", "null"])
def test_only_ca_bundle_is_injected_if_rules_annotation_is_invalid(rules: str | None) -> None:
    configuration = make_webhook_configuration(rules, {})

    patch = build_injection_patch(configuration, "bundle")

    assert "rules" not in patch["webhooks"][0]
    assert has_ca_bundle_and_annotated_rules({**configuration, **patch}, "bundle")


def test_injection_target_without_webhooks_gets_no_rules() -> None:
    api_service = {
        **make_webhook_configuration(json.dumps([RULE])),
        "kind": "APIService",
        "spec": {"service": {"name": "api"}},
    }

    patch = build_injection_patch(api_service, "bundle")

    assert patch.keys() == {"metadata", "spec"}
    assert has_ca_bundle_and_annotated_rules({**api_service, **patch}, "bundle")
