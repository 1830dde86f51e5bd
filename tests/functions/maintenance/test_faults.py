"""Tests in which each API request of each maintenance step fails in each way that an API server can fail."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from chaos.api_fault_proxy import CONNECTION_RESET, NO_RESPONSE, Fault, FaultProxy
from eventing import events
from eventing.http_binding import decode_event
from functions.event_data import require_data
from functions.serving import failure_tracker, handler
from kube.maintenance import objects as m
from kube.maintenance.status_patch import UNRESTORED_PREFIX
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions, is_transient_error, run_idle_cluster, start_fault_proxy
from tests.functions.event_builders import build_product_event, build_updated_event
from tests.functions.maintenance.scenarios import (
    Scenario,
    prepare_begin,
    prepare_cordon,
    prepare_duplicate_begin,
    prepare_evict,
    prepare_evict_on_drained_node,
    prepare_guard,
    prepare_restore,
    prepare_resync_with_node_read,
    prepare_resync_with_pod_read,
    prepare_status,
    prepare_taint,
)
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

FAULT_MESSAGE = "fault injected by the test"
FAULTS = {
    "500": Fault(500, f"Internal error occurred: failed calling webhook: {FAULT_MESSAGE}"),
    "503": Fault(503, f"the server is shutting down: {FAULT_MESSAGE}"),
    "429": Fault(429, f"too many requests, {FAULT_MESSAGE}"),
    "429, Retry-After": Fault(429, f"too many requests, {FAULT_MESSAGE}", 1, {"details": {"retryAfterSeconds": 1}}),
    "409": Fault(409, f"the object has been modified: {FAULT_MESSAGE}"),
    "401": Fault(401, f"Unauthorized: {FAULT_MESSAGE}"),
    "403": Fault(403, f"forbidden: {FAULT_MESSAGE}"),
    "reset": CONNECTION_RESET,
    "silence": NO_RESPONSE,
}
RETRYABLE_FAULTS = ("500", "503", "429", "429, Retry-After", "409", "reset", "silence")
"""Kinds of fault after which a retry may succeed."""
DEADLINE_SECONDS = 1.5
"""Deadline for a step's API requests; a request without a response fails after this time."""
MAX_LATE_RESPONSES = 10
"""Maximum number of 503 responses without an injected fault, which a busy machine may cause."""
LIST_MAINTENANCES = "list nodemaintenances"
CHAIN_STEPS = ("cordon", "taint")
"""Steps that consume only events that other steps emit."""
INSTALL_LEASE_REQUESTS = ("create selfsubjectreviews", "get leases")
"""Requests by which all steps except `CHAIN_STEPS` check whether their install is active, unless this is cached."""
SCENARIOS: dict[str, tuple[Scenario, str, set[str]]] = {
    "begin": (
        *(prepare_begin, events.MAINTENANCE_BEGUN),
        {
            *("get nodemaintenances", "get nodes", "list pods", "get daemonsets"),
            *("create leases", "patch nodemaintenances"),
        },
    ),
    "begin, again": (
        prepare_duplicate_begin,
        events.MAINTENANCE_BEGUN,
        {"get nodemaintenances", "get nodes", "get leases"},
    ),
    "cordon": (prepare_cordon, events.NODE_CORDONED, {"get nodemaintenances", "get nodes", "patch nodes"}),
    "taint": (prepare_taint, events.NODE_TAINTED, {"get nodemaintenances", "get nodes", "patch nodes"}),
    "evict": (
        *(prepare_evict, events.PODS_EVICTED),
        {
            *("get nodemaintenances", "get nodes", "list pods", "list poddisruptionbudgets"),
            *("create pods/eviction",),
        },
    ),
    "evict, drained": (
        *(prepare_evict_on_drained_node, events.NODE_DRAINED),
        {"get nodemaintenances", "get nodes", "list pods", "get daemonsets"},
    ),
    "status": (
        *(prepare_status, ""),
        {"get nodemaintenances", "get nodes", "list pods", "patch nodemaintenances/status", "create events"},
    ),
    "restore": (
        *(prepare_restore, events.NODE_RESTORED),
        {
            *("get nodemaintenances", "get nodes", LIST_MAINTENANCES, "patch nodes", "get leases", "delete leases"),
            *("patch nodemaintenances", "create events"),
        },
    ),
    "guard": (prepare_guard, events.NODE_DRIFTED, {LIST_MAINTENANCES, "get nodes", "list events", "create events"}),
    "resync, at a node": (
        *(prepare_resync_with_node_read, events.NODE_DRIFTED),
        {LIST_MAINTENANCES, "list nodes", "list leases", "get nodes"},
    ),
    "resync, at pods": (
        prepare_resync_with_pod_read,
        events.NODE_TAINTED,
        {LIST_MAINTENANCES, "list nodes", "list leases", "list pods"},
    ),
}
"""Map from scenario name to function that prepares it, event type of the last reply, and requests of the step."""
KUBERNETES_EVENT_REQUESTS = {"list events", "create events", "patch events"}
"""Requests for Kubernetes Events, whose failure does not affect the step."""
EVICTION_REQUESTS = {"create pods/eviction"}
"""Requests whose failure the step reports as the reason of a blocked pod."""
EVICTION_REASONS = {
    **dict.fromkeys(("401", "403"), "Forbidden"),
    **dict.fromkeys(("500", "503"), "Error"),
    **dict.fromkeys(("429", "429, Retry-After"), "Busy"),
    "reset": "NoAnswer",
}
"""Map from kind of fault to reason that the status reports for the blocked pod.

A 429 from API Priority and Fairness is never reported as DisruptionBudget.
"""
SINGLE_READS = {("resync", "get nodes"), ("resync", "list pods")}
"""Requests by which a tick reads the state of one maintenance; a failure must not stop the other reads."""
STEPS_WITHOUT_FAILURE_EVENT = ("status", "guard", "resync")
"""Steps that answer 503 and log the failure, because their events name no maintenance or the step writes the status."""
PARTIAL_LISTS = {
    ("restore", LIST_MAINTENANCES),
    ("resync", LIST_MAINTENANCES),
    ("guard", LIST_MAINTENANCES),
    ("resync", "list nodes"),
    ("resync", "list leases"),
}
"""List requests whose rejection is logged, while the step continues with the other lists."""


