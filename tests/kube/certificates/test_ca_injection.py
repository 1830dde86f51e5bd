"""Tests of what is injected into a CA injection target: the CA bundle and the annotated webhook rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube.certificates.ca_injection import RULES, carries, injected
from kube.paths import Object

RULE = {"apiGroups": ["example.com"], "operations": ["CREATE"], "scope": "Cluster"}
OTHER = {"apiGroups": ["other.example.com"], "operations": ["CREATE"]}


def configuration(rules: str | None, *webhooks: dict[str, Any]) -> Object:
    """Return a configuration with these webhooks and, unless `rules` is None, with the rules annotation."""
    annotations = {} if rules is None else {RULES: rules}
    metadata = {"name": "hook", "resourceVersion": "7", "annotations": annotations}
    hooks = [{"clientConfig": {}, **webhook} for webhook in webhooks]
    return {"kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": hooks}


def test_the_rules_come_with_the_bundle() -> None:
    """Inject the bundle and the annotated rules in one patch; a webhook that already has rules keeps them."""
    carrier = configuration(json.dumps([RULE]), {}, {"rules": [OTHER]})

    patch = injected(carrier, "bundle")

    assert [webhook["rules"] for webhook in patch["webhooks"]] == [[RULE], [OTHER]]
    assert carries({**carrier, **patch}, "bundle")
    assert "rules" not in carrier["webhooks"][0]


def test_rules_that_were_taken_off_are_due() -> None:
    """Annotated rules that a webhook lacks must be injected again.

    An upgrade removes them if an earlier version applied the configuration with rules in the manifest.
    """
    carrier = configuration(json.dumps([RULE]), {})
    whole = {**carrier, **injected(carrier, "bundle"), "metadata": carrier["metadata"]}
    assert carries(whole, "bundle")

    del whole["webhooks"][0]["rules"]

    assert not carries(whole, "bundle")


def written_by(*managers: str) -> list[Object]:
    """Return the `managedFields` of a configuration whose webhook `hook` got its rules from these managers."""
    fields: Object = {"f:webhooks": {'k:{"name":"hook"}': {"f:rules": {}}}}
    return [{"manager": manager, "fieldsV1": fields} for manager in managers]


@pytest.mark.parametrize(
    ("managers", "kept"), [(["nodemaintenance"], False), (["nodemaintenance", "kubectl"], True), (["kubectl"], True)]
)
def test_rules_that_we_wrote_follow_the_annotation(managers: list[str], kept: bool) -> None:
    """Replace our own rules after an upgrade changed the annotation, but keep rules that another manager wrote too."""
    carrier = configuration(json.dumps([RULE]), {"name": "hook", "rules": [OTHER]})
    carrier = {**carrier, **injected(carrier, "bundle"), "metadata": carrier["metadata"]}
    carrier["metadata"]["managedFields"] = written_by(*managers)

    assert carries(carrier, "bundle") is kept
    assert injected(carrier, "bundle")["webhooks"][0]["rules"] == [OTHER if kept else RULE]


def test_what_the_server_adds_to_a_rule_is_no_difference() -> None:
    """Ignore defaults that the API server adds to a rule; otherwise each tick would write the configuration."""
    short = {"apiGroups": ["example.com"], "operations": ["CREATE"]}
    carrier = configuration(json.dumps([short]), {"name": "hook", "rules": [{**short, "scope": "*"}]})
    carrier = {**carrier, **injected(carrier, "bundle"), "metadata": carrier["metadata"]}
    carrier["metadata"]["managedFields"] = written_by("nodemaintenance")

    assert carries(carrier, "bundle")


@pytest.mark.parametrize("rules", [None, "", "no JSON", "[", "[1]", '{"rules": 1}', "[]", "null"])
def test_without_a_list_of_rules_the_bundle_comes_alone(rules: str | None) -> None:
    carrier = configuration(rules, {})

    patch = injected(carrier, "bundle")

    assert "rules" not in patch["webhooks"][0]
    assert carries({**carrier, **patch}, "bundle")


def test_what_has_no_webhooks_gets_no_rules() -> None:
    carrier = {**configuration(json.dumps([RULE])), "kind": "APIService", "spec": {"service": {"name": "api"}}}

    patch = injected(carrier, "bundle")

    assert patch.keys() == {"metadata", "spec"}
    assert carries({**carrier, **patch}, "bundle")
