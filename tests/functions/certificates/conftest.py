"""What tests of certificates put on the quiet cluster, and take away again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.v1.event import CloudEvent

from functions.certificates.settings import Settings
from functions.certificates.survey import TAKES, Outcome, renewed
from kube.certificates import holders, issuing
from kube.certificates.components import COMPONENTS, LABEL
from kube.certificates.injection import CARRIERS, INJECT
from kube.door.api import absent_ok
from kube.door.api_errors import ApiError
from kube.door.sync_client import Cluster
from kube.paths import NAMESPACE, Object
from localcluster.processes import await_ready
from tests.functions.conftest import Functions
from tests.workload import Workload

SECRETS, MAPS = holders.secrets_path(NAMESPACE), holders.publications_path(NAMESPACE)
WEBHOOKS = CARRIERS["ValidatingWebhookConfiguration"]
PAUSE = timedelta(minutes=10)
SETTINGS = Settings(pause=PAUSE - TAKES - timedelta(seconds=30))
"""Over in a look that comes `PAUSE` after one that a busy machine was slow with."""
_numbers = itertools.count(1)


def hint(kind: str, name: str) -> CloudEvent:
    """What ApiServerSource says of a Secret in `mode: Reference`."""
    about = {"kind": "Secret", "apiversion": "v1", "name": name, "namespace": NAMESPACE}
    attributes = {"id": f"secret-{next(_numbers)}", "source": "https://kubernetes.example", "type": kind, **about}
    data = {"apiVersion": "v1", "kind": "Secret", "namespace": NAMESPACE, "name": name}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)


class Certificates:
    """Secrets in a namespace, the product's as a rule, and what an administrator sees of them."""

    def __init__(self, admin: Cluster, namespace: str = NAMESPACE) -> None:
        self.admin, self.namespace = admin, namespace
        self.secrets, self.maps = holders.secrets_path(namespace), holders.publications_path(namespace)
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
        """Create the Secret of a server, as somebody labels one who wants it renewed."""
        told = {holders.NAMES: f"{name}.svc,127.0.0.1", **(annotations or {})}
        metadata = {"name": name, "labels": {LABEL: component}, "annotations": told}
        secret = {"metadata": metadata, "type": "Opaque", "data": data or {}, "immutable": immutable}
        return self.admin.create(self.secrets, secret)

    def secret(self, name: str) -> Object:
        return self.admin.get(f"{self.secrets}/{name}")

    def names(self) -> set[str]:
        """Those of all Secrets."""
        return {secret["metadata"]["name"] for secret in self.admin.list(self.secrets)["items"]}

    def change(self, name: str, change: Object) -> None:
        self.admin.patch(f"{self.secrets}/{name}", change)

    def remove(self, path: str) -> None:
        """Delete what is there, and wait until it is gone: a CustomResourceDefinition stays for some time."""
        self.admin.delete(path, uid=self.admin.get(path)["metadata"]["uid"])
        await_ready(f"the end of {path}", lambda: self.admin.run(absent_ok(self.admin.api.get(path))) is None, [])

    def ask(self, name: str) -> None:
        self.change(name, {"metadata": {"annotations": {holders.RENEW: "now"}}})

    def serial(self, name: str) -> str:
        pair = holders.current(self.secret(name))
        return issuing.serial(pair.parsed) if pair else ""

    def publication(self, component: str = "kubevirt") -> Object | None:
        """The ConfigMap of a component, None for none."""
        path = f"{self.maps}/{COMPONENTS[component].publication}"
        return self.admin.run(absent_ok(self.admin.api.get(path)))

    def trusted(self, component: str = "kubevirt") -> str:
        """What clients read."""
        return "".join(holders.bundle_of(self.publication(component)))

    def add_webhook(self, name: str, asked: str, url: str = "") -> Object:
        """Create what asks for the bundle of a Secret; with a URL the API server asks there about the ConfigMaps that
        have the label `test=admitted`, and takes none without an answer."""
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
        """Reason → the one Event with it about an object."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        found = self.admin.list(path, fields=f"involvedObject.name={name}")["items"]
        return {item["reason"]: item for item in found}

    def renew(self, door: Cluster, later: timedelta = timedelta(0)) -> list[ApiError]:
        """One look through this door, `later` than the last one by the clock that is set; what went wrong."""
        self.now += later
        return self.look(door).errors

    def look(self, door: Cluster) -> Outcome:
        """What a tick finds through this door, at the moment of the last one."""
        return door.run(renewed(door.api, replace(SETTINGS, namespaces=(self.namespace,)), self.now))


@pytest.fixture(scope="package", autouse=True)
def every_secret(admin: Cluster, functions: Functions) -> None:
    """Let the step write whatever Secret a test makes: the shipped right is for those of the webhook by name."""
    allow(admin, functions, NAMESPACE, "patch")


def allow(admin: Cluster, functions: Functions, namespace: str, *verbs: str) -> None:
    """Let the step do so to whatever Secret, ConfigMap or Event of a namespace."""
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
    """Give the Secrets' namespace with nothing in it; what a test leaves goes after it."""
    clean(admin)
    yield Certificates(admin)
    clean(admin)


@pytest.fixture
def elsewhere(admin: Cluster, functions: Functions, work: Workload) -> Certificates:
    """Give those of another namespace, whose Secrets the step may write, too."""
    allow(admin, functions, work.namespace, "get", "list", "create", "patch")
    return Certificates(admin, work.namespace)


def clean(admin: Cluster) -> None:
    for path in (SECRETS, MAPS, WEBHOOKS, f"/api/v1/namespaces/{NAMESPACE}/events"):
        for item in admin.list(path)["items"]:
            if item["metadata"]["name"] != "kube-root-ca.crt":
                admin.delete(f"{path}/{item['metadata']['name']}", uid=item["metadata"]["uid"])