LASTING_FAILURES = {
    prepare_begin: "get nodes",
    prepare_taint: "patch nodes",
    prepare_evict: "list pods",
    prepare_restore: "patch nodes",
}
"""Map from function that prepares a scenario to request that fails in each delivery until the fault stops."""


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the deadline for a function's API requests."""
    monkeypatch.setattr(handler, "API_DEADLINE_SECONDS", DEADLINE_SECONDS)


@pytest.fixture(autouse=True)
def stop_faults(fault_proxy: FaultProxy) -> Iterator[None]:
    """Stop the fault injection after the test."""
    yield
    fault_proxy.stop_faults()


def fail_each_request_once(
    fault_proxy: FaultProxy,
    fault: Fault,
    prepare_event: Callable[[], BaseCloudEvent],
    post: Callable[[BaseCloudEvent], TestResponse],
) -> Iterator[tuple[str, TestResponse]]:
    """Post an event repeatedly, make another request fail each time, and yield the failed request and the response.

    The last yielded request is "", because no request failed. After a success, the scenario is prepared again. The API
    client retries a read after a connection reset, so a reset affects all requests of the same kind. If a busy machine
    causes a 503 without a fault, the event is posted again.
    """
    failed_requests: list[str] = []
    event, late_responses_left = prepare_event(), MAX_LATE_RESPONSES

    def choose_fault(request: str) -> Fault | None:
        request = request.rpartition(" ")[0] if fault is CONNECTION_RESET else request
        if request in failed_requests or failed_now not in ([], [request]):
            return None
        failed_now[:] = [request]
        return fault

    while True:
        failed_now: list[str] = []
        fault_proxy.inject(choose_fault)
        response = post(event)
        fault_proxy.stop_faults()
        failed_requests += failed_now
        yield (failed_now[0].rstrip(" 0123456789") if failed_now else ""), response
        late_responses_left -= not failed_now
        if not failed_now and (response.status_code < 300 or not late_responses_left):
            return
        if response.status_code < 300:
            event = prepare_event()


