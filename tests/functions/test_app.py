"""Tests of the HTTP interface: invalid and irrelevant events, missing rights, and the health and metrics pages."""

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
from eventing.logs import JsonLines
from eventing.http_binding import BODY_LIMIT, binary
from functions.app import FUNCTIONS, create_app
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.processes import free_port
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, said
from tests.proofs import proves
from tests.workload import Audit, Workload

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "functions" / "gunicorn.conf.py")
JSON = {"content-type": "application/json"}
HEADERS = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/test", "ce-type": events.MAINTENANCE_BEGUN, **JSON}
STRUCTURED = {"content-type": "application/cloudevents+json"}
REFERENCE = {"apiVersion": MEDIK8S.api_version, "name": "x", "uid": "1"}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


BAD = {
    "no event at all": ({}, b"{}", 415, "not a CloudEvent"),
    "an empty request": ({}, b"", 415, "not a CloudEvent"),
    "bad JSON": (HEADERS, b"{", 400, "JSON"),
    "bytes": (HEADERS, b"\xff\xfe", 400, "JSON"),
    "a string": (HEADERS, b'"text"', 400, "data is not"),
    "a list": (HEADERS, b"[]", 400, "data is not a JSON object"),
    "no data": (without("content-type"), b"", 400, "data is not a JSON object"),
    "no type": (without("ce-type"), b"{}", 400, "type missing"),
    "no id": (without("ce-id"), b"{}", 400, "id missing"),
    "no source": (without("ce-source"), b"{}", 400, "source missing"),
    "no specversion": (without("ce-specversion"), b"{}", 400, "specversion missing"),
    "an old specversion": ({**HEADERS, "ce-specversion": "0.3"}, b"{}", 400, "0.3"),
    "a bad time": ({**HEADERS, "ce-time": "yesterday"}, b"{}", 400, "not a CloudEvent 1.0: Expected 4 digits"),
    "plain text": ({**HEADERS, "content-type": "text/plain"}, b"{}", 415, "text/plain"),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, b"a=b", 415, "application/x-www-form-urlencoded"),
    "no content type": (without("content-type"), b"{}", 415, "missing"),
    "a batch": ({"content-type": "application/cloudevents-batch+json"}, b"[]", 415, "one event a request"),
    "structured bad JSON": (STRUCTURED, b"{", 400, "not a CloudEvent"),
    "structured list": (STRUCTURED, b"[]", 400, "not a CloudEvent"),
    "structured null": (STRUCTURED, b"null", 400, "not a CloudEvent"),
    "structured nothing": (STRUCTURED, b"", 400, "not a CloudEvent"),
    "structured without type": (STRUCTURED, b'{"specversion":"1.0","id":"1","source":"/a"}', 400, "type"),
    "five megabytes": (HEADERS, b" " * 5_000_000, 413, str(BODY_LIMIT)),
    "no maintenance": (HEADERS, b'{"node":"x"}', 400, "data.maintenance is missing"),
    "maintenance is a string": (HEADERS, b'{"node":"x","maintenance":"y"}', 400, "data.maintenance is missing"),
    "no uid": (HEADERS, json.dumps({"node": "x", "maintenance": {**REFERENCE, "uid": ""}}).encode(), 400, "uid"),
    "a name that is a number": (
        HEADERS,
        json.dumps({"node": "x", "maintenance": {**REFERENCE, "name": 7}}).encode(),
        400,
        "name",
    ),
    "no node": (HEADERS, json.dumps({"maintenance": REFERENCE}).encode(), 400, "data.node is missing"),
    "another group": (
        HEADERS,
        json.dumps({"node": "x", "maintenance": {**REFERENCE, "apiVersion": "v1"}}).encode(),
        400,
        "apiVersion v1 is none of",
    ),
}


@proves("X-1")
@pytest.mark.parametrize(("headers", "body", "code", "fault"), BAD.values(), ids=BAD)
def test_what_is_no_event_is_refused_in_one_line(
    functions: Functions, audit: Audit, headers: dict[str, str], body: bytes, code: int, fault: str
) -> None:
    """X-1: the function rejects an invalid event with a 4xx and one line that names the fault, and writes nothing."""
    response = functions.clients["cordon"].post("/cordon", data=body, headers=headers)

    assert response.status_code == code
    assert fault in response.text
    assert response.text.count("\n") == 1
    assert "Traceback" not in response.text
    assert audit.writes_by() == []


def test_a_large_body_that_does_not_say_its_size_is_refused_in_one_line(functions: Functions) -> None:
    """X-1: the function rejects a chunked 5 MB body without Content-Length with a one-line 413."""
    body, whole = io.BytesIO(b" " * 5_000_000), {"wsgi.input_terminated": True}

    response = functions.clients["cordon"].post("/cordon", input_stream=body, headers=HEADERS, environ_overrides=whole)

    assert response.status_code == 413
    assert response.text == f"at most {BODY_LIMIT} bytes are taken\n"


