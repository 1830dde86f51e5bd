"""Tests of the ingress of the local delivery: the responses to valid and invalid requests."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.eventing.local.broker_process import Broker, binary, trigger
from tests.receiver import Receiver

Start = Callable[..., Broker]
STRUCTURED = {"content-type": "application/cloudevents+json"}
GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    receiver = Receiver()
    folder: Path = tmp_path_factory.mktemp("broker")
    running = Broker(folder, [trigger("f", type="wanted")], receiver.url)
    yield running
    running.stop()
    receiver.close()


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in binary().items() if key != name}


MALFORMED: dict[str, tuple[dict[str, str], bytes, str]] = {
    "no type": (without("ce-type"), b"{}", "type"),
    "no source": (without("ce-source"), b"{}", "source"),
    "bad JSON": (binary(), b'{"a": ', "JSON"),
    "bad time": (binary(time="yesterday"), b"{}", "time|not a CloudEvent"),
    "bad name": (binary(**{"not_allowed": "x"}), b"{}", "not_allowed"),
    "other version": (binary(specversion="0.3"), b"{}", "specversion"),
    "wrong content type": (binary(datacontenttype="image/png"), b"png", "image/png"),
    "no event at all": ({"content-type": "application/json"}, b"{}", "not a CloudEvent"),
    "nothing": ({}, b"", "not a CloudEvent"),
    "structured, bad JSON": (STRUCTURED, b"{", "not a CloudEvent"),
    "structured, no object": (STRUCTURED, b"[1]", "not a CloudEvent"),
    "structured, no type": (STRUCTURED, json.dumps({**GOOD, "type": ""}).encode(), "type"),
    "structured, header smuggled in": (
        STRUCTURED,
        json.dumps({**GOOD, "datacontenttype": "application/json\r\nx: y", "data": {}}).encode(),
        "datacontenttype",
    ),
    "structured, no media type": (
        STRUCTURED,
        json.dumps({**GOOD, "datacontenttype": "ä€"}).encode(),
        "datacontenttype",
    ),
    "line break in a trace": (binary(traceparent="00-a%0Ab"), b"{}", "traceparent"),
    "structured, beyond all time": (STRUCTURED, json.dumps({**GOOD, "time": "9999-12-31T24:00:00Z"}).encode(), "range"),
    "structured, half a character": (STRUCTURED, json.dumps({**GOOD, "\ud800": 1}).encode(), "ud800"),
    "long trace": ({**binary(), "traceparent": f"00-{'a' * 32}-{'b' * 16}-01-{'%' * 4000}"}, b"{}", "traceparent"),
    "line break in any attribute": (binary(node="a%0D%0Ax: y"), b"{}", "node"),
    "control character": (binary(subject="a%1B[2J"), b"{}", "subject"),
    "structured, line break": (STRUCTURED, json.dumps({**GOOD, "subject": "a\nb"}).encode(), "subject"),
    "structured, name with line break": (STRUCTURED, json.dumps({**GOOD, "name\n": "x"}).encode(), "name"),
    "structured, no text": (STRUCTURED, json.dumps({**GOOD, "subject": "\ud800"}).encode(), "text"),
    "structured, an object of a value": (STRUCTURED, json.dumps({**GOOD, "kind": {"a": 1}}).encode(), "kind"),
    "structured, too long": (STRUCTURED, json.dumps({**GOOD, "subject": "x" * 9000}).encode(), "subject"),
    "structured, too many": (
        STRUCTURED,
        json.dumps({**GOOD, **{f"x{number}": "y" for number in range(80)}}).encode(),
        "attributes",
    ),
    "batch": ({"content-type": "application/cloudevents-batch+json"}, json.dumps([GOOD]).encode(), "batch"),
    "bad compression": ({**binary(), "content-encoding": "gzip"}, b"no gzip", "JSON"),
}


@pytest.mark.parametrize(("headers", "body", "named"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_event_is_refused_in_one_line_that_names_the_fault(
    broker: Broker, headers: dict[str, str], body: bytes, named: str
) -> None:
    """Check that an invalid event gets status 400 and one line that names the fault, and that the broker continues."""
    response = requests.post(broker.url, data=body, headers=headers, timeout=10)

    assert response.status_code == 400
    assert response.text.count("\n") == 1
    assert any(word.lower() in response.text.lower() for word in named.split("|")), response.text
    assert "Traceback" not in broker.text
    broker.post()


def test_a_body_of_5_mb_is_refused(broker: Broker) -> None:
    """Check that an event above the size limit gets status 413, and that the broker continues."""
    response = requests.post(broker.url, data=b'"' + b"x" * 5_000_000 + b'"', headers=binary(), timeout=10)

    assert response.status_code == 413
    assert response.text.count("\n") == 1
    broker.post()


def test_a_compressed_body_is_not_unpacked(broker: Broker) -> None:
    """Check that a compressed body is not decompressed, so that a small gzip cannot become 50 MB in memory."""
    packed = gzip.compress(b'"' + b"x" * 50_000_000 + b'"')

    response = requests.post(broker.url, data=packed, headers={**binary(), "content-encoding": "gzip"}, timeout=10)

    assert response.status_code == 400


def test_bytes_that_are_no_text_in_a_header_are_refused(broker: Broker) -> None:
    """Check that a header with invalid bytes gets status 400; only a raw socket can send such a header."""
    port = int(broker.url.rsplit(":", 1)[1])
    lines = [f"{name}: {value}".encode() for name, value in binary().items()]
    with socket.create_connection(("127.0.0.1", port)) as raw:
        head = [b"POST / HTTP/1.1", b"host: x", b"content-length: 2", b"connection: close", b"ce-subject: \xff", *lines]
        raw.sendall(b"\r\n".join([*head, b"", b"{}"]))
        answer = raw.makefile("rb").read()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in broker.text


def test_a_connection_that_breaks_off_leaves_the_broker_well(broker: Broker) -> None:
    """Check that an incomplete request is ignored."""
    port = int(broker.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nce-type: t\r\n\r\nabc")

    broker.post()
    assert "Traceback" not in broker.text


@pytest.mark.parametrize("path", ["/", "/node-maintenance/default", "/health/liveness"])
def test_any_path_takes_events(broker: Broker, path: str) -> None:
    """Check that the ingress accepts events at any path, since Knative's ingress has the broker's name in its path."""
    broker.post(path=path)


def test_types_that_nobody_knows_are_counted_together(broker: Broker) -> None:
    """Check that unknown event types share one time series, so that clients cannot create any number of series."""
    for number in range(3):
        broker.post(type=f"never.heard.of.{number}")

    figures = requests.get(f"{broker.url}/metrics", timeout=10).text

    assert 'nodemaintenance_delivery_events_accepted_total{type="other"}' in figures
    assert "never.heard.of" not in figures


def test_health_and_figures(broker: Broker) -> None:
    """Check liveness, readiness, and the metrics by event type, Trigger and outcome."""
    broker.post(id="counted", type="wanted")
    broker.wait_line(msg="delivered", id="counted")

    figures = requests.get(f"{broker.url}/metrics", timeout=10).text

    assert requests.get(f"{broker.url}/health/liveness", timeout=10).status_code == 200
    assert requests.get(f"{broker.url}/health/readiness", timeout=10).status_code == 200
    assert 'nodemaintenance_delivery_events_accepted_total{type="wanted"} 1.0' in figures
    assert 'nodemaintenance_delivery_attempts_total{result="delivered",trigger="f"} 1.0' in figures
    assert "nodemaintenance_delivery_queue_length 0.0" in figures
    assert "nodemaintenance_delivery_in_flight 0.0" in figures
    assert 'nodemaintenance_delivery_seconds_count{trigger="f"} 1.0' in figures


def test_json_data_of_every_form_arrives_as_it_was_sent(receiver: Receiver, start: Start) -> None:
    """Check that JSON data of any form is delivered unchanged, also lists, which the SDK would format as Python."""
    broker = start(trigger("f"))
    bodies: list[Any] = ['[1, "x"]', '{"a":{"b":null}}', ""]
    for number, body in enumerate(bodies):
        broker.post(body, id=str(number), partitionkey="k")

    received = receiver.wait_for("/f", len(bodies))

    assert [request.body.decode() for request in received] == bodies
