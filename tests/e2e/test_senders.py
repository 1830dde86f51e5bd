"""Tests for the permission to post events to Knative's Broker, with `authentication-oidc` and `senders` enabled."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import endpoints, events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.entries import Entry, Query, parse_time
from eventing.journal.store import Journal
from eventing.replay.function_client import post_event
from kube.maintenance.groups import GROUPS
from localcluster.access import NAMESPACE
from localcluster.knative.product import KnativeProduct
from localcluster.processes import wait_until_ready
from tests.e2e.environment import E2eEnvironment
from tests.e2e.test_replay import run_command
from tests.e2e.ticks import build_tick
from tests.manifests.rendering import MANIFESTS

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("environment", ["knative"], indirect=True)]
SENDERS_POLICY_FILE = MANIFESTS / "components" / "senders" / "policy.yaml"
AUDIENCE = f"eventing.knative.dev/broker/{NAMESPACE}/default"
TRIGGER_ACCOUNT = "taint-on-node-cordoned-oidc-eventing.knative.dev-trigger"
"""The ServiceAccount that Knative creates for the Trigger of `taint`, and with which it publishes the replies."""
EXPECTED_SENDERS = {"begin", "cordon", "taint", "evict", "restore", "podsource"}
"""The functions and sources that send events during every maintenance, provided that the Broker accepts them."""
TIMEOUT_SECONDS = 30.0


@pytest.fixture(scope="module")
def authenticating_environment(environment: E2eEnvironment) -> Iterator[E2eEnvironment]:
    """Yield the environment while Knative authorizes senders with the shipped EventPolicy."""
    product = environment.product
    assert isinstance(product, KnativeProduct)
    label = ("label", "deployments", "-n", NAMESPACE, "-l", "nodemaintenance.dev/binds=broker")
    try:
        environment.cluster.kubectl(*label, "nodemaintenance.dev/token=broker")  # The component `tokens` does the same.
        product.enable_oidc()
        environment.cluster.kubectl("apply", "-f", SENDERS_POLICY_FILE)
        applied = "--for=jsonpath={.status.policies[0].name}=senders"
        environment.cluster.kubectl(
            "wait", "broker/default", "-n", NAMESPACE, applied, f"--timeout={TIMEOUT_SECONDS:.0f}s"
        )
        tick = build_tick()
        wait_until_ready(
            "the ingress",
            lambda: _post_and_get_status(environment, _create_token(environment, TRIGGER_ACCOUNT), tick) == 202,
            [],
            TIMEOUT_SECONDS,
        )
        wait_until_ready(
            "filter and dispatcher", lambda: bool(_read_entries(environment, tick.get_id())), [], TIMEOUT_SECONDS
        )
        yield environment
    finally:
        environment.delete_maintenances()
        environment.cluster.kubectl("delete", "-f", SENDERS_POLICY_FILE, "--ignore-not-found")
        product.disable_oidc()
        environment.cluster.kubectl(*label, "nodemaintenance.dev/token-")


def test_maintenances_of_every_api_group_succeed(authenticating_environment: E2eEnvironment) -> None:
    """Check that a maintenance of each API group succeeds, because sources, PodSource and Triggers may send events.

    The event about the creation of each object is recorded.
    """
    drains = authenticating_environment.prepare_drains("300ms", nodes=authenticating_environment.nodes[: len(GROUPS)])
    for node, group in zip(drains.nodes, GROUPS.values(), strict=True):
        drains.create_maintenances([node], group)
    drains.wait_until_succeeded(TIMEOUT_SECONDS)
    drains.assert_each_pod_evicted_once()
    uids = [maintenance["metadata"]["uid"] for maintenance in drains.maintenances]
    drains.end_maintenances(TIMEOUT_SECONDS)

    for uid in uids:
        wait_until_ready(
            "the last reply",
            lambda uid=uid: _get_senders(authenticating_environment, uid) >= EXPECTED_SENDERS,  # type: ignore[misc]
            [],
            TIMEOUT_SECONDS,
        )
        assert events.RESOURCE_ADDED in {
            entry.event.get_type() for entry in _read_entries_about(authenticating_environment, uid)
        }


def test_events_posted_by_resync_are_accepted(authenticating_environment: E2eEnvironment) -> None:
    """Check that the Broker accepts the events that `resync` posts with the token from the product's SinkBinding."""
    authenticating_environment.histogram.record("begin")
    authenticating_environment.product.kill_functions("begin")
    drains = authenticating_environment.prepare_drains("300ms", nodes=authenticating_environment.nodes[:2])
    drains.create_maintenances()

    assert post_event(build_tick(), authenticating_environment.product.get_function_url("resync")).status_code == 204

    authenticating_environment.product.start_functions("begin")
    drains.wait_until_succeeded()
    drains.end_maintenances()


