"""The manifests of the admission webhook: the rights of its account, its rules, and its Secret."""

from __future__ import annotations

import ast
import json

import pytest
import yaml

from functions.admission.endpoints import SECONDS_TO_ANSWER
from kube.certificates.ca_injection import INJECT, RULES
from kube.maintenance.groups import GROUPS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, ROOT, of_kind, overlay, pod_specs
from tests.manifests.test_rights import own
from tests.manifests.documented_rights import NAMESPACES, Right, reaching, touches
from tests.proofs import proves

COMPONENT = MANIFESTS / "components" / "admission"
WITH = ("knative", "compact", "plain", "rabbitmq", "kafka")


def said() -> set[Right]:
    code = (ROOT / "functions" / "admission" / "validate.py").read_text()
    return touches(ast.get_docstring(ast.parse(code)) or "")


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_its_account_may_do_what_the_code_says_and_no_more(installed: LocalCluster, namespace: str) -> None:
    """Design rule 7: the webhook's account may do what the code documents; it writes nothing."""
    installed.kubectl("apply", "--server-side", "-f", COMPONENT / "rbac.yaml")

    assert own(installed, "validate", namespace) == reaching(said(), namespace)
    assert {right.verb for right in said()} == {"get", "list", "watch"}


@proves("NMO-18")
@pytest.mark.parametrize("name", WITH)
def test_it_is_asked_of_creation_alone_and_its_absence_refuses_nothing(name: str) -> None:
    """Check that the webhook is called only for creations, and that its failure rejects no request.

    A finalizer can always be removed, and a node can be maintained while the webhook is down. Without a CA bundle the
    configuration has no rules: they are in an annotation, from which they are set together with the CA bundle.
    """
    (configuration,) = of_kind(overlay(name), "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    (shipped,) = yaml.safe_load((COMPONENT / "webhook.yaml").read_text())["webhooks"]
    rules = json.loads(configuration["metadata"]["annotations"][RULES])
    (rule,) = rules

    assert {**webhook, "rules": rules} == shipped != webhook
    assert rule["operations"] == ["CREATE"]
    assert rule["apiGroups"] == [version.partition("/")[0] for version in GROUPS]
    assert rule["resources"] == ["nodemaintenances"]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "None")
    assert webhook["timeoutSeconds"] > SECONDS_TO_ANSWER


@pytest.mark.parametrize("name", WITH)
def test_server_service_certificate_and_configuration_name_each_other(name: str) -> None:
    objects = overlay(name)
    (configuration,) = of_kind(objects, "ValidatingWebhookConfiguration")
    where = configuration["webhooks"][0]["clientConfig"]["service"]
    (service,) = [
        item
        for item in of_kind(objects, "Service")
        if item["apiVersion"] == "v1" and item["metadata"]["name"] == where["name"]
    ]
    pod = pod_specs(objects)["validate"]
    (container,) = pod["spec"]["containers"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    (volume,) = [item for item in pod["spec"]["volumes"] if "secret" in item]

    asked = configuration["metadata"]["annotations"][INJECT]
    assert asked == f"{where['namespace']}/{volume['secret']['secretName']}"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0] == {"protocol": "TCP", "port": where["port"], "targetPort": 8443}
    assert variables == {"CERTIFICATE": "/etc/admission", "PORT": "8443"}
    assert {"name": volume["name"], "mountPath": "/etc/admission", "readOnly": True} in container["volumeMounts"]


def test_no_caller_of_ours_is_told_a_key() -> None:
    """Check that the component grants no right to Secrets; the certificate's Secret is mounted."""
    rules = [
        rule for item in yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text()) for rule in item.get("rules", [])
    ]

    assert all("secrets" not in rule["resources"] for rule in rules)