def parse_reply(response: TestResponse) -> BaseCloudEvent | None:
    assert response.status_code in (200, 204), response.text
    return decode_event(dict(response.headers), response.data) if response.status_code == 200 else None


TICK_SCENARIOS = ("resync, at a node", "resync, at pods")
"""Scenarios of ticks, which read the objects of all other scenarios."""
TICK_LOCK = threading.Lock()


@proves("X-6", "X-6a")
@pytest.mark.usefixtures("short_deadline")
@pytest.mark.parametrize(
    ("scenario", "fault_kind"), [*itertools.product(SCENARIOS, [kind for kind in FAULTS if kind != "silence"])]
)
def test_each_failed_api_request_is_retried_or_reported(
    functions: Functions,
    proxied_functions: Functions,
    workload: Workload,
    fault_proxy: FaultProxy,
    scenario: str,
    fault_kind: str,
) -> None:
    """X-6: a step answers 503 after a failed request that a retry may resolve, and reports all other failures."""
    check_each_failed_request(functions, proxied_functions, workload, fault_proxy, scenario, fault_kind)


@pytest.fixture(scope="module")
def second_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Functions]]:
    """Yield a second cluster and its functions for the scenarios of ticks."""
    with run_idle_cluster(tmp_path_factory.mktemp("elsewhere")) as cluster, closing(Functions(cluster)) as functions:
        yield cluster, functions


@proves("X-6", "X-6a")
@pytest.mark.abreast
@pytest.mark.usefixtures("short_deadline", "workload")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_steps_answer_503_if_request_gets_no_response(
    functions: Functions, idle_cluster: LocalCluster, second_cluster: tuple[LocalCluster, Functions], scenario: str
) -> None:
    """X-6: a step answers 503 if a request gets no response.

    The scenarios of ticks run in the second cluster, one at a time.
    """
    is_tick_scenario = scenario in TICK_SCENARIOS
    local, direct_functions = second_cluster if is_tick_scenario else (idle_cluster, functions)
    with (
        TICK_LOCK if is_tick_scenario else nullcontext(),
        TemporaryDirectory() as folder,
        start_fault_proxy(local, Path(folder)) as (faults, proxied_functions),
    ):
        check_each_failed_request(
            direct_functions, proxied_functions, Workload(local, local.get_client()), faults, scenario, "silence"
        )


def check_each_failed_request(
    direct_functions: Functions,
    proxied_functions: Functions,
    workload: Workload,
    fault_proxy: FaultProxy,
    scenario: str,
    fault_kind: str,
) -> None:
    """Make each API request in a scenario fail with this kind of fault, and check the step's responses."""
    prepare, expected_type, expected_requests = SCENARIOS[scenario]
    step = scenario.partition(",")[0]
    requests, response = set(), None

    def post(event: BaseCloudEvent) -> TestResponse:
        return proxied_functions.post(step, event)

    for request, response in fail_each_request_once(
        fault_proxy, FAULTS[fault_kind], lambda: prepare(direct_functions, workload), post
    ):
        requests.add(request)
        check_response(step, request, fault_kind, response)

    assert requests >= expected_requests
    lease_writes = {"resync": ("create leases", "patch leases"), "begin": ("create leases",)}.get(step, ())
    assert requests - expected_requests - KUBERNETES_EVENT_REQUESTS <= {
        "",
        *(() if step in CHAIN_STEPS else (*INSTALL_LEASE_REQUESTS, *lease_writes)),
    }
    assert response is not None
    assert response.status_code < 300
    assert response.headers.get("ce-type", "") == expected_type


