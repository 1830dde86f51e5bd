"""Tests of the permission to post to Knative's Broker, with `authentication-oidc` enabled and `senders` applied."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events, sinks
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.entries import Entry, Query, moment
from eventing.journal.store import Journal
from eventing.replay.function_client import post
from kube.maintenance.groups import GROUPS
from localcluster.access import NAMESPACE
from localcluster.knative.product import KnativeProduct
from localcluster.processes import await_ready
from tests.e2e.environment import Stage
from tests.e2e.test_replay import run
from tests.e2e.ticks import tick
from tests.manifests.rendering import MANIFESTS

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("stage", ["knative"], indirect=True)]
SENDERS = MANIFESTS / "components" / "senders" / "policy.yaml"
AUDIENCE = f"eventing.knative.dev/broker/{NAMESPACE}/default"
TRIGGER = "taint-on-node-cordoned-oidc-eventing.knative.dev-trigger"
"""The account that Knative created for a Trigger and uses to publish the replies of `taint`."""
OURS = {"begin", "cordon", "taint", "evict", "restore", "podsource"}
"""The senders of the events of every maintenance, if all of them are accepted."""
SECONDS = 30.0


@pytest.fixture(scope="module")
def asked(stage: Stage) -> Iterator[Stage]:
    """Yield the environment while Knative authenticates senders by the shipped EventPolicy."""
    product = stage.product
    assert isinstance(product, KnativeProduct)
    try:
        product.require_identities()
        stage.local.kubectl("apply", "-f", SENDERS)
        applied = "--for=jsonpath={.status.policies[0].name}=senders"
        stage.local.kubectl("wait", "broker/default", "-n", NAMESPACE, applied, f"--timeout={SECONDS:.0f}s")
        came = tick()
        await_ready("the ingress", lambda: _posted(stage, _token(stage, TRIGGER), came) == 202, [], SECONDS)
        await_ready("filter and dispatcher", lambda: bool(_kept(stage, came.get_id())), [], SECONDS)
        yield stage
    finally:
        stage.clear()
        stage.local.kubectl("delete", "-f", SENDERS, "--ignore-not-found")
        product.waive_identities()


def test_maintenances_of_every_group_run_to_their_end(asked: Stage) -> None:
    """Maintenances of every group succeed: ApiServerSources, PodSource and all Triggers are permitted to send.

    Each object's own event is recorded.
    """
    drains = asked.drains("300ms", nodes=asked.nodes[: len(GROUPS)])
    for node, group in zip(drains.nodes, GROUPS.values(), strict=True):
        drains.begin([node], group)
    drains.await_succeeded(SECONDS)
    drains.check()
    uids = [item["metadata"]["uid"] for item in drains.maintenances]
    drains.end(SECONDS)

    for uid in uids:
        await_ready("what was answered last", lambda uid=uid: _sources(asked, uid) >= OURS, [], SECONDS)  # type: ignore[misc]
        assert events.RESOURCE_ADDED in {entry.event.get_type() for entry in _about(asked, uid)}


def test_what_a_function_posts_itself_is_accepted(asked: Stage) -> None:
    """Events that `resync` posts with the token of the product's SinkBinding are accepted, one for each maintenance."""
    asked.histogram.note("begin")
    asked.product.kill_functions("begin")
    drains = asked.drains("300ms", nodes=asked.nodes[:2])
    drains.begin()

    assert post(tick(), asked.product.function_url("resync")).status_code == 204

    asked.product.start_functions("begin")
    drains.await_succeeded()
    drains.end()


def test_nobody_else_may_post(asked: Stage) -> None:
    """Posts without a valid token for the Broker are rejected with 401, and with 403 if no policy lists the account."""
    now = int(time.time())
    said = [tick() for _ in range(8)]
    posted = [
        ("", 401),
        (_token(asked, "podsource", ""), 401),
        (_token(asked, TRIGGER, "elsewhere"), 401),
        (_made(asked, now - 7200, now - 3600), 401),
        (_token(asked, "default"), 403),
        (_token(asked, "evict"), 403),
        (_token(asked, "default", namespace="default"), 403),
        (_made(asked, now - 60, now + 3600), 202),  # so the expired token was rejected for its times only
    ]

    answered = [_posted(asked, token, event) for (token, _), event in zip(posted, said, strict=True)]

    assert answered == [code for _, code in posted]
    await_ready("the accepted one", lambda: bool(_kept(asked, said[-1].get_id())), [], SECONDS)
    assert [bool(_kept(asked, event.get_id())) for event in said] == [False] * 7 + [True]


def test_a_dead_letter_reaches_the_journal(asked: Stage) -> None:
    """X-6: a dead letter, which passes Knative's filter here, has the usual code, reason and destination."""
    attributes = {"id": "refused-while-asked", "source": "/tests/e2e", "datacontenttype": "application/json"}
    letter = CloudEvent({**attributes, "type": events.NODE_CORDONED}, {})
    assert _posted(asked, _token(asked, TRIGGER), letter) == 202

    def dead() -> list[Entry]:
        return [entry for entry in _kept(asked, letter.get_id()) if entry.dead_letter]

    await_ready("the letter", lambda: bool(dead()), [], SECONDS)

    reason = DeadLetter(asked.product.function_url("taint"), 400, "data.node is missing\n")
    assert [entry.dead_letter for entry in dead()] == [reason]


