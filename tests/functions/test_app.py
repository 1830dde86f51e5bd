"""Tests for the functions' HTTP interface: invalid events, missing permissions, health and metrics endpoints."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from eventing import events
from eventing.http_binding import MAX_BODY_BYTES, encode_binary
from eventing.logs import JsonFormatter
from functions.app import FUNCTIONS, create_app
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.processes import reserve_port
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event
from tests.proofs import proves
from tests.workload import Workload

ROOT = Path(__file__).parents[2]
GUNICORN_CONFIG = str(ROOT / "functions" / "gunicorn.conf.py")
JSON_HEADERS = {"content-type": "application/json"}
VALID_HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/test",
    "ce-type": events.MAINTENANCE_BEGUN,
    **JSON_HEADERS,
}
STRUCTURED_HEADERS = {"content-type": "application/cloudevents+json"}
REFERENCE = {"apiVersion": MEDIK8S.api_version, "name": "x", "uid": "1"}


def build_headers_without(name: str) -> dict[str, str]:
    return {key: value for key, value in VALID_HEADERS.items() if key != name}


INVALID_REQUESTS = {
    "no CloudEvent": ({}, b"{}", 415, "not a CloudEvent"),
    "an empty request": ({}, b"", 415, "not a CloudEvent"),
    "bad JSON": (VALID_HEADERS, b"{", 400, "JSON"),
    "bytes": (VALID_HEADERS, b"\xff\xfe", 400, "JSON"),
    "a string": (VALID_HEADERS, b'"text"', 400, "data is not"),
    "a list": (VALID_HEADERS, b"[]", 400, "data is not a JSON object"),
    "no data": (build_headers_without("content-type"), b"", 400, "data is not a JSON object"),
    "no type": (build_headers_without("ce-type"), b"{}", 400, "type missing"),
    "no id": (build_headers_without("ce-id"), b"{}", 400, "id missing"),
    "no source": (build_headers_without("ce-source"), b"{}", 400, "source missing"),
    "no specversion": (build_headers_without("ce-specversion"), b"{}", 400, "specversion missing"),
    "an old specversion": ({**VALID_HEADERS, "ce-specversion": "0.3"}, b"{}", 400, "0.3"),
    "a bad time": ({**VALID_HEADERS, "ce-time": "yesterday"}, b"{}", 400, "not a CloudEvent 1.0: Expected 4 digits"),
    "plain text": ({**VALID_HEADERS, "content-type": "text/plain"}, b"{}", 415, "text/plain"),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, b"a=b", 415, "application/x-www-form-urlencoded"),
    "no content type": (build_headers_without("content-type"), b"{}", 415, "missing"),
    "a batch": ({"content-type": "application/cloudevents-batch+json"}, b"[]", 415, "one event per request"),
    "structured bad JSON": (STRUCTURED_HEADERS, b"{", 400, "not a CloudEvent"),
    "structured list": (STRUCTURED_HEADERS, b"[]", 400, "not a CloudEvent"),
    "structured null": (STRUCTURED_HEADERS, b"null", 400, "not a CloudEvent"),
    "structured nothing": (STRUCTURED_HEADERS, b"", 400, "not a CloudEvent"),
    "structured without type": (STRUCTURED_HEADERS, b'{"specversion":"1.0","id":"1","source":"/a"}', 400, "type"),
    "five megabytes": (VALID_HEADERS, b" " * 5_000_000, 413, str(MAX_BODY_BYTES)),
    "no maintenance": (VALID_HEADERS, b'{"node":"x"}', 400, "data.maintenance is missing"),
    "maintenance is a string": (VALID_HEADERS, b'{"node":"x","maintenance":"y"}', 400, "data.maintenance is missing"),
    "no uid": (VALID_HEADERS, json.dumps({"node": "x", "maintenance": {**REFERENCE, "uid": ""}}).encode(), 400, "uid"),
    "a name that is a number": (
        VALID_HEADERS,
        json.dumps({"node": "x", "maintenance": {**REFERENCE, "name": 7}}).encode(),
        400,
        "name",
    ),
    "no node": (VALID_HEADERS, json.dumps({"maintenance": REFERENCE}).encode(), 400, "data.node is missing"),
    "another group": (
        VALID_HEADERS,
        json.dumps({"node": "x", "maintenance": {**REFERENCE, "apiVersion": "v1"}}).encode(),
        400,
        "apiVersion v1 is not one of",
    ),
}


@proves("X-1")
@pytest.mark.parametrize(("headers", "body", "status", "message"), INVALID_REQUESTS.values(), ids=INVALID_REQUESTS)
def test_invalid_event_is_rejected_with_one_line_error(
    functions: Functions, audit: AuditLog, headers: dict[str, str], body: bytes, status: int, message: str
) -> None:
    """X-1: the function rejects an invalid event with a 4xx status and a one-line error, and writes nothing."""
    response = functions.clients["cordon"].post("/cordon", data=body, headers=headers)

    assert response.status_code == status
    assert message in response.text
    assert response.text.count("\n") == 1
    assert "Traceback" not in response.text
    assert audit.list_writes_by() == []


def test_large_chunked_body_is_rejected_with_413(functions: Functions) -> None:
    """X-1: the function rejects a chunked 5 MB body without Content-Length with 413 and a one-line error."""
    body, environment = io.BytesIO(b" " * 5_000_000), {"wsgi.input_terminated": True}

    response = functions.clients["cordon"].post(
        "/cordon", input_stream=body, headers=VALID_HEADERS, environ_overrides=environment
    )

    assert response.status_code == 413
    assert response.text == f"body is too large: the limit is {MAX_BODY_BYTES} bytes\n"


@pytest.mark.parametrize(
    ("step", "event_type", "data"),
    [
        ("guard", events.RESOURCE_UPDATED, {}),
        ("guard", events.RESOURCE_UPDATED, {"metadata": None}),
        ("guard", events.RESOURCE_UPDATED, {"metadata": "text"}),
        ("guard", events.RESOURCE_UPDATED, {"metadata": {"name": 7}}),
        ("guard", events.RESOURCE_UPDATED, {"metadata": {"name": "x"}}),
        (
            "guard",
            events.RESOURCE_UPDATED,
            {"metadata": {"name": "x"}, "spec": {"taints": [{}], "unschedulable": True}},
        ),
        ("restore", events.RESOURCE_UPDATED, {"event_type": "NodeMaintenance", "metadata": None}),
        ("restore", events.RESOURCE_UPDATED, {"event_type": "NodeMaintenance", "metadata": "text"}),
        ("restore", events.RESOURCE_UPDATED, {"event_type": "NodeMaintenance", "metadata": {"deletionTimestamp": "x"}}),
        ("begin", events.RESOURCE_ADDED, {"event_type": "NodeMaintenance"}),
        ("begin", events.RESOURCE_ADDED, {"event_type": "NodeMaintenance", "spec": "text", "metadata": {"name": "x"}}),
        ("status", events.MAINTENANCE_STEP_FAILED, {"maintenance": REFERENCE, "blocked": "text"}),
        ("evict", events.PODS_GONE, {"maintenance": REFERENCE, "node": "x", "podsVersion": {"a": 1}}),
        ("evict", events.BUDGET_OPENED, {"maintenance": REFERENCE, "node": "x", "budgetsVersion": "text"}),
    ],
)
def test_malformed_event_fields_do_not_cause_500(
    functions: Functions, audit: AuditLog, step: str, event_type: str, data: dict[str, object]
) -> None:
    """X-1: a function rejects or ignores missing fields and fields of the wrong type, without a 500 or a write."""
    headers = {**VALID_HEADERS, "ce-type": event_type}

    response = functions.clients[step].post(f"/{step}", data=json.dumps(data), headers=headers)

    assert response.status_code in (200, 204, 400), response.text
    assert "Traceback" not in response.text
    assert audit.list_writes_by() == []


@proves("X-1")
def test_function_answers_204_to_unconsumed_event_type(functions: Functions, audit: AuditLog) -> None:
    """X-1: a function answers 204 to an event type that it does not consume, so that no broker retries it."""
    headers = {**VALID_HEADERS, "ce-type": "com.example.other"}

    responses = {
        step: functions.clients[step].post(f"/{step}", data=b"{}", headers=headers)
        for step in FUNCTIONS
        if step != "record"
    }

    answers = {step: (response.status_code, response.data) for step, response in responses.items()}
    assert answers
    assert {step: answer for step, answer in answers.items() if answer != (204, b"")} == {}
    assert audit.list_writes_by() == []


@proves("X-1", "X-4")
@pytest.mark.parametrize(("step", "change"), [("begin", "add"), ("restore", "update"), ("guard", "update")])
def test_function_answers_204_to_event_about_object_of_other_kind(
    functions: Functions, audit: AuditLog, step: str, change: str
) -> None:
    """X-1, X-4: a function ignores ApiServerSource's events about objects of a kind that it does not consume."""
    headers = {**VALID_HEADERS, "ce-type": f"dev.knative.apiserver.resource.{change}", "ce-kind": "ConfigMap"}

    assert functions.clients[step].post(f"/{step}", data=b"{}", headers=headers).status_code == 204
    assert audit.list_writes_by() == []