def check_response(step: str, request: str, fault_kind: str, response: TestResponse) -> None:
    """Assert that the step responds correctly after its API request failed with this kind of fault."""
    assert "DisruptionBudget" not in response.text
    if not request or request in KUBERNETES_EVENT_REQUESTS or (step, request) in SINGLE_READS:
        # After a request without a response, or on a slow machine, the deadline may pass before the later requests.
        is_late = (fault_kind == "silence" and response.status_code == 503) or is_transient_error(response)
        assert is_late or response.status_code in (200, 204)
    elif request in EVICTION_REQUESTS:
        assert response.headers["ce-type"] == events.PODS_EVICTED
        reason = EVICTION_REASONS.get(fault_kind)
        assert reason is None or [pod["reason"] for pod in json.loads(response.data)["blocked"]] == [reason]
    elif fault_kind == "409":
        assert response.status_code in (200, 204, 503)
        assert response.headers.get("ce-type") != events.MAINTENANCE_STEP_FAILED
    elif fault_kind in RETRYABLE_FAULTS:
        assert response.status_code == 503, (request, response.text)
    elif (step, request) in PARTIAL_LISTS:
        assert response.status_code in (200, 204)
    elif step in STEPS_WITHOUT_FAILURE_EVENT:
        assert response.status_code == 503
    else:
        assert response.headers["ce-type"] == events.MAINTENANCE_STEP_FAILED
        assert FAULT_MESSAGE in json.loads(response.data)["error"]


@proves("X-6", "NMO-13")
@pytest.mark.usefixtures("short_deadline")
@pytest.mark.parametrize(
    ("prepare", "failing_request", "fault_kind"),
    [
        *((prepare_cordon, "patch nodes", kind) for kind in RETRYABLE_FAULTS),
        *((scenario, name, "500") for scenario, name in LASTING_FAILURES.items()),
    ],
)
def test_persistent_failure_is_reported_until_resolved(
    functions: Functions,
    proxied_functions: Functions,
    workload: Workload,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Scenario,
    failing_request: str,
    fault_kind: str,
) -> None:
    """X-6, NMO-13: a persistent failure causes 503 responses and is later reported in the status until resolved."""
    step = prepare.__name__.removeprefix("prepare_")
    event = prepare(functions, workload)
    fault_proxy.inject(lambda request: FAULTS[fault_kind] if request.rpartition(" ")[0] == failing_request else None)

    first_response = proxied_functions.post(step, event)
    monkeypatch.setattr(failure_tracker, "REPORT_AFTER_SECONDS", 0.0)
    failure_event = parse_reply(proxied_functions.post(step, event))
    assert failure_event is not None
    functions.invoke("status", failure_event)
    maintenance = workload.read_maintenance(get_maintenance_reference(event))
    monkeypatch.undo()
    fault_proxy.stop_faults()
    final_reply = parse_reply(proxied_functions.post(step, event))

    assert first_response.status_code == 503
    assert failure_event.get_type() == events.MAINTENANCE_STEP_FAILED
    error = require_data(failure_event)["error"]
    assert error
    assert maintenance["status"]["lastError"] == (f"{UNRESTORED_PREFIX}{error}" if step == "restore" else error)
    assert final_reply is not None
    assert final_reply.get_type() != events.MAINTENANCE_STEP_FAILED


def get_maintenance_reference(event: BaseCloudEvent) -> Object:
    """Return the fields of the event's maintenance that the test needs to read the object."""
    data = require_data(event)
    if data.get("kind") == "NodeMaintenance":
        return dict(data)
    reference = data["maintenance"]
    return {"apiVersion": reference["apiVersion"], "metadata": {"name": reference["name"]}}


