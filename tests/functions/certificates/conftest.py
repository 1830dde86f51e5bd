"""Fixtures and helpers for the certificate tests; each test starts without Secrets and cleans up after itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import TAKES, Outcome, renewed
from kube.certificates import certificate_objects, key_pairs
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.ca_injection import CARRIERS, INJECT
from kube.client.api import absent_ok
from kube.client.api_errors import ApiError
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE, Object
from localcluster.processes import await_ready
from tests.functions.conftest import Functions
from tests.workload import Workload

SECRETS, MAPS = certificate_objects.secrets_path(NAMESPACE), certificate_objects.publications_path(NAMESPACE)
WEBHOOKS = CARRIERS["ValidatingWebhookConfiguration"]
PAUSE = timedelta(minutes=10)
SETTINGS = Settings(pause=PAUSE - TAKES - timedelta(seconds=30))
"""Settings whose waiting period has ended for a pass that comes `PAUSE` after a previous, slow one."""
_numbers = itertools.count(1)


def hint(kind: str, name: str) -> CloudEvent:
    """Build the event that ApiServerSource emits for a Secret in `mode: Reference`."""
    about = {"kind": "Secret", "apiversion": "v1", "name": name, "namespace": NAMESPACE}
    attributes = {"id": f"secret-{next(_numbers)}", "source": "https://kubernetes.example", "type": kind, **about}
    data = {"apiVersion": "v1", "kind": "Secret", "namespace": NAMESPACE, "name": name}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)


class Certificates:
    """The certificates of one namespace, by default the product's, as an administrator creates and reads them."""

    def __init__(self, admin: Cluster, namespace: str = NAMESPACE) -> None:
        self.admin, self.namespace = admin, namespace
        self.secrets, self.maps = certificate_objects.secrets_path(namespace), certificate_objects.publications_path(namespace)
        self.now = datetime.now(timezone.utc).replace(microsecond=0)

    def add(
        self,
        name: str,
        component: str = "kubevirt",
        *,
        annotations: dict[str, str] | None = None,
        data: dict[str, str] | None = None,
        immutable: bool = False,
    ) -> Object:
        """Create a server's Secret with the label that requests certificates from the step."""
        told = {certificate_objects.NAMES: f"{name}.svc,127.0.0.1", **(annotations or {})}
        metadata = {"name": name, "labels": {LABEL: component}, "annotations": told}
        secret = {"metadata": metadata, "type": "Opaque", "data": data or {}, "immutable": immutable}
        return self.admin.create(self.secrets, secret)

    def secret(self, name: str) -> Object:
        return self.admin.get(f"{self.secrets}/{name}")

    def names(self) -> set[str]:
        """Return the names of all Secrets in the namespace."""
        return {secret["metadata"]["name"] for secret in self.admin.list(self.secrets)["items"]}

    def change(self, name: str, change: Object) -> None:
        self.admin.patch(f"{self.secrets}/{name}", change)

    def remove(self, path: str) -> None:
        """Delete an object and wait until it no longer exists; a CustomResourceDefinition takes some time."""
        self.admin.delete(path, uid=self.admin.get(path)["metadata"]["uid"])
        await_ready(f"the end of {path}", lambda: self.admin.run(absent_ok(self.admin.api.get(path))) is None, [])

    def ask(self, name: str) -> None:
        self.change(name, {"metadata": {"annotations": {certificate_objects.RENEW: "now"}}})

    def serial(self, name: str) -> str:
        pair = certificate_objects.current(self.secret(name))
        return key_pairs.serial(pair.parsed) if pair else ""

    def publication(self, component: str = "kubevirt") -> Object | None:
        """Return the ConfigMap with a component's CA bundle, or None if there is none."""
        path = f"{self.maps}/{COMPONENTS[component].publication}"
        return self.admin.run(absent_ok(self.admin.api.get(path)))

    def trusted(self, component: str = "kubevirt") -> str:
        """Return the CA bundle that clients read from the ConfigMap."""
        return "".join(certificate_objects.bundle_of(self.publication(component)))

    def add_webhook(self, name: str, asked: str, url: str = "") -> Object:
        """Create a webhook configuration that requests the CA bundle of the Secret `asked`.

        With a `url`, the API server calls that webhook for ConfigMaps with the label `test=admitted`, and rejects them
        if it gets no response.
        """
        rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["things"]}
        hook: Object = {
            "name": "hook.example.com",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "rules": [rule],
        }
        service = {"service": {"namespace": NAMESPACE, "name": "validate"}}
        hook |= {"failurePolicy": "Ignore", "clientConfig": service}
        if url:
            maps = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            chosen = {"objectSelector": {"matchLabels": {"test": "admitted"}}, "rules": [maps]}
            hook |= {"failurePolicy": "Fail", "clientConfig": {"url": url}, **chosen}
        metadata = {"name": name, "annotations": {INJECT: f"{self.namespace}/{asked}"}}
        return self.admin.create(WEBHOOKS, {"metadata": metadata, "webhooks": [hook]})

    def events(self, name: str) -> dict[str, Object]:
        """Map the reason of each Event about an object of this name to the Event."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.admin.list(path, fields=f"involvedObject.name={name}")["items"]
        return {item["reason"]: item for item in found}

    def renew(self, door: Cluster, later: timedelta = timedelta(0)) -> list[ApiError]:
        """Run a pass with this client, `later` after the previous one on the simulated clock, and return its errors."""
        self.now += later
        return self.look(door).errors

    def look(self, door: Cluster) -> Outcome:
        """Run a tick's pass with this client, at the current time of the simulated clock."""
        return door.run(renewed(door.api, replace(SETTINGS, namespaces=(self.namespace,)), self.now))