@pytest.mark.parametrize(
    ("step", "kind", "data"),
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
        ("restore", events.RESOURCE_UPDATED, {"kind": "NodeMaintenance", "metadata": None}),
        ("restore", events.RESOURCE_UPDATED, {"kind": "NodeMaintenance", "metadata": "text"}),
        ("restore", events.RESOURCE_UPDATED, {"kind": "NodeMaintenance", "metadata": {"deletionTimestamp": "x"}}),
        ("begin", events.RESOURCE_ADDED, {"kind": "NodeMaintenance"}),
        ("begin", events.RESOURCE_ADDED, {"kind": "NodeMaintenance", "spec": "text", "metadata": {"name": "x"}}),
        ("status", events.MAINTENANCE_FAILED, {"maintenance": REFERENCE, "blocked": "text"}),
        ("evict", events.PODS_GONE, {"maintenance": REFERENCE, "node": "x", "podsVersion": {"a": 1}}),
        ("evict", events.BUDGET_OPENED, {"maintenance": REFERENCE, "node": "x", "budgetsVersion": "text"}),
    ],
)
def test_half_an_object_is_no_crash(
    functions: Functions, audit: Audit, step: str, kind: str, data: dict[str, object]
) -> None:
    """X-1: missing fields and fields of the wrong type are rejected or ignored; they cause neither 500 nor a write."""
    headers = {**HEADERS, "ce-type": kind}

    response = functions.clients[step].post(f"/{step}", data=json.dumps(data), headers=headers)

    assert response.status_code in (200, 204, 400), response.text
    assert "Traceback" not in response.text
    assert audit.writes_by() == []


@proves("X-1")
@pytest.mark.parametrize("step", [name for name in FUNCTIONS if name != "record"])
def test_an_unknown_type_is_ignored(functions: Functions, audit: Audit, step: str) -> None:
    """X-1: a function answers an event type that it does not consume with 204, so that no broker retries it."""
    headers = {**HEADERS, "ce-type": "com.example.other"}

    response = functions.clients[step].post(f"/{step}", data=b"{}", headers=headers)

    assert (response.status_code, response.data) == (204, b"")
    assert audit.writes_by() == []


@proves("X-1", "X-4")
@pytest.mark.parametrize(("step", "kind"), [("begin", "add"), ("restore", "update"), ("guard", "update")])
def test_an_unknown_kind_is_ignored(functions: Functions, audit: Audit, step: str, kind: str) -> None:
    """X-1, X-4: a function ignores API server events about objects of another kind."""
    headers = {**HEADERS, "ce-type": f"dev.knative.apiserver.resource.{kind}", "ce-kind": "ConfigMap"}

    assert functions.clients[step].post(f"/{step}", data=b"{}", headers=headers).status_code == 204
    assert audit.writes_by() == []