@pytest.fixture
def evict_client(idle_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """Yield a Flask test client of the app that FUNCTION=evict configures."""
    monkeypatch.setenv("FUNCTION", "evict")
    client = SyncClient(str(idle_cluster.kubeconfig))
    yield create_app(client).test_client()
    client.close()


def test_single_function_is_served_at_root_and_at_its_name(evict_client: FlaskClient) -> None:
    """X-1: with FUNCTION=evict, the app serves only `/` and `/evict`."""
    headers = {**VALID_HEADERS, "ce-type": "com.example.other"}

    codes = {
        path: evict_client.post(path, data=b"{}", headers=headers).status_code for path in ("/", "/evict", "/cordon")
    }

    assert codes == {"/": 204, "/evict": 204, "/cordon": 404}


def test_all_functions_are_served_only_at_their_names(functions: Functions) -> None:
    """X-1: without FUNCTION, the app serves each function only at the path of its name, and rejects GET."""
    client = functions.clients["begin"]

    assert client.post("/", data=b"{}", headers=VALID_HEADERS).status_code == 404
    assert client.get("/begin").status_code == 405


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"FUNCTION": "nonsense"},
            "FUNCTION=nonsense is unknown: set it to one of begin, cordon, taint",
        ),
        ({"JOURNAL_DAYS": "soon"}, "JOURNAL_DAYS=soon is not a number of days"),
    ],
    ids=["function", "retention"],
)
def test_gunicorn_exits_if_environment_variable_is_invalid(
    idle_cluster: LocalCluster, environment: dict[str, str], message: str
) -> None:
    """X-1, X-6: gunicorn exits at start and names the environment variable that has an invalid value."""
    address = f"127.0.0.1:{reserve_port()}"
    result = subprocess.run(
        [sys.executable, "-m", "gunicorn", "functions.app:create_app()", "-c", GUNICORN_CONFIG, "--bind", address],
        env={**os.environ, **environment, "KUBECONFIG": str(idle_cluster.kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert result.returncode != 0
    assert message in result.stderr


@proves("X-6")
@pytest.mark.parametrize(
    ("step", "expected_error"),
    [("begin", "cannot get resource"), ("cordon", "cannot get resource")],
    ids=["begin", "cordon"],
)
def test_missing_permission_is_reported(
    idle_cluster: LocalCluster, workload: Workload, step: str, expected_error: str
) -> None:
    """X-6, NMO-5: a function emits `maintenance.step_failed` with an error that names the missing permission."""
    maintenance = workload.create_maintenance(workload.take_node())
    client = SyncClient(str(idle_cluster.ensure_kubeconfig(UNPRIVILEGED)))
    message = encode_binary(
        build_added_event(maintenance)
        if step == "begin"
        else build_product_event(events.MAINTENANCE_BEGUN, maintenance)
    )

    response = create_app(client).test_client().post(f"/{step}", data=message.body, headers=message.headers)

    client.close()
    assert response.status_code == 200
    assert response.headers["ce-type"] == events.MAINTENANCE_STEP_FAILED
    assert response.json is not None
    assert response.json["step"] == step
    assert expected_error in response.json["error"]
    assert '"nodemaintenances"' in response.json["error"]


@proves("X-6", "NMO-5")
def test_forbidden_cordon_prevents_evictions(
    functions: Functions, idle_cluster: LocalCluster, workload: Workload, audit: AuditLog
) -> None:
    """NMO-5, X-6: a forbidden `cordon` is reported in `lastError`; the phase stays Running and no pod is evicted."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    maintenance = workload.create_maintenance(node)
    begun_event = functions.run_begin(maintenance)
    functions.invoke("status", begun_event)
    message = encode_binary(begun_event)

    # The ServiceAccount of `evict` may read the objects that `cordon` reads, but may not patch nodes.
    response = functions.clients["evict"].post("/cordon", data=message.body, headers=message.headers)

    failure_event = build_product_event(events.MAINTENANCE_STEP_FAILED, maintenance, data=response.json)
    functions.invoke("status", failure_event)
    status = workload.read_maintenance(maintenance)["status"]
    assert response.headers["ce-type"] == events.MAINTENANCE_STEP_FAILED
    assert status["phase"] == "Running"
    assert "cannot patch resource" in status["lastError"]
    assert audit.list_evictions() == []


@proves("X-6")
def test_function_answers_503_if_api_server_is_unreachable(workload: Workload, tmp_path: Path) -> None:
    """X-6: if the API server is unreachable, the function answers 503, readiness fails and liveness succeeds."""
    unreachable_url = f"https://127.0.0.1:{reserve_port()}"
    unreachable_client = SyncClient(
        str(
            access.write_proxied_kubeconfig(
                unreachable_url, workload.local_cluster.kubeconfig, workload.local_cluster.url, tmp_path / "kubeconfig"
            )
        )
    )
    client = create_app(unreachable_client).test_client()
    message = encode_binary(build_product_event(events.MAINTENANCE_BEGUN, workload.create_maintenance("nowhere")))

    response = client.post("/cordon", data=message.body, headers=message.headers)
    ready, alive = client.get("/health/readiness"), client.get("/health/liveness")

    unreachable_client.close()
    assert response.status_code == 503
    assert response.text.startswith("no response from the API server: ")
    assert (ready.status_code, alive.status_code) == (503, 200)


def test_health_and_metrics_endpoints_answer_200(functions: Functions) -> None:
    """X-1: the health and metrics endpoints answer 200, and a metric counts events by function and status."""
    client = functions.clients["begin"]
    client.post("/begin", data=b"{}", headers={**VALID_HEADERS, "ce-type": "com.example.other"})

    pages = {path: client.get(path) for path in ("/health/readiness", "/health/liveness", "/metrics")}

    assert [page.status_code for page in pages.values()] == [200, 200, 200]
    assert 'nodemaintenance_function_events_total{function="begin",status="204"}' in pages["/metrics"].text


def test_evictions_are_counted_in_metrics(functions: Functions, workload: Workload) -> None:
    """NMO-6: the metrics count evicted and blocked pods."""
    node = workload.take_node()
    workload.create_bare_pods(node, "free")
    workload.create_bare_pods(node, "held", labels={"app": "db"})
    workload.create_budget("keep", {"app": "db"}, 1, expected_healthy=1)
    before = read_eviction_counts(functions)

    functions.invoke("evict", functions.run_until_tainted(workload.create_maintenance(node)))

    after = read_eviction_counts(functions)
    assert [new_value - old_value for new_value, old_value in zip(after, before, strict=True)] == [1, 1]


def read_eviction_counts(functions: Functions) -> list[float]:
    lines = functions.clients["evict"].get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    name = "nodemaintenance_evictions_total"
    return [float(values.get(f'{name}{{outcome="{outcome}"}}', 0)) for outcome in ("evicted", "blocked")]


def test_log_lines_are_json(functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """KNM-5, NMO-17, C31: each log line is a JSON object with level, ts, logger and the object's name and node."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node, reason='quoted "and\nbroken"')
    caplog.clear()

    with caplog.at_level(logging.INFO):
        functions.run_begin(maintenance)

    lines = [JsonFormatter().format(record) for record in caplog.records if record.name == "controller_nodemaintenance"]
    assert len(lines) == 3
    for line in lines:
        assert "\n" not in line
        fields = json.loads(line)
        assert fields["level"] == "info"
        assert isinstance(fields["ts"], float)
        assert fields["logger"] == "controller_nodemaintenance"
        assert (fields["Request.Namespace"], fields["Request.Name"]) == ("", maintenance["metadata"]["name"])
        assert fields["node"] == node