def test_unauthorized_senders_are_rejected(authenticating_environment: E2eEnvironment) -> None:
    """Check that posts without a valid token are rejected with 401, and posts from unlisted accounts with 403."""
    now = int(time.time())
    ticks = [build_tick() for _ in range(8)]
    tokens_and_expected_statuses = [
        ("", 401),
        (_create_token(authenticating_environment, "podsource", ""), 401),
        (_create_token(authenticating_environment, TRIGGER_ACCOUNT, "other-audience"), 401),
        (_sign_token(authenticating_environment, now - 7200, now - 3600), 401),
        (_create_token(authenticating_environment, "default"), 403),
        (_create_token(authenticating_environment, "evict"), 403),
        (_create_token(authenticating_environment, "default", namespace="default"), 403),
        # This valid token and the expired token above differ only in their times.
        (_sign_token(authenticating_environment, now - 60, now + 3600), 202),
    ]

    statuses = [
        _post_and_get_status(authenticating_environment, token, event)
        for (token, _), event in zip(tokens_and_expected_statuses, ticks, strict=True)
    ]

    assert statuses == [code for _, code in tokens_and_expected_statuses]
    wait_until_ready(
        "the accepted event",
        lambda: bool(_read_entries(authenticating_environment, ticks[-1].get_id())),
        [],
        TIMEOUT_SECONDS,
    )
    assert [bool(_read_entries(authenticating_environment, event.get_id())) for event in ticks] == [False] * 7 + [True]


def test_dead_letter_is_recorded_with_authentication(authenticating_environment: E2eEnvironment) -> None:
    """X-6: a dead letter has the same code, reason and destination with authentication as without it."""
    attributes = {"id": "refused-while-asked", "source": "/tests/e2e", "datacontenttype": "application/json"}
    event = CloudEvent({**attributes, "type": events.NODE_CORDONED}, {})
    assert (
        _post_and_get_status(
            authenticating_environment, _create_token(authenticating_environment, TRIGGER_ACCOUNT), event
        )
        == 202
    )

    def find_dead_letters() -> list[Entry]:
        return [entry for entry in _read_entries(authenticating_environment, event.get_id()) if entry.dead_letter]

    wait_until_ready("the dead letter", lambda: bool(find_dead_letters()), [], TIMEOUT_SECONDS)

    expected_dead_letter = DeadLetter(
        authenticating_environment.product.get_function_url("taint"), 400, "data.node is missing\n"
    )
    assert [entry.dead_letter for entry in find_dead_letters()] == [expected_dead_letter]


