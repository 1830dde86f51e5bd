"""Tests for the manifests of the admission webhook: its account's permissions, its rules, and its Secret."""

from __future__ import annotations

import ast
import json

import pytest
import yaml

from functions.admission.endpoints import REVIEW_TIMEOUT_SECONDS
from kube.certificates.ca_injection import INJECT_ANNOTATION, RULES_ANNOTATION
from kube.maintenance.groups import GROUPS
from localcluster.cluster import LocalCluster
from tests.manifests.documented_rights import NAMESPACES, Right, filter_by_namespace, parse_touches
from tests.manifests.rendering import MANIFESTS, ROOT, filter_by_kind, get_pod_templates, render_overlay
from tests.manifests.test_rights import list_extra_rights
from tests.proofs import proves
from tests.sources import parse_source

COMPONENT_DIR = MANIFESTS / "components" / "admission"
ADMISSION_OVERLAYS = ("knative", "compact", "plain", "rabbitmq", "kafka")


def read_documented_rights() -> set[Right]:
    return parse_touches(ast.get_docstring(parse_source(ROOT / "functions" / "admission" / "validate.py")) or "")


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_webhook_service_account_has_only_documented_permissions(
    installed_cluster: LocalCluster, namespace: str
) -> None:
    """Design rule 7: the webhook's ServiceAccount has exactly the documented permissions, which are read-only."""
    installed_cluster.kubectl("apply", "--server-side", "-f", COMPONENT_DIR / "rbac.yaml")

    assert list_extra_rights(installed_cluster, "validate", namespace) == filter_by_namespace(
        read_documented_rights(), namespace
    )
    assert {right.verb for right in read_documented_rights()} == {"get", "list", "watch"}


@proves("NMO-18")
@pytest.mark.parametrize("overlay_name", ADMISSION_OVERLAYS)
def test_webhook_handles_only_creations_and_fails_open(overlay_name: str) -> None:
    """Check that the webhook is called only for creations, and that a failed call rejects no request.

    Finalizers can therefore always be removed, and nodes can be drained while the webhook is down. Until its CA bundle
    is set, the webhook configuration has no rules, and an annotation contains the rules.
    """
    (configuration,) = filter_by_kind(render_overlay(overlay_name), "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    (shipped_webhook,) = yaml.safe_load((COMPONENT_DIR / "webhook.yaml").read_text())["webhooks"]
    rules = json.loads(configuration["metadata"]["annotations"][RULES_ANNOTATION])
    (rule,) = rules

    assert {**webhook, "rules": rules} == shipped_webhook != webhook
    assert rule["operations"] == ["CREATE"]
    assert rule["apiGroups"] == [version.partition("/")[0] for version in GROUPS]
    assert rule["resources"] == ["nodemaintenances"]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "None")
    assert webhook["timeoutSeconds"] > REVIEW_TIMEOUT_SECONDS


@pytest.mark.parametrize("name", ADMISSION_OVERLAYS)
def test_pod_service_certificate_and_webhook_configuration_have_matching_names(name: str) -> None:
    objects = render_overlay(name)
    (configuration,) = filter_by_kind(objects, "ValidatingWebhookConfiguration")
    service_reference = configuration["webhooks"][0]["clientConfig"]["service"]
    (service,) = [
        service
        for service in filter_by_kind(objects, "Service")
        if service["apiVersion"] == "v1" and service["metadata"]["name"] == service_reference["name"]
    ]
    pod = get_pod_templates(objects)["validate"]
    (container,) = pod["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    (volume,) = [volume for volume in pod["spec"]["volumes"] if "secret" in volume]

    injection_source = configuration["metadata"]["annotations"][INJECT_ANNOTATION]
    assert injection_source == f"{service_reference['namespace']}/{volume['secret']['secretName']}"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0] == {"protocol": "TCP", "port": service_reference["port"], "targetPort": 8443}
    assert variables == {"CERTIFICATE": "/etc/admission", "PORT": "8443"}
    assert {"name": volume["name"], "mountPath": "/etc/admission", "readOnly": True} in container["volumeMounts"]


def test_admission_component_grants_no_permissions_for_secrets() -> None:
    """Check that the component grants no permissions for Secrets, because the certificate's Secret is mounted."""
    rules = [
        rule for role in yaml.safe_load_all((COMPONENT_DIR / "rbac.yaml").read_text()) for rule in role.get("rules", [])
    ]

    assert all("secrets" not in rule["resources"] for rule in rules)
