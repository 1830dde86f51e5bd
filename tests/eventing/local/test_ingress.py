"""Tests for the responses of the local delivery's ingress to valid and invalid requests."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from localcluster.http_receiver import Receiver
from tests.eventing.local.broker_process import BrokerProcess, build_binary_headers, build_trigger

StartBroker = Callable[..., BrokerProcess]
STRUCTURED = {"content-type": "application/cloudevents+json"}
VALID_EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


@pytest.fixture(scope="module")
def running_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    receiver = Receiver()
    folder: Path = tmp_path_factory.mktemp("broker")
    broker = BrokerProcess(folder, [build_trigger("f", type="wanted")], receiver.url)
    yield broker
    broker.stop()
    receiver.close()


def build_headers_without(name: str) -> dict[str, str]:
    return {key: value for key, value in build_binary_headers().items() if key != name}


INVALID_REQUESTS: dict[str, tuple[dict[str, str], bytes, str]] = {
    "no type": (build_headers_without("ce-type"), b"{}", "type"),
    "no source": (build_headers_without("ce-source"), b"{}", "source"),
    "bad JSON": (build_binary_headers(), b'{"a": ', "JSON"),
    "bad time": (build_binary_headers(time="yesterday"), b"{}", "time|not a CloudEvent"),
    "bad name": (build_binary_headers(**{"not_allowed": "x"}), b"{}", "not_allowed"),
    "unsupported specversion": (build_binary_headers(specversion="0.3"), b"{}", "specversion"),
    "wrong content type": (build_binary_headers(datacontenttype="image/png"), b"png", "image/png"),
    "not an event": ({"content-type": "application/json"}, b"{}", "not a CloudEvent"),
    "empty request": ({}, b"", "not a CloudEvent"),
    "structured, bad JSON": (STRUCTURED, b"{", "not a CloudEvent"),
    "structured, not an object": (STRUCTURED, b"[1]", "not a CloudEvent"),
    "structured, no type": (STRUCTURED, json.dumps({**VALID_EVENT, "type": ""}).encode(), "type"),
    "structured, injected header": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, "datacontenttype": "application/json\r\nx: y", "data": {}}).encode(),
        "datacontenttype",
    ),
    "structured, invalid media type": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, "datacontenttype": "ä€"}).encode(),
        "datacontenttype",
    ),
    "line break in traceparent": (build_binary_headers(traceparent="00-a%0Ab"), b"{}", "traceparent"),
    "structured, time out of range": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, "time": "9999-12-31T24:00:00Z"}).encode(),
        "range",
    ),
    "structured, lone surrogate in name": (STRUCTURED, json.dumps({**VALID_EVENT, "\ud800": 1}).encode(), "ud800"),
    "long traceparent": (
        {**build_binary_headers(), "traceparent": f"00-{'a' * 32}-{'b' * 16}-01-{'%' * 4000}"},
        b"{}",
        "traceparent",
    ),
    "line break in attribute": (build_binary_headers(node="a%0D%0Ax: y"), b"{}", "node"),
    "control character": (build_binary_headers(subject="a%1B[2J"), b"{}", "subject"),
    "structured, line break": (STRUCTURED, json.dumps({**VALID_EVENT, "subject": "a\nb"}).encode(), "subject"),
    "structured, name with line break": (STRUCTURED, json.dumps({**VALID_EVENT, "name\n": "x"}).encode(), "name"),
    "structured, lone surrogate in value": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, "subject": "\ud800"}).encode(),
        "surrogates",
    ),
    "structured, object as value": (STRUCTURED, json.dumps({**VALID_EVENT, "kind": {"a": 1}}).encode(), "kind"),
    "structured, attribute too long": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, "subject": "x" * 9000}).encode(),
        "subject",
    ),
    "structured, too many attributes": (
        STRUCTURED,
        json.dumps({**VALID_EVENT, **{f"x{number}": "y" for number in range(80)}}).encode(),
        "attributes",
    ),
    "batch": ({"content-type": "application/cloudevents-batch+json"}, json.dumps([VALID_EVENT]).encode(), "batch"),
    "bad compression": ({**build_binary_headers(), "content-encoding": "gzip"}, b"no gzip", "JSON"),
}


@pytest.mark.parametrize(("headers", "body", "expected_words"), INVALID_REQUESTS.values(), ids=INVALID_REQUESTS)
def test_invalid_event_is_rejected_with_one_line_error(
    running_broker: BrokerProcess, headers: dict[str, str], body: bytes, expected_words: str
) -> None:
    """Check that an invalid event is rejected with 400 and a one-line error, and that the broker continues."""
    response = requests.post(running_broker.url, data=body, headers=headers, timeout=10)

    assert response.status_code == 400
    assert response.text.count("\n") == 1
    assert any(word.lower() in response.text.lower() for word in expected_words.split("|")), response.text
    assert "Traceback" not in running_broker.output
    running_broker.post()


def test_event_above_size_limit_is_rejected(running_broker: BrokerProcess) -> None:
    """Check that an event above the size limit is rejected with 413, and that the broker continues."""
    response = requests.post(
        running_broker.url, data=b'"' + b"x" * 5_000_000 + b'"', headers=build_binary_headers(), timeout=10
    )

    assert response.status_code == 413
    assert response.text.count("\n") == 1
    running_broker.post()


def test_compressed_body_is_not_decompressed(running_broker: BrokerProcess) -> None:
    """Check that a compressed body is not decompressed, so that a small gzip body cannot take 50 MB of memory."""
    compressed = gzip.compress(b'"' + b"x" * 50_000_000 + b'"')

    response = requests.post(
        running_broker.url, data=compressed, headers={**build_binary_headers(), "content-encoding": "gzip"}, timeout=10
    )

    assert response.status_code == 400


def test_header_with_invalid_bytes_is_rejected(running_broker: BrokerProcess) -> None:
    """Check that a header with invalid bytes, which only a raw socket can send, is rejected with 400."""
    port = int(running_broker.url.rsplit(":", 1)[1])
    lines = [f"{name}: {value}".encode() for name, value in build_binary_headers().items()]
    with socket.create_connection(("127.0.0.1", port)) as raw:
        request_head = [
            b"POST / HTTP/1.1",
            b"host: x",
            b"content-length: 2",
            b"connection: close",
            b"ce-subject: \xff",
            *lines,
        ]
        raw.sendall(b"\r\n".join([*request_head, b"", b"{}"]))
        response = raw.makefile("rb").read()

    assert response.startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in running_broker.output


def test_incomplete_request_is_ignored(running_broker: BrokerProcess) -> None:
    """Check that an incomplete request is ignored, and that the broker continues."""
    port = int(running_broker.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nce-type: t\r\n\r\nabc")

    running_broker.post()
    assert "Traceback" not in running_broker.output


@pytest.mark.parametrize("path", ["/", "/node-maintenance/default", "/health/liveness"])
def test_events_are_accepted_at_any_path(running_broker: BrokerProcess, path: str) -> None:
    """Check that the ingress accepts events at any path, because Knative's ingress has the Broker's name as path."""
    running_broker.post(path=path)


def test_unknown_event_types_share_one_time_series(running_broker: BrokerProcess) -> None:
    """Check that all unknown event types share one time series, so that clients cannot create unlimited time series."""
    for number in range(3):
        running_broker.post(type=f"never.heard.of.{number}")

    metrics = requests.get(f"{running_broker.url}/metrics", timeout=10).text

    assert 'nodemaintenance_delivery_events_accepted_total{type="other"}' in metrics
    assert "never.heard.of" not in metrics


def test_health_endpoints_and_metrics_are_served(running_broker: BrokerProcess) -> None:
    """Check liveness, readiness, and the metrics by event type, Trigger and outcome."""
    running_broker.post(id="counted", type="wanted")
    running_broker.wait_for_log_line(msg="delivered", id="counted")

    metrics = requests.get(f"{running_broker.url}/metrics", timeout=10).text

    assert requests.get(f"{running_broker.url}/health/liveness", timeout=10).status_code == 200
    assert requests.get(f"{running_broker.url}/health/readiness", timeout=10).status_code == 200
    assert 'nodemaintenance_delivery_events_accepted_total{type="wanted"} 1.0' in metrics
    assert 'nodemaintenance_delivery_attempts_total{result="delivered",trigger="f"} 1.0' in metrics
    assert "nodemaintenance_delivery_queue_length 0.0" in metrics
    assert "nodemaintenance_delivery_in_flight 0.0" in metrics
    assert 'nodemaintenance_delivery_seconds_count{trigger="f"} 1.0' in metrics


def test_json_data_is_delivered_unchanged(receiver: Receiver, start_broker: StartBroker) -> None:
    """Check that any JSON data is delivered unchanged, including lists, which the SDK would format as Python."""
    broker = start_broker(build_trigger("f"))
    bodies: list[Any] = ['[1, "x"]', '{"a":{"b":null}}', ""]
    for number, body in enumerate(bodies):
        broker.post(body, id=str(number), partitionkey="k")

    received = receiver.wait_for_requests("/f", len(bodies))

    assert [request.body.decode() for request in received] == bodies