@proves("X-6")
def test_429_from_busy_server_delays_next_eviction(
    functions: Functions, proxied_functions: Functions, workload: Workload, fault_proxy: FaultProxy
) -> None:
    """X-6: after a 429 from API Priority and Fairness, the pod is blocked as Busy, with the server's message."""
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    maintenance = workload.create_maintenance(node)
    tainted_event = functions.run_until_tainted(maintenance)
    fault_proxy.inject(
        lambda request: FAULTS["429, Retry-After"] if request.startswith("create pods/eviction") else None
    )

    reply = parse_reply(proxied_functions.post("evict", tainted_event))
    assert reply is not None
    functions.invoke("status", reply)
    first_status = workload.read_maintenance(maintenance)["status"]
    second_reply = parse_reply(proxied_functions.post("evict", build_product_event(events.NODE_TAINTED, maintenance)))

    (blocked,) = first_status["blockedPods"]
    assert (blocked["reason"], FAULT_MESSAGE in blocked["message"]) == ("Busy", True)
    assert blocked["retryAfter"] > first_status["lastUpdate"]
    assert FAULT_MESSAGE in first_status["lastError"]
    assert second_reply is not None
    assert fault_proxy.request_counts["create pods/eviction"] == 1  # The pod's backoff has not ended.


@proves("X-6")
@pytest.mark.parametrize("status_code", [404, 409, 429, 500])
def test_webhook_denial_of_eviction_is_reported(
    functions: Functions, proxied_functions: Functions, workload: Workload, fault_proxy: FaultProxy, status_code: int
) -> None:
    """X-6: if a webhook denies an eviction, the pod is blocked with the webhook's message, whatever the HTTP status."""
    node = workload.take_node()
    workload.create_bare_pods(node, f"bare-{node}")
    tainted_event = functions.run_until_tainted(workload.create_maintenance(node))
    denial = f'admission webhook "w.example.com" denied the request: {FAULT_MESSAGE}'
    fault_proxy.inject(
        lambda request: Fault(status_code, denial) if request.startswith("create pods/eviction") else None
    )

    reply = parse_reply(proxied_functions.post("evict", tainted_event))

    assert reply is not None
    assert [(pod["reason"], pod["message"]) for pod in require_data(reply)["blocked"]] == [("Error", denial)]
    assert fault_proxy.request_counts["create pods/eviction"] == 1


@proves("X-6", "NMO-4")
@pytest.mark.parametrize("status_code", [404, 409, 422])
def test_webhook_denial_of_node_patch_is_reported(
    functions: Functions, proxied_functions: Functions, workload: Workload, fault_proxy: FaultProxy, status_code: int
) -> None:
    """X-6: if a webhook denies a node patch, `cordon` reports the webhook's message and does not retry."""
    begun_event = functions.run_begin(workload.create_maintenance(workload.take_node()))
    denial = f'admission webhook "w.example.com" denied the request: {FAULT_MESSAGE}'
    fault_proxy.inject(lambda request: Fault(status_code, denial) if request.startswith("patch nodes") else None)

    reply = parse_reply(proxied_functions.post("cordon", begun_event))

    assert reply is not None
    assert (reply.get_type(), require_data(reply)["error"]) == (events.MAINTENANCE_STEP_FAILED, denial)
    assert fault_proxy.request_counts["patch nodes"] == 1


@proves("X-6")
def test_restore_answers_503_if_admission_policy_rejects_finalizer_of_successor(
    functions: Functions, proxied_functions: Functions, workload: Workload, fault_proxy: FaultProxy
) -> None:
    """X-6, X-7: `restore` answers 503 with the reason if an admission policy rejects the finalizer of the successor."""
    node = workload.take_node()
    first = workload.create_maintenance(node)
    functions.run_until_tainted(first)
    workload.create_maintenance(node)
    workload.delete(m.build_path(first))
    event, refusal = (
        build_updated_event(workload.read_maintenance(first)),
        Fault(422, f"denied by a policy: {FAULT_MESSAGE}"),
    )
    fault_proxy.inject(lambda request: refusal if request.startswith("patch nodemaintenances") else None)

    response = proxied_functions.post("restore", event)

    assert response.status_code == 503
    assert refusal.message in response.text