@pytest.fixture(scope="package", autouse=True)
def every_secret(admin: Cluster, functions: Functions) -> None:
    """Allow the step to patch every Secret that a test creates; the shipped Role names only the webhook's Secrets."""
    allow(admin, functions, NAMESPACE, "patch")


def allow(admin: Cluster, functions: Functions, namespace: str, *verbs: str) -> None:
    """Allow the step to use these verbs on all Secrets, ConfigMaps and Events of a namespace."""
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["secrets", "configmaps", "events"], "verbs": verbs}
    admin.create(f"{roles}/roles", {"metadata": {"name": "every-secret"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "every-secret"}
    account = {"kind": "ServiceAccount", "name": "renew-certificates", "namespace": NAMESPACE}
    admin.create(
        f"{roles}/rolebindings", {"metadata": {"name": "every-secret"}, "roleRef": role, "subjects": [account]}
    )
    asked = {"namespace": namespace, "verb": "patch", "resource": "secrets", "name": "any"}
    door, reviews = functions.clusters["renew-certificates"], "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"spec": {"resourceAttributes": asked}}
    await_ready("the right", lambda: bool(door.create(reviews, review)["status"]["allowed"]), [])


@pytest.fixture
def certificates(admin: Cluster) -> Iterator[Certificates]:
    """Yield the certificates of the product's namespace, which is emptied before and after the test."""
    clean(admin)
    yield Certificates(admin)
    clean(admin)


@pytest.fixture
def elsewhere(admin: Cluster, functions: Functions, work: Workload) -> Certificates:
    """Return the certificates of another namespace, in which the step may write Secrets too."""
    allow(admin, functions, work.namespace, "get", "list", "create", "patch")
    return Certificates(admin, work.namespace)


def clean(admin: Cluster) -> None:
    for path in (SECRETS, MAPS, WEBHOOKS, f"/api/v1/namespaces/{NAMESPACE}/events"):
        for item in admin.list(path)["items"]:
            if item["metadata"]["name"] != "kube-root-ca.crt":
                admin.delete(f"{path}/{item['metadata']['name']}", uid=item["metadata"]["uid"])
