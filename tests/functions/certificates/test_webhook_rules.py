"""Tests that a webhook configuration gets its rules together with its CA bundle, and not earlier."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from kube.certificates.ca_injection import INJECT_ANNOTATION, RULES_ANNOTATION
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.processes import wait_until_ready
from tests.functions.certificates.conftest import CONFIG_MAPS_PATH, WEBHOOK_CONFIGURATIONS_PATH, NamespaceCertificates
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick
from tests.proofs import proves

pytestmark = pytest.mark.slow

CONFIG_MAP_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
_numbers = itertools.count(1)


class ConnectionCounter:
    """TCP server that counts connections and immediately closes each connection.

    The tests only need to know whether the API server connects to the webhook's URL.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.connection_count = 0
        threading.Thread(target=self._count_connections, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._socket.getsockname()[1]}/"

    def _count_connections(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # The fixture closes the socket at the end of the test.
            self.connection_count += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def connection_counters() -> Iterator[tuple[ConnectionCounter, ConnectionCounter]]:
    """Yield two connection counters."""
    pair = ConnectionCounter(), ConnectionCounter()
    yield pair
    for counter in pair:
        counter.close()


def build_webhook(name: str, url: str, rules: list[Object]) -> Object:
    """Build a webhook for the test's ConfigMaps with `failurePolicy: Ignore`."""
    versions = {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    webhook_options = {"objectSelector": {"matchLabels": {"test": "order"}}, "rules": rules}
    return {
        "name": name,
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "clientConfig": {"url": url},
        **versions,
    } | webhook_options


@pytest.mark.slow
@proves("NMO-18", "OSV-23")
def test_webhook_is_not_called_before_ca_bundle_is_set(
    functions: Functions,
    certificates: NamespaceCertificates,
    connection_counters: tuple[ConnectionCounter, ConnectionCounter],
) -> None:
    """Check that the API server calls a webhook only after its configuration has the CA bundle.

    The configuration has a second webhook, which has rules from the start. A call to the second webhook shows that the
    API server has read the configuration. After the pass, the API server calls both webhooks.
    """
    ready_counter, waiting_counter = connection_counters
    hooks = [
        build_webhook("ready.example.com", ready_counter.url, [CONFIG_MAP_RULE]),
        build_webhook("waiting.example.com", waiting_counter.url, []),
    ]
    annotations = {INJECT_ANNOTATION: f"{DEFAULT_NAMESPACE}/validate", RULES_ANNOTATION: json.dumps([CONFIG_MAP_RULE])}
    metadata = {"name": "nodemaintenance-validate", "annotations": annotations}
    certificates.administrator_client.create(WEBHOOK_CONFIGURATIONS_PATH, {"metadata": metadata, "webhooks": hooks})

    def is_called_on_create(counter: ConnectionCounter) -> bool:
        labels = {"test": "order"}
        name = f"order-{next(_numbers)}"
        certificates.administrator_client.with_dry_run().create(
            CONFIG_MAPS_PATH, {"metadata": {"name": name, "labels": labels}}
        )
        return bool(counter.connection_count)

    wait_until_ready("webhook with rules", lambda: is_called_on_create(ready_counter), [])
    assert waiting_counter.connection_count == 0
    certificates.create_secret("validate", "ours")

    functions.invoke("renew-certificates", build_tick())

    wait_until_ready("webhook without initial rules", lambda: is_called_on_create(waiting_counter), [])
    webhooks = certificates.administrator_client.get(f"{WEBHOOK_CONFIGURATIONS_PATH}/nodemaintenance-validate")[
        "webhooks"
    ]
    assert all(webhook["clientConfig"]["caBundle"] and webhook["rules"] for webhook in webhooks)


@proves("NMO-18")
def test_changed_rules_annotation_updates_webhook_rules(
    functions: Functions, certificates: NamespaceCertificates
) -> None:
    """Check that changed rules in the annotation replace the webhook's rules, and that the next pass writes nothing.

    Rules that another client wrote stay unchanged.
    """
    path = f"{WEBHOOK_CONFIGURATIONS_PATH}/nodemaintenance-validate"
    custom_rule = {**CONFIG_MAP_RULE, "operations": ["DELETE"]}
    hooks = [
        build_webhook("ours.example.com", "https://127.0.0.1:1", []),
        build_webhook("own.example.com", "https://127.0.0.1:1", [custom_rule]),
    ]
    annotations = {INJECT_ANNOTATION: f"{DEFAULT_NAMESPACE}/validate", RULES_ANNOTATION: json.dumps([CONFIG_MAP_RULE])}
    metadata = {"name": "nodemaintenance-validate", "annotations": annotations}
    certificates.administrator_client.create(
        f"{WEBHOOK_CONFIGURATIONS_PATH}?fieldManager=kubectl", {"metadata": metadata, "webhooks": hooks}
    )
    certificates.create_secret("validate", "ours")
    functions.invoke("renew-certificates", build_tick())
    new_rules = [{**CONFIG_MAP_RULE, "operations": ["CREATE", "UPDATE"]}]
    certificates.administrator_client.patch(
        path, {"metadata": {"annotations": {RULES_ANNOTATION: json.dumps(new_rules)}}}
    )

    functions.invoke("renew-certificates", build_tick())

    updated_configuration = certificates.administrator_client.get(path)
    operations = [webhook["rules"][0]["operations"] for webhook in updated_configuration["webhooks"]]
    assert operations == [["CREATE", "UPDATE"], ["DELETE"]]
    functions.invoke("renew-certificates", build_tick())
    assert (
        certificates.administrator_client.get(path)["metadata"]["resourceVersion"]
        == updated_configuration["metadata"]["resourceVersion"]
    )
