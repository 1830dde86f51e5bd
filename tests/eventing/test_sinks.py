"""Tests of a sink with TLS from a private CA and with authentication, for PodSource and the functions."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloudevents.core.base import BaseCloudEvent

from eventing import events, sinks
from eventing.events import Reference, event
from eventing.podsource.sender import Sender
from eventing.podsource.task_supervisor import Tasks
from functions.failures import Retry
from functions.serving import responses
from functions.serving.responses import response_of
from localcluster.cluster import LocalCluster
from tests.receiver import PATIENCE, Answer, Received, Receiver

MINE = Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
EVENTS: list[BaseCloudEvent] = [
    event(events.NODE_DRIFTED, "guard", MINE, "node-1", seed=str(number)) for number in range(2)
]


@pytest.fixture
def sink(cluster: LocalCluster) -> Iterator[Receiver]:
    """Yield a sink whose certificate is issued by the cluster's own CA."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pki = cluster.directory / "pki"
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    with closing(Receiver(tls=tls)) as taken:
        yield taken


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a token file, as a SinkBinding mounts one."""
    (tmp_path / "token").write_text("who-i-am\n")
    monkeypatch.setenv(sinks.FILE, str(tmp_path / "token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.usefixtures("token")
def test_podsource_trusts_whom_knative_names_and_says_who_it_is(
    cluster: LocalCluster, sink: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-2: PodSource trusts the CA in `K_CA_CERTS` and sends its token.

    Knative's transport-encryption sets the CA, and authentication-oidc requires the token.
    """
    monkeypatch.setenv(sinks.CERTIFICATES, cluster.certificate)

    async def emit() -> None:
        async with Tasks() as tasks, Sender(f"{sink.url}/", tasks) as sender:
            sender.enqueue(events.PODS_GONE, MINE, "node-1", {"podsVersion": "1"}, urgent=True)
            await asyncio.to_thread(sink.wait_for, "/")

    asyncio.run(emit())

    assert sink.at("/")[0].headers["authorization"] == "Bearer who-i-am"


@pytest.mark.usefixtures("token")
def test_functions_do_so_too(cluster: LocalCluster, sink: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: A function trusts the CA and sends its token for the events that it publishes itself.

    A response holds only one event, so the function publishes several events itself.
    """
    monkeypatch.setenv(sinks.CERTIFICATES, cluster.certificate)
    monkeypatch.setenv("K_SINK", f"{sink.url}/")

    assert response_of(EVENTS).status_code == 204

    assert [request.headers["authorization"] for request in sink.at("/")] == ["Bearer who-i-am"] * 2


def test_a_sink_that_nobody_vouches_for_gets_nothing(sink: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: No event is sent to a sink with an unknown CA."""
    monkeypatch.delenv(sinks.CERTIFICATES, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("K_SINK", f"{sink.url}/")

    with pytest.raises(Retry, match="accepted no event"):
        response_of(EVENTS)

    assert sink.requests == []


def test_what_takes_too_long_to_publish_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 9: Publishing that takes too long is a `Retry`; otherwise the broker would resend the event meanwhile."""
    monkeypatch.setattr(responses, "PUBLISH_SECONDS", 0.2)
    answered = threading.Event()
    with closing(Receiver(otherwise=lambda _: Answer() if answered.wait(PATIENCE) else Answer(503))) as slow:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{slow.url}/")

        with pytest.raises(Retry, match="accepted no event"):
            response_of(EVENTS)

        answered.set()
        assert len(slow.at("/")) == 1


def test_an_event_that_is_refused_holds_back_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-6: An event that the sink refuses does not hold back the others, in any order, and the function retries."""
    with closing(Receiver(otherwise=lambda taken: Answer(400 if taken.id == EVENTS[0].get_id() else 202))) as picky:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{picky.url}/")

        for _ in range(5):
            with pytest.raises(Retry, match="400"):
                response_of(EVENTS)

        assert len(picky.at("/")) == 5 * len(EVENTS)


def test_where_nobody_asks_for_it_no_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """X-2: A sink without TLS and authentication, Knative's default, gets events without a token."""
    with closing(Receiver(otherwise=lambda _: Answer())) as plain:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("K_SINK", f"{plain.url}/")

        response_of(EVENTS)

        sent: list[Received] = plain.at("/")
    assert ["authorization" in request.headers for request in sent] == [False, False]
