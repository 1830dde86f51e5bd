"""Fixtures and helpers for the certificate tests, each of which starts without Secrets and deletes its objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from functions.certificates.renewal import PUBLISH_MARGIN, PassResult, renew_all
from functions.certificates.settings import Settings
from kube.certificates import component_state, key_pairs, objects
from kube.certificates.ca_injection import INJECT_ANNOTATION, TARGET_PATHS
from kube.certificates.components import COMPONENT_LABEL, COMPONENTS
from kube.client.api import get_or_none
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.processes import wait_until_ready
from tests.functions.conftest import Functions
from tests.workload import Workload

SECRETS_PATH, CONFIG_MAPS_PATH = (
    objects.build_secrets_path(DEFAULT_NAMESPACE),
    objects.build_configmaps_path(DEFAULT_NAMESPACE),
)
WEBHOOK_CONFIGURATIONS_PATH = TARGET_PATHS["ValidatingWebhookConfiguration"]
PROPAGATION_DELAY = timedelta(minutes=10)
SETTINGS = Settings(propagation_delay=PROPAGATION_DELAY - PUBLISH_MARGIN - timedelta(seconds=30))
"""Settings with which a new CA may sign certificates `PROPAGATION_DELAY` after the pass that published it."""
_numbers = itertools.count(1)


def build_secret_reference_event(event_type: str, name: str) -> CloudEvent:
    """Build the event that ApiServerSource emits for a Secret in `mode: Reference`."""
    reference = {"kind": "Secret", "apiversion": "v1", "name": name, "namespace": DEFAULT_NAMESPACE}
    attributes = {
        "id": f"secret-{next(_numbers)}",
        "source": "https://kubernetes.example",
        "type": event_type,
        **reference,
    }
    data = {"apiVersion": "v1", "kind": "Secret", "namespace": DEFAULT_NAMESPACE, "name": name}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)


class NamespaceCertificates:
    """Administrator's access to the certificate Secrets and CA bundles of one namespace, by default the product's."""

    def __init__(self, administrator_client: SyncClient, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.administrator_client, self.namespace = administrator_client, namespace
        self.secrets_path, self.config_maps_path = (
            objects.build_secrets_path(namespace),
            objects.build_configmaps_path(namespace),
        )
        self.now = datetime.now(timezone.utc).replace(microsecond=0)

    def create_secret(
        self,
        name: str,
        component: str = "kubevirt",
        *,
        annotations: dict[str, str] | None = None,
        data: dict[str, str] | None = None,
        immutable: bool = False,
    ) -> Object:
        """Create a server's Secret with the label that makes `renew-certificates` issue a certificate."""
        merged_annotations = {objects.DNS_NAMES_ANNOTATION: f"{name}.svc,127.0.0.1", **(annotations or {})}
        metadata = {"name": name, "labels": {COMPONENT_LABEL: component}, "annotations": merged_annotations}
        secret = {"metadata": metadata, "type": "Opaque", "data": data or {}, "immutable": immutable}
        return self.administrator_client.create(self.secrets_path, secret)

    def get_secret(self, name: str) -> Object:
        return self.administrator_client.get(f"{self.secrets_path}/{name}")

    def list_secret_names(self) -> set[str]:
        """Return the names of all Secrets in the namespace."""
        return {secret["metadata"]["name"] for secret in self.administrator_client.list(self.secrets_path)["items"]}

    def patch_secret(self, name: str, change: Object) -> None:
        self.administrator_client.patch(f"{self.secrets_path}/{name}", change)

    def delete_and_wait(self, path: str) -> None:
        """Delete an object and wait until it no longer exists, which takes longer for a CustomResourceDefinition."""
        self.administrator_client.delete(path, uid=self.administrator_client.get(path)["metadata"]["uid"])
        wait_until_ready(
            f"deletion of {path}",
            lambda: self.administrator_client.run(get_or_none(self.administrator_client.api.get(path))) is None,
            [],
        )

    def request_renewal(self, name: str) -> None:
        self.patch_secret(name, {"metadata": {"annotations": {objects.RENEW_ANNOTATION: "now"}}})

    def get_serial(self, name: str) -> str:
        pair = component_state.get_current_key_pair(self.get_secret(name))
        return key_pairs.format_serial(pair.parsed_certificate) if pair else ""

    def get_bundle_configmap(self, component: str = "kubevirt") -> Object | None:
        """Return the ConfigMap with a component's CA bundle, or None if it does not exist."""
        path = f"{self.config_maps_path}/{COMPONENTS[component].bundle_configmap_name}"
        return self.administrator_client.run(get_or_none(self.administrator_client.api.get(path)))

    def get_trusted_bundle(self, component: str = "kubevirt") -> str:
        """Return the CA bundle that clients read from the component's ConfigMap."""
        return "".join(component_state.parse_published_bundle(self.get_bundle_configmap(component)))

    def create_webhook_configuration(self, name: str, secret_name: str, url: str = "") -> Object:
        """Create a webhook configuration that requests the CA bundle of the Secret `secret_name`.

        If `url` is set, the API server calls this URL for each ConfigMap with the label `test=admitted`. Without a
        response, it rejects the ConfigMap.
        """
        rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]}
        hook: Object = {
            "name": "hook.example.com",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [rule],
        }
        service = {"service": {"namespace": DEFAULT_NAMESPACE, "name": "validate"}}
        hook |= {"failurePolicy": "Ignore", "clientConfig": service}
        if url:
            configmap_rule = {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps"],
            }
            webhook_options = {"objectSelector": {"matchLabels": {"test": "admitted"}}, "rules": [configmap_rule]}
            hook |= {"failurePolicy": "Fail", "clientConfig": {"url": url}, **webhook_options}
        metadata = {"name": name, "annotations": {INJECT_ANNOTATION: f"{self.namespace}/{secret_name}"}}
        return self.administrator_client.create(WEBHOOK_CONFIGURATIONS_PATH, {"metadata": metadata, "webhooks": [hook]})

    def get_events_by_reason(self, name: str) -> dict[str, Object]:
        """Return the Kubernetes Events about the object with this name, by reason."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        events = self.administrator_client.list(path, field_selector=f"involvedObject.name={name}")["items"]
        return {event["reason"]: event for event in events}

    def run_pass_after(self, client: SyncClient, delay: timedelta = timedelta(0)) -> list[ApiError]:
        """Advance the simulated clock by `delay`, run a renewal pass with this client, and return its errors."""
        self.now += delay
        return self.run_pass(client).errors

    def run_pass(self, client: SyncClient) -> PassResult:
        """Run a renewal pass, as a tick does, with this client and at the simulated clock's current time."""
        return client.run(renew_all(client.api, replace(SETTINGS, namespaces=(self.namespace,)), self.now))


