"""Tests that a webhook configuration gets its rules together with its CA bundle, and not earlier."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from kube.certificates.ca_injection import INJECT, RULES
from kube.paths import NAMESPACE, Object
from localcluster.processes import await_ready
from tests.functions.certificates.conftest import MAPS, WEBHOOKS, Certificates
from tests.functions.conftest import Functions
from tests.functions.event_builders import tick
from tests.proofs import proves

pytestmark = pytest.mark.slow

RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
_numbers = itertools.count(1)


class Called:
    """A TCP server that counts connections and closes each of them at once.

    The tests only need to know whether the API server connects.
    """

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.times = 0
        threading.Thread(target=self._count, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._socket.getsockname()[1]}/"

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # the socket was closed at the end of the test
            self.times += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def doors() -> Iterator[tuple[Called, Called]]:
    """Yield two connection counters."""
    pair = Called(), Called()
    yield pair
    for door in pair:
        door.close()


def hook(name: str, url: str, rules: list[Object]) -> Object:
    """Build a webhook for this test's ConfigMaps; if it does not respond, the API server rejects nothing."""
    versions = {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
    chosen = {"objectSelector": {"matchLabels": {"test": "order"}}, "rules": rules}
    return {
        "name": name,
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "clientConfig": {"url": url},
        **versions,
    } | chosen


@pytest.mark.slow
@proves("NMO-18", "OSV-23")
def test_nobody_is_asked_before_the_ca_stands_in_the_configuration(
    functions: Functions, certificates: Certificates, doors: tuple[Called, Called]
) -> None:
    """Check that the API server calls a webhook only after its configuration has the CA bundle.

    A second webhook in the configuration has rules from the start. A call to it shows that the API server has read the
    configuration. After the pass, the API server calls both.
    """
    known, waiting = doors
    hooks = [hook("known.example.com", known.url, [RULE]), hook("waiting.example.com", waiting.url, [])]
    annotations = {INJECT: f"{NAMESPACE}/validate", RULES: json.dumps([RULE])}
    metadata = {"name": "nodemaintenance-validate", "annotations": annotations}
    certificates.admin.create(WEBHOOKS, {"metadata": metadata, "webhooks": hooks})

    def asks(door: Called) -> bool:
        labels = {"test": "order"}
        name = f"order-{next(_numbers)}"
        certificates.admin.dry_run().create(MAPS, {"metadata": {"name": name, "labels": labels}})
        return bool(door.times)

    await_ready("a configuration that is read", lambda: asks(known), [])
    assert waiting.times == 0
    certificates.add("validate", "ours")

    functions.answer("renew-certificates", tick())

    await_ready("rules", lambda: asks(waiting), [])
    written = certificates.admin.get(f"{WEBHOOKS}/nodemaintenance-validate")["webhooks"]
    assert all(webhook["clientConfig"]["caBundle"] and webhook["rules"] for webhook in written)


@proves("NMO-18")
def test_the_rules_of_an_upgrade_are_taken(functions: Functions, certificates: Certificates) -> None:
    """Check that changed rules in the annotation replace earlier ones, and that the next pass writes nothing.

    Rules that another client wrote stay as they are.
    """
    path = f"{WEBHOOKS}/nodemaintenance-validate"
    own = {**RULE, "operations": ["DELETE"]}
    hooks = [hook("ours.example.com", "https://127.0.0.1:1", []), hook("own.example.com", "https://127.0.0.1:1", [own])]
    annotations = {INJECT: f"{NAMESPACE}/validate", RULES: json.dumps([RULE])}
    metadata = {"name": "nodemaintenance-validate", "annotations": annotations}
    certificates.admin.create(f"{WEBHOOKS}?fieldManager=kubectl", {"metadata": metadata, "webhooks": hooks})
    certificates.add("validate", "ours")
    functions.answer("renew-certificates", tick())
    newer = [{**RULE, "operations": ["CREATE", "UPDATE"]}]
    certificates.admin.patch(path, {"metadata": {"annotations": {RULES: json.dumps(newer)}}})

    functions.answer("renew-certificates", tick())

    upgraded = certificates.admin.get(path)
    operations = [webhook["rules"][0]["operations"] for webhook in upgraded["webhooks"]]
    assert operations == [["CREATE", "UPDATE"], ["DELETE"]]
    functions.answer("renew-certificates", tick())
    assert certificates.admin.get(path)["metadata"]["resourceVersion"] == upgraded["metadata"]["resourceVersion"]