def test_a_redrive_posts_the_answer_by_the_token_that_it_is_given(
    asked: Stage, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-6: `redrive` publishes the reply with the given token; without one, the dead letter stays open."""
    drains = asked.drains("300ms", nodes=asked.nodes[:1])
    drains.begin()
    drains.await_succeeded()
    (uid,) = (item["metadata"]["uid"] for item in drains.maintenances)
    (cordoned,) = (entry.event for entry in _about(asked, uid) if entry.event.get_type() == events.NODE_CORDONED)
    lost = as_dead_letter(cordoned, DeadLetter(f"{asked.product.function_url('taint')}taint", 503, "away"))
    assert post(lost, asked.product.function_url("record")).status_code == 204
    words = ("redrive", cordoned.get_id(), "--yes", "--broker", asked.product.broker_url)

    refused = run(asked, *words)
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(_token(asked, TRIGGER))
    monkeypatch.setenv(sinks.FILE, str(file))
    accepted = run(asked, *words)

    assert (refused.exit_code, "the broker refused its answer, 401" in refused.output) == (1, True), refused.output
    assert accepted.exit_code == 0, accepted.output
    drains.end()


def test_the_tick_is_accepted(asked: Stage) -> None:
    """PingSource's ticks are accepted; this test comes late, since there is one tick in 15 seconds."""
    path = f"/apis/eventing.knative.dev/v1alpha1/namespaces/{NAMESPACE}/eventpolicies/senders"
    applied = moment(asked.admin.get(path)["metadata"]["creationTimestamp"])

    def ticks() -> list[Entry]:
        with closing(Journal(asked.product.journal)) as book:
            found = book.select(Query(types=(events.TICK,), since=applied))
        return [entry for entry in found if entry.event.get_source().endswith("/pingsources/tick")]

    await_ready("a tick", lambda: bool(ticks()), [], SECONDS)


def test_once_nobody_is_asked_any_more_a_dispatcher_that_is_started_anew_delivers(asked: Stage) -> None:
    """Dispatchers that are restarted after authentication was disabled deliver events again.

    Knative leaves objects that keep its channel from being ready, and a channel that is not ready is not served.
    """
    product = asked.product
    assert isinstance(product, KnativeProduct)
    asked.local.kubectl("delete", "-f", SENDERS)
    product.waive_identities()

    product.kill_data("dispatcher")
    product.start_data("dispatcher")

    drains = asked.drains("300ms", nodes=asked.nodes[:1])
    drains.begin()
    drains.await_succeeded(SECONDS)
    drains.end(SECONDS)


def _posted(stage: Stage, token: str, event: CloudEvent) -> int:
    """Return the status code of Knative's ingress for the event."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return post(event, stage.product.broker_url, **headers).status_code


def _token(stage: Stage, account: str, audience: str = AUDIENCE, namespace: str = NAMESPACE) -> str:
    """Return a token of the account; without an audience it is valid for the API server itself."""
    request = ("create", "token", account, "-n", namespace, *([f"--audience={audience}"] if audience else []))
    return stage.local.kubectl(*request).stdout.strip()


def _made(stage: Stage, issued: int, expires: int) -> str:
    """Sign a token as the API server would, with any times: the API server issues none for less than ten minutes."""
    subject = f"system:serviceaccount:{NAMESPACE}:{TRIGGER}"
    times = {"iat": issued, "nbf": issued, "exp": expires}
    claims = {"iss": "https://kubernetes.default.svc", "aud": [AUDIENCE], "sub": subject, **times}
    text = f"{_encoded(json.dumps({'alg': 'ES256'}).encode())}.{_encoded(json.dumps(claims).encode())}"
    key = stage.local.directory / "pki" / "service-account.key"
    command = ("openssl", "dgst", "-sha256", "-sign", str(key))
    der = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    middle = 4 + der[3]  # two DER integers (RFC 3279, 2.2.3), of which a JWT has the 32 octets (RFC 7518, 3.4)
    pair = (der[4:middle], der[middle + 2 :])
    return f"{text}.{_encoded(b''.join(number.lstrip(bytes(1)).rjust(32, bytes(1)) for number in pair))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _kept(stage: Stage, key: str) -> list[Entry]:
    with closing(Journal(stage.product.journal)) as book:
        return book.select(Query(ids=(key,)))


def _about(stage: Stage, uid: str) -> list[Entry]:
    with closing(Journal(stage.product.journal)) as book:
        return book.select(Query(maintenance=uid))


def _sources(stage: Stage, uid: str) -> set[str]:
    """Return the names of the product's programs that sent a recorded event of the maintenance."""
    return {entry.event.get_source().rpartition("/")[2] for entry in _about(stage, uid)}
