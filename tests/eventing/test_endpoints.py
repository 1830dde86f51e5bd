"""Tests for sending events from PodSource and the functions to a sink with authentication and a private CA."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import endpoints, events
from eventing.events import ObjectReference, build_event
from eventing.podsource.sender import HintSender
from eventing.task_supervisor import TaskSupervisor
from functions.failures import Retry
from functions.serving import responses
from functions.serving.responses import build_response
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import TIMEOUT_SECONDS, ReceivedRequest, Receiver, Response

MAINTENANCE = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
DRIFT_EVENTS: list[BaseCloudEvent] = [
    build_event(events.NODE_DRIFTED, "guard", MAINTENANCE, "node-1", seed=str(number)) for number in range(2)
]


@pytest.fixture
def tls_sink(cluster: LocalCluster) -> Iterator[Receiver]:
    """Yield an event sink with a certificate issued by the cluster's CA."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki = cluster.directory / "pki"
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    with closing(Receiver(tls=tls)) as receiver:
        yield receiver


@pytest.fixture
def sink_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a token file at the path at which a SinkBinding mounts the token."""
    (tmp_path / "token").write_text("identity-token\n")
    monkeypatch.setenv(endpoints.TOKEN_FILE_VARIABLE, str(tmp_path / "token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.usefixtures("sink_token")
def test_podsource_trusts_ca_and_sends_token(
    cluster: LocalCluster, tls_sink: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: PodSource trusts the CA in `K_CA_CERTS`, and sends its token to the sink.

    Knative's feature transport-encryption sets the CA, and authentication-oidc requires the token.
    """
    monkeypatch.setenv(endpoints.CA_CERTS_VARIABLE, cluster.certificate)

    async def emit() -> None:
        async with TaskSupervisor() as tasks, HintSender(f"{tls_sink.url}/", tasks) as sender:
            sender.enqueue(events.PODS_GONE, MAINTENANCE, "node-1", {"podsVersion": "1"}, urgent=True)
            await asyncio.to_thread(tls_sink.wait_for_requests, "/")

    asyncio.run(emit())

    assert tls_sink.list_requests("/")[0].headers["authorization"] == "Bearer identity-token"


@pytest.mark.usefixtures("sink_token")
def test_functions_trust_ca_and_send_token(
    cluster: LocalCluster, tls_sink: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: a function trusts the CA, and sends its token with the events that it posts directly to the sink.

    A response can contain only one event, so a function posts several events to the sink.
    """
    monkeypatch.setenv(endpoints.CA_CERTS_VARIABLE, cluster.certificate)
    monkeypatch.setenv("K_SINK", f"{tls_sink.url}/")

    assert build_response(DRIFT_EVENTS).status_code == 204

    assert [request.headers["authorization"] for request in tls_sink.list_requests("/")] == [
        "Bearer identity-token"
    ] * 2


def test_no_event_is_sent_to_sink_with_unknown_ca(tls_sink: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: no event is sent to a sink whose certificate has an unknown CA."""
    monkeypatch.delenv(endpoints.CA_CERTS_VARIABLE, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("K_SINK", f"{tls_sink.url}/")

    with pytest.raises(Retry, match="did not accept an event"):
        build_response(DRIFT_EVENTS)

    assert tls_sink.requests == []


def test_publishing_that_exceeds_timeout_raises_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design rule 9: publishing that takes too long raises `Retry` before the broker's timeout causes a redelivery."""
    monkeypatch.setattr(responses, "PUBLISH_TIMEOUT_SECONDS", 0.2)
    release_response = threading.Event()
    with closing(
        Receiver(default_answer=lambda _: Response() if release_response.wait(TIMEOUT_SECONDS) else Response(503))
    ) as slow_sink:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{slow_sink.url}/")

        with pytest.raises(Retry, match="did not accept an event"):
            build_response(DRIFT_EVENTS)

        release_response.set()
        assert len(slow_sink.list_requests("/")) == 1


def test_rejected_event_does_not_prevent_sending_of_other_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-6: an event that the sink rejects does not prevent the sending of other events, and the function retries."""
    with closing(
        Receiver(default_answer=lambda request: Response(400 if request.id == DRIFT_EVENTS[0].get_id() else 202))
    ) as receiver:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{receiver.url}/")

        for _ in range(5):
            with pytest.raises(Retry, match="400"):
                build_response(DRIFT_EVENTS)

        assert len(receiver.list_requests("/")) == 5 * len(DRIFT_EVENTS)


def test_events_are_sent_without_token_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: a sink without TLS and authentication, Knative's default, receives events without a token."""
    with closing(Receiver(default_answer=lambda _: Response())) as receiver:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{receiver.url}/")

        build_response(DRIFT_EVENTS)

        requests: list[ReceivedRequest] = receiver.list_requests("/")
    assert ["authorization" in request.headers for request in requests] == [False, False]