@pytest.fixture(scope="package", autouse=True)
def allow_patching_every_secret(admin_client: SyncClient, functions: Functions) -> None:
    """Allow `renew-certificates` to patch every Secret; its shipped Role allows only the webhook's Secrets."""
    grant_access(admin_client, functions, DEFAULT_NAMESPACE, "patch")


def grant_access(administrator_client: SyncClient, functions: Functions, namespace: str, *verbs: str) -> None:
    """Grant the account of `renew-certificates` these verbs on all Secrets, ConfigMaps and Events of a namespace."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["secrets", "configmaps", "events"], "verbs": verbs}
    administrator_client.create(f"{roles}/roles", {"metadata": {"name": "every-secret"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "every-secret"}
    account = {"kind": "ServiceAccount", "name": "renew-certificates", "namespace": DEFAULT_NAMESPACE}
    administrator_client.create(
        f"{roles}/rolebindings", {"metadata": {"name": "every-secret"}, "roleRef": role, "subjects": [account]}
    )
    attributes = {"namespace": namespace, "verb": "patch", "resource": "secrets", "name": "any"}
    step_client, reviews = (
        functions.clusters["renew-certificates"],
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    )
    review = {"spec": {"resourceAttributes": attributes}}
    wait_until_ready(
        "permission to patch Secrets", lambda: bool(step_client.create(reviews, review)["status"]["allowed"]), []
    )


@pytest.fixture
def certificates(admin_client: SyncClient) -> Iterator[NamespaceCertificates]:
    """Yield access to the certificates of the product's namespace, which is emptied before and after the test."""
    delete_test_objects(admin_client)
    yield NamespaceCertificates(admin_client)
    delete_test_objects(admin_client)


@pytest.fixture
def other_namespace_certificates(
    admin_client: SyncClient, functions: Functions, workload: Workload
) -> NamespaceCertificates:
    """Return access to the certificates of another namespace, in which `renew-certificates` may also write Secrets."""
    grant_access(admin_client, functions, workload.namespace, "get", "list", "create", "patch")
    return NamespaceCertificates(admin_client, workload.namespace)


def delete_test_objects(client: SyncClient) -> None:
    for path in (
        SECRETS_PATH,
        CONFIG_MAPS_PATH,
        WEBHOOK_CONFIGURATIONS_PATH,
        f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/events",
    ):
        for test_object in client.list(path)["items"]:
            if test_object["metadata"]["name"] != "kube-root-ca.crt":
                client.delete(f"{path}/{test_object['metadata']['name']}", uid=test_object["metadata"]["uid"])