def test_redrive_publishes_reply_with_given_token(
    authenticating_environment: E2eEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X-6: `redrive` publishes the reply with the given token; without a token, the dead letter stays open."""
    drains = authenticating_environment.prepare_drains("300ms", nodes=authenticating_environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    (uid,) = (maintenance["metadata"]["uid"] for maintenance in drains.maintenances)
    cordoned_event = next(  # The Broker delivers at least once, so the event may be recorded several times.
        entry.event
        for entry in _read_entries_about(authenticating_environment, uid)
        if entry.event.get_type() == events.NODE_CORDONED
    )
    dead_letter = add_dead_letter_extensions(
        cordoned_event, DeadLetter(f"{authenticating_environment.product.get_function_url('taint')}taint", 503, "away")
    )
    assert post_event(dead_letter, authenticating_environment.product.get_function_url("record")).status_code == 204
    arguments = ("redrive", cordoned_event.get_id(), "--yes", "--broker", authenticating_environment.product.broker_url)

    first_result = run_command(authenticating_environment, *arguments)
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(_create_token(authenticating_environment, TRIGGER_ACCOUNT))
    monkeypatch.setenv(endpoints.TOKEN_FILE_VARIABLE, str(file))
    second_result = run_command(authenticating_environment, *arguments)

    assert (first_result.exit_code, "the broker rejected the reply with 401" in first_result.output) == (1, True), (
        first_result.output
    )
    assert second_result.exit_code == 0, second_result.output
    drains.end_maintenances()


def test_tick_from_ping_source_is_accepted(authenticating_environment: E2eEnvironment) -> None:
    """Check that the Broker accepts PingSource's ticks; the first tick may take 15 seconds, so this test runs late."""
    path = f"/apis/eventing.knative.dev/v1alpha1/namespaces/{NAMESPACE}/eventpolicies/senders"
    applied = parse_time(authenticating_environment.client.get(path)["metadata"]["creationTimestamp"])

    def read_ticks() -> list[Entry]:
        with closing(Journal(authenticating_environment.product.journal)) as journal:
            entries = journal.select(Query(types=(events.TICK,), since=applied))
        return [entry for entry in entries if entry.event.get_source().endswith("/pingsources/tick")]

    wait_until_ready("a tick", lambda: bool(read_ticks()), [], TIMEOUT_SECONDS)


def test_restarted_dispatcher_delivers_after_authentication_was_disabled(
    authenticating_environment: E2eEnvironment,
) -> None:
    """Check that a dispatcher that restarts after authentication was disabled delivers events again.

    Objects that Knative has created for authentication and not deleted could prevent the channel from becoming ready.
    """
    product = authenticating_environment.product
    assert isinstance(product, KnativeProduct)
    authenticating_environment.cluster.kubectl("delete", "-f", SENDERS_POLICY_FILE)
    product.disable_oidc()

    product.kill_data_plane("dispatcher")
    product.start_data_plane("dispatcher")

    drains = authenticating_environment.prepare_drains("300ms", nodes=authenticating_environment.nodes[:1])
    drains.create_maintenances()
    drains.wait_until_succeeded(TIMEOUT_SECONDS)
    drains.end_maintenances(TIMEOUT_SECONDS)


def _post_and_get_status(environment: E2eEnvironment, token: str, event: CloudEvent) -> int:
    """Post the event to Knative's broker ingress, and return the status code."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return post_event(event, environment.product.broker_url, **headers).status_code


def _create_token(
    environment: E2eEnvironment, service_account: str, audience: str = AUDIENCE, namespace: str = NAMESPACE
) -> str:
    """Return a token for the account; without an audience, the token is valid only for the API server."""
    request = ("create", "token", service_account, "-n", namespace, *([f"--audience={audience}"] if audience else []))
    return environment.cluster.kubectl(*request).stdout.strip()


def _sign_token(environment: E2eEnvironment, issued_at: int, expires_at: int) -> str:
    """Sign a token with these times like the API server, whose own tokens are valid for at least ten minutes."""
    subject = f"system:serviceaccount:{NAMESPACE}:{TRIGGER_ACCOUNT}"
    times = {"iat": issued_at, "nbf": issued_at, "exp": expires_at}
    claims = {"iss": "https://kubernetes.default.svc", "aud": [AUDIENCE], "sub": subject, **times}
    signing_input = (
        f"{_encode_base64url(json.dumps({'alg': 'ES256'}).encode())}.{_encode_base64url(json.dumps(claims).encode())}"
    )
    key = environment.cluster.directory / "pki" / "service-account.key"
    command = ("openssl", "dgst", "-sha256", "-sign", str(key))
    der = subprocess.run(command, input=signing_input.encode(), capture_output=True, check=True).stdout
    # `der` contains two DER integers (RFC 3279, 2.2.3); a JWT contains 32 octets of each (RFC 7518, 3.4).
    second_integer_start = 4 + der[3]
    integers = (der[4:second_integer_start], der[second_integer_start + 2 :])
    signature = b"".join(number.lstrip(bytes(1)).rjust(32, bytes(1)) for number in integers)
    return f"{signing_input}.{_encode_base64url(signature)}"


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read_entries(environment: E2eEnvironment, event_id: str) -> list[Entry]:
    with closing(Journal(environment.product.journal)) as journal:
        return journal.select(Query(ids=(event_id,)))


def _read_entries_about(environment: E2eEnvironment, uid: str) -> list[Entry]:
    with closing(Journal(environment.product.journal)) as journal:
        return journal.select(Query(maintenance=uid))


def _get_senders(environment: E2eEnvironment, uid: str) -> set[str]:
    """Return the names of the functions and sources that sent a recorded event about this maintenance."""
    return {entry.event.get_source().rpartition("/")[2] for entry in _read_entries_about(environment, uid)}
