"""What is put into an object that asks for a CA bundle: the bundle, and the rules that wait for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kube.certificates.injection import RULES, carries, injected
from kube.paths import Object

RULE = {"apiGroups": ["example.com"], "operations": ["CREATE"]}
OTHER = {"apiGroups": ["other.example.com"], "operations": ["CREATE"]}


def configuration(rules: str | None, *webhooks: dict[str, Any]) -> Object:
    """A configuration with such webhooks, and the annotation unless it is None."""
    annotations = {} if rules is None else {RULES: rules}
    metadata = {"name": "hook", "resourceVersion": "7", "annotations": annotations}
    hooks = [{"clientConfig": {}, **webhook} for webhook in webhooks]
    return {"kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": hooks}


def test_the_rules_come_with_the_bundle() -> None:
    """In one patch; a webhook that has rules keeps its own."""
    carrier = configuration(json.dumps([RULE]), {}, {"rules": [OTHER]})

    patch = injected(carrier, "bundle")

    assert [webhook["rules"] for webhook in patch["webhooks"]] == [[RULE], [OTHER]]
    assert carries({**carrier, **patch}, "bundle")
    assert "rules" not in carrier["webhooks"][0]


def test_rules_that_were_taken_off_are_due() -> None:
    """As after an upgrade from a configuration that was applied with rules in it."""
    carrier = configuration(json.dumps([RULE]), {})
    whole = {**carrier, **injected(carrier, "bundle"), "metadata": carrier["metadata"]}
    assert carries(whole, "bundle")

    del whole["webhooks"][0]["rules"]

    assert not carries(whole, "bundle")


@pytest.mark.parametrize("rules", [None, "", "no JSON", "[", '{"rules": 1}', "[]", "null"])
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