@pytest.fixture
def alone(quiet: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """Yield a test client of the app with FUNCTION=evict."""
    monkeypatch.setenv("FUNCTION", "evict")
    door = Cluster(str(quiet.kubeconfig))
    yield create_app(door).test_client()
    door.close()


def test_one_function_alone_serves_its_name_and_the_root(alone: FlaskClient) -> None:
    """X-1: with FUNCTION=evict the app serves / and /evict, and no other function."""
    headers = {**HEADERS, "ce-type": "com.example.other"}

    codes = {path: alone.post(path, data=b"{}", headers=headers).status_code for path in ("/", "/evict", "/cordon")}

    assert codes == {"/": 204, "/evict": 204, "/cordon": 404}


def test_all_functions_serve_no_root(functions: Functions) -> None:
    """X-1: without FUNCTION the app serves each function at its name only, and rejects GET."""
    client = functions.clients["begin"]

    assert client.post("/", data=b"{}", headers=HEADERS).status_code == 404
    assert client.get("/begin").status_code == 405


@pytest.mark.parametrize(
    ("environment", "said_of_it"),
    [
        ({"FUNCTION": "nonsense"}, "FUNCTION=nonsense is none of begin, cordon, taint"),
        ({"JOURNAL_DAYS": "soon"}, "JOURNAL_DAYS=soon is no number of days"),
    ],
    ids=["function", "retention"],
)
def test_an_unknown_value_is_a_clear_end(quiet: LocalCluster, environment: dict[str, str], said_of_it: str) -> None:
    """X-1, X-6: gunicorn exits at start and names the environment variable that has an invalid value."""
    address = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "functions.app:create_app()", "-c", CONFIG, "--bind", address],
        env={**os.environ, **environment, "KUBECONFIG": str(quiet.kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode != 0
    assert said_of_it in done.stderr


@proves("X-6")
@pytest.mark.parametrize(
    ("step", "right"), [("begin", "cannot get resource"), ("cordon", "cannot get resource")], ids=["begin", "cordon"]
)
def test_a_missing_right_is_told(quiet: LocalCluster, work: Workload, step: str, right: str) -> None:
    """X-6, NMO-5: a function without a right emits `maintenance.failed`, which names the missing right."""
    item = work.maintenance(work.node())
    door = Cluster(str(quiet.kubeconfig_for(UNPRIVILEGED)))
    message = binary(added(item) if step == "begin" else said(events.MAINTENANCE_BEGUN, item))

    response = create_app(door).test_client().post(f"/{step}", data=message.body, headers=message.headers)

    door.close()
    assert response.status_code == 200
    assert response.headers["ce-type"] == events.MAINTENANCE_FAILED
    assert response.json is not None
    assert response.json["step"] == step
    assert right in response.json["error"]
    assert '"nodemaintenances"' in response.json["error"]


@proves("X-6", "NMO-5")
def test_a_step_without_its_right_evicts_nothing(
    functions: Functions, quiet: LocalCluster, work: Workload, audit: Audit
) -> None:
    """NMO-5, X-6: a forbidden `cordon` is reported in `lastError`; the phase stays Running and no pod is evicted."""
    node = work.node()
    work.pods(node, "a")
    item = work.maintenance(node)
    begun = functions.begin(item)
    functions.answer("status", begun)
    message = binary(begun)

    # evict's account may read what `cordon` reads, but may not patch nodes
    refused = functions.clients["evict"].post("/cordon", data=message.body, headers=message.headers)

    failed = said(events.MAINTENANCE_FAILED, item, data=refused.json)
    functions.answer("status", failed)
    status = work.again(item)["status"]
    assert refused.headers["ce-type"] == events.MAINTENANCE_FAILED
    assert status["phase"] == "Running"
    assert "cannot patch resource" in status["lastError"]
    assert audit.evictions() == []


@proves("X-6")
def test_an_api_server_that_is_away_is_tried_again(work: Workload, tmp_path: Path) -> None:
    """X-6: if the API server is unreachable, the function answers 503, readiness fails and liveness succeeds."""
    nowhere = f"https://127.0.0.1:{free_port()}"
    door = Cluster(str(access.through(nowhere, work.local.kubeconfig, work.local.url, tmp_path / "kubeconfig")))
    client = create_app(door).test_client()
    message = binary(said(events.MAINTENANCE_BEGUN, work.maintenance("nowhere")))

    response = client.post("/cordon", data=message.body, headers=message.headers)
    ready, alive = client.get("/health/readiness"), client.get("/health/liveness")

    door.close()
    assert response.status_code == 503
    assert response.text.startswith("no answer from the API server: ")
    assert (ready.status_code, alive.status_code) == (503, 200)


def test_the_pages_of_a_healthy_server(functions: Functions) -> None:
    """X-1: readiness, liveness and metrics answer 200, and a metric counts events by function and status."""
    client = functions.clients["begin"]
    client.post("/begin", data=b"{}", headers={**HEADERS, "ce-type": "com.example.other"})

    pages = {path: client.get(path) for path in ("/health/readiness", "/health/liveness", "/metrics")}

    assert [page.status_code for page in pages.values()] == [200, 200, 200]
    assert 'nodemaintenance_function_events_total{function="begin",status="204"}' in pages["/metrics"].text


def test_evictions_are_counted(functions: Functions, work: Workload) -> None:
    """NMO-6: the metrics count evicted and blocked pods."""
    node = work.node()
    work.pods(node, "free")
    work.pods(node, "held", labels={"app": "db"})
    work.budget("keep", {"app": "db"}, 1, counted=1)
    before = evicted_and_blocked(functions)

    functions.answer("evict", functions.prepare(work.maintenance(node)))

    after = evicted_and_blocked(functions)
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]


def evicted_and_blocked(functions: Functions) -> list[float]:
    lines = functions.clients["evict"].get("/metrics").text.splitlines()
    said_of = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    name = "nodemaintenance_evictions_total"
    return [float(said_of.get(f'{name}{{outcome="{outcome}"}}', 0)) for outcome in ("evicted", "blocked")]


def test_log_lines_are_json(functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """KNM-5, NMO-17, C31: each log line is a JSON object with level, ts, logger and the object's name and node."""
    node = work.node()
    item = work.maintenance(node, reason='quoted "and\nbroken"')
    caplog.clear()

    with caplog.at_level(logging.INFO):
        functions.begin(item)

    lines = [JsonLines().format(record) for record in caplog.records if record.name == "controller_nodemaintenance"]
    assert len(lines) == 3
    for line in lines:
        assert "\n" not in line
        said_there = json.loads(line)
        assert said_there["level"] == "info"
        assert isinstance(said_there["ts"], float)
        assert said_there["logger"] == "controller_nodemaintenance"
        assert (said_there["Request.Namespace"], said_there["Request.Name"]) == ("", item["metadata"]["name"])
        assert said_there["node"] == node
