"""Tests in which each API request of each step fails once, in each way that an API server can fail.

tests/functions/maintenance/test_faults.py does the same for the steps of the component `maintenance`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from cloudevents.core.base import BaseCloudEvent

from chaos.api_fault_proxy import CONNECTION_RESET, NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions import installs
from functions.app import FUNCTIONS
from functions.cpu_labels import label_cpu
from functions.serving import handler
from kube import install_lease
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.virtualization import migration_claims
from kube.virtualization.migration_claims import LEASE_PATH
from localcluster.cluster import LocalCluster
from localcluster.simulators.openshift import FakeCvo
from tests.functions.conftest import Functions, run_idle_cluster, start_fault_proxy
from tests.functions.event_builders import build_tick
from tests.functions.mutex.conftest import OLD_VERSION
from tests.functions.scenarios import SCENARIOS, ScenarioWorkload
from tests.manifests.documented_rights import read_documented_rights
from tests.proofs import proves
from tests.sources import list_steps


def build_fault_message(fault_kind: str) -> str:
    """Return the error message by which the tests recognize a fault of this kind."""
    return f"the test makes this request fail with {fault_kind}"


FAULTS = {
    **{kind: Fault(int(kind), build_fault_message(kind)) for kind in ("401", "403", "409", "429", "500", "503")},
    "reset": CONNECTION_RESET,
    "busy": Fault(429, build_fault_message("busy"), 1, {"details": {"retryAfterSeconds": 1}}),
}
"""Map from kind of fault to response to the request. `429` has no `Retry-After`; `busy` is a 429 with `Retry-After`."""
UNRETRYABLE_FAULTS = ("401", "403")
"""Kinds of fault that a retry does not resolve, so that the step must report them to the administrator."""
REQUESTS_WITH_LOGGED_REJECTION = {
    "resync-runs": {
        *("get clusterversions", "list jobs", "list machineconfigpools", "list mutexrules", "list mutexrunconfigs"),
        *("list mutextargets", "list nodes"),
    },
    "renew-certificates": {
        *("list configmaps", "list secrets", "create configmaps", "create secrets", "patch secrets"),
        "patch validatingwebhookconfigurations",
    },
    "check-rule": {"get mutexrules", "patch mutexrules/status"},
    "check-target": {"get mutextargets", "list machineconfigpools", "list nodes", "patch mutextargets/status"},
    "label-cpu": {"patch nodes"},
}
"""Map from step to requests whose rejection is only logged, because no status can report it.

The step sends these requests again at the next tick.
"""
OPTIONAL_REQUESTS = {
    "renew-certificates": {
        *("list apiservices", "list customresourcedefinitions"),
        *("list mutatingwebhookconfigurations", "list validatingwebhookconfigurations"),
    },
    "migrate": {"create virtualmachineinstancemigrations"},
    "protect": {"create poddisruptionbudgets", "list nodemaintenances"},
}
"""Map from step to requests whose failure does not keep the step from handling other objects.

The step sends these requests again at the next tick.
"""
OVERWRITTEN_CONDITIONS = {
    "claim-pools": "TargetPoolsPaused",
    "release-node": "NodeUpgrade",
    "run-job, create": "JobRun",
}
"""Map from scenario to condition that reports a rejected request, until the next step or the end overwrites it."""
HALTING_REQUEST = ("run-job", "create jobs")
"""Step and request: if the API server rejects the Job, the run halts and an administrator must resume it."""
FINALIZER_REQUEST = ("restore-pools", "patch mutexrunconfigs")
"""Step and request: if the request fails, the finished run keeps its finalizer.

At the next tick, `resync-runs` then emits `run.restore_pending`.
"""
LOST_REPLIES = {("protect", "get nodes"), ("protect", "list nodemaintenances")}
"""Pairs of step and request: if the request fails, the step's reply is lost.

The step has already written the PodDisruptionBudget, so the next delivery changes nothing and gets no reply. At the
next tick, `evict` lists the pods in any case.
"""
DEADLINE_SECONDS = 20.0
"""Deadline for all requests of one step execution, long enough for a busy machine."""
NO_RESPONSE_DEADLINE_SECONDS = 1.6
"""Deadline for all requests of one step execution if a request gets no response; the same as in production."""


NO_RESPONSE_SCENARIOS = [name for name in SCENARIOS if name != "renew-certificates"]
"""Scenarios of steps that answer 503 if their first request gets no response.

The step `renew-certificates` is excluded, because it continues without the response to its first request.
"""


class StepResponse(NamedTuple):
    """A step's response: the HTTP status, the type of the event or "", the body, and the logged messages."""

    status: int
    type: str
    body: str
    log: str


class BaselineRun(NamedTuple):
    """Result of a step's execution without faults: the sent requests, the response, and the end state."""

    requests: list[str]
    response: StepResponse
    state: Object


class FaultRunner:
    """Runs scenarios on an idle cluster, with functions that send their API requests through a fault proxy."""

    def __init__(
        self, local_cluster: LocalCluster, functions: Functions, fault_proxy: FaultProxy, proxied_functions: Functions
    ) -> None:
        self.local, self.functions, self.faults, self.proxied_functions = (
            local_cluster,
            functions,
            fault_proxy,
            proxied_functions,
        )
        self.admin: SyncClient = local_cluster.get_client()
        self.baselines: dict[str, BaselineRun] = {}

    @contextmanager
    def prepare(self, scenario_name: str) -> Iterator[tuple[ScenarioWorkload, BaseCloudEvent]]:
        """Prepare a scenario and yield it; then stop all faults and delete the scenario's objects."""
        self.admin.run(get_or_none(self.admin.api.request("DELETE", install_lease.LEASE_PATH)))
        cache = installs.InstallLeaseCache()
        with (
            pytest.MonkeyPatch.context() as patched,
            delete_objects_at_exit(ScenarioWorkload(self.local, self.admin, self.functions)) as workload,
        ):
            for module in (installs, label_cpu):
                patched.setattr(module, "INSTALL_LEASE_CACHE", cache)
            event = SCENARIOS[scenario_name](workload)
            try:
                yield workload, event
            finally:
                self.faults.stop_faults()

    def deliver(self, scenario_name: str, event: BaseCloudEvent) -> StepResponse:
        """Post the event to the scenario's step, and return the response."""
        with capture_log() as lines:
            response = self.proxied_functions.post(scenario_name.partition(",")[0], event)
        return StepResponse(response.status_code, response.headers.get("ce-type", ""), response.text, "\n".join(lines))

    def get_baseline(self, scenario_name: str) -> BaselineRun:
        """Return the cached result of the scenario without faults."""
        if scenario_name not in self.baselines:
            with self.prepare(scenario_name) as (workload, event):
                requests: list[str] = []
                self.faults.inject(requests.append)
                response = self.deliver(scenario_name, event)
                self.baselines[scenario_name] = BaselineRun(requests, response, read_end_state(workload))
        return self.baselines[scenario_name]


class LineHandler(logging.Handler):
    """Handler that collects the messages of a logger.

    Attributes:
        lines: The messages that have been logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record's message to `lines`."""
        self.lines.append(record.getMessage())


@contextmanager
def capture_log() -> Iterator[list[str]]:
    """Yield the list of messages that are logged during the `with` block."""
    handler = LineHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def delete_objects_at_exit(workload: ScenarioWorkload) -> Iterator[ScenarioWorkload]:
    """Yield the workload, and delete its objects at the end of the `with` block."""
    try:
        yield workload
    finally:
        workload.delete_objects()


@pytest.fixture(scope="module")
def fault_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultRunner]:
    """Yield a runner with a cluster, a fault proxy, and all functions with and without the proxy."""
    with pytest.MonkeyPatch.context() as patched:
        for variable in ("FUNCTION", "K_SINK"):
            patched.delenv(variable, raising=False)
        patched.setattr(handler, "API_DEADLINE_SECONDS", DEADLINE_SECONDS)
        for constant in ("MIN_BACKOFF", "MAX_BACKOFF", "CLAIM_DURATION"):  # Retry a failed migration without a delay.
            patched.setattr(migration_claims, constant, timedelta(0))
        with (
            run_idle_cluster(tmp_path_factory.mktemp("sweep")) as local,
            closing(Functions(local)) as functions,
            start_fault_proxy(local, tmp_path_factory.mktemp("kubeconfigs")) as (faults, proxied_functions),
        ):
            FakeCvo(local.get_client()).install(OLD_VERSION)
            yield FaultRunner(local, functions, faults, proxied_functions)


VOLATILE_PATTERNS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "TIME"),
    (re.compile(r"\b[0-9a-f]{10,}\b"), "HEX"),
    (re.compile(r"[A-Za-z0-9+/=]{100,}"), "BASE64"),
    (re.compile(r"\b(tick|hint)-\d+"), "EVENT"),
)
"""Pattern of values that differ between two executions with the same result."""
GENERATED_NAME = re.compile(r"\b(node|maintenance|work)-\d+")
"""Pattern of generated names, which are compared by the order in which they appear."""


def read_end_state(workload: ScenarioWorkload) -> Object:
    """Return the compared objects by path, without values that differ between executions with the same result."""
    api = workload.client.api
    states = workload.client.gather_all(*(get_or_none(api.get(path)) for path in workload.compared_paths))
    objects = {
        path: _select_compared_fields(path, item) for path, item in zip(workload.compared_paths, states, strict=True)
    }
    text = json.dumps(objects)
    for pattern, replacement in VOLATILE_PATTERNS:
        text = pattern.sub(replacement, text)
    names: dict[str, str] = {}
    text = GENERATED_NAME.sub(lambda match: names.setdefault(match[0], f"{match[1]}-{chr(97 + len(names))}"), text)
    state: Object = json.loads(text)
    return state


def _select_compared_fields(path: str, kubernetes_object: Object | None) -> object:
    """Return the part of an object that the step determines, or None for a missing object or a terminating pod."""
    if kubernetes_object is None or ("/pods/" in path and kubernetes_object["metadata"].get("deletionTimestamp")):
        return None
    if "items" in kubernetes_object:
        return [
            _select_compared_fields(path, child)
            for child in kubernetes_object["items"]
            if child["metadata"]["name"] != "kube-root-ca.crt"
        ]
    metadata = kubernetes_object["metadata"]
    compared: dict[str, Any] = {key: metadata.get(key) for key in ("name", "labels", "annotations", "finalizers")}
    compared["deleting"] = "deletionTimestamp" in metadata
    if path == LEASE_PATH:
        return compared["name"]  # The Lease's other fields do not matter, because the Lease expires.
    if "/nodes/" in path:
        taints = [
            taint for taint in kubernetes_object["spec"].get("taints", []) if "node.kubernetes.io/" not in taint["key"]
        ]
        return {**compared, "taints": taints, "unschedulable": kubernetes_object["spec"].get("unschedulable", False)}
    if any(f"/{kind}" in path for kind in ("pods", "jobs", "poddisruptionbudgets")):
        return compared  # Kubernetes' controllers write the object's other fields.
    if any(f"/{kind}" in path for kind in ("secrets", "configmaps")):
        return {**compared, "data": sorted(kubernetes_object.get("data") or {})}
    return {
        **compared,
        **{key: value for key, value in kubernetes_object.items() if key not in ("metadata", "kind", "apiVersion")},
    }


def build_fault_rule(fault: Fault, failing_request: str, failed_requests: list[str]) -> Callable[[str], Fault | None]:
    """Return a fault rule that makes one request, such as "get nodes 2", fail and adds it to `failed_requests`.

    The API client retries a read after a connection reset, so the fault `CONNECTION_RESET` also resets the retries.
    """
    kind, _, number = failing_request.rpartition(" ")

    def choose_fault(request: str) -> Fault | None:
        name, _, count = request.rpartition(" ")
        if request != failing_request and not (fault is CONNECTION_RESET and name == kind and int(count) > int(number)):
            return None
        failed_requests.append(request)
        return fault

    return choose_fault


@proves("X-6a")
@pytest.mark.slow
@pytest.mark.parametrize("scenario_name", SCENARIOS)
def test_step_tolerates_failure_of_each_api_request(fault_runner: FaultRunner, scenario_name: str) -> None:
    """Check that a step tolerates the failure of each of its API requests.

    The step answers 503, reports the failure, or works without the response. The next delivery leads to the same end
    state as without faults.
    """
    baseline = fault_runner.get_baseline(scenario_name)
    assert baseline.requests
    assert baseline.response.status in (200, 204), baseline.response.body

    problems = [
        problem
        for request in baseline.requests
        for problem in find_response_problems(fault_runner, scenario_name, request)
    ]

    assert not problems, "\n".join(problems)


@proves("X-6a")
@pytest.mark.slow
@pytest.mark.parametrize("scenario_name", NO_RESPONSE_SCENARIOS)
def test_step_answers_503_if_first_api_request_gets_no_response(
    fault_runner: FaultRunner, scenario_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a step answers 503 if its first API request gets no response, and that the next delivery succeeds."""
    baseline = fault_runner.get_baseline(scenario_name)
    request = baseline.requests[0]
    with fault_runner.prepare(scenario_name) as (workload, event):
        with monkeypatch.context() as patched:
            patched.setattr(handler, "API_DEADLINE_SECONDS", NO_RESPONSE_DEADLINE_SECONDS)
            fault_runner.faults.inject(build_fault_rule(NO_RESPONSE, request, []))
            first_response = fault_runner.deliver(scenario_name, event)
            fault_runner.faults.stop_faults()
        fault_runner.deliver(scenario_name, get_next_delivery(event))
        end_state = read_end_state(workload)

    assert first_response.status == 503
    assert is_same_end_state(scenario_name, end_state, baseline.state)


def test_scenarios_cover_all_steps() -> None:
    """Check that the scenarios cover all steps of other components than `maintenance`, except `record`."""
    assert {name.partition(",")[0] for name in SCENARIOS} == FUNCTIONS.keys() - {"record"} - list_steps("maintenance")
    assert read_documented_rights("record") == set()


def get_next_delivery(event: BaseCloudEvent) -> BaseCloudEvent:
    """Return the event of the next delivery: a new tick after a tick, otherwise the same event again."""
    return build_tick() if event.get_type() == events.TICK else event


def find_response_problems(fault_runner: FaultRunner, scenario_name: str, request: str) -> Iterator[str]:
    """Make this API request of a scenario fail with each kind of fault, and yield the problems with the responses.

    Each delivery gets the next fault until the step has reached its end state; the last delivery has no fault. If a
    fault causes a problem after earlier faults, the fault is repeated in a newly prepared scenario.
    """
    baseline, remaining_faults = fault_runner.get_baseline(scenario_name), list(FAULTS)
    while remaining_faults:
        failed: list[str] = []
        with fault_runner.prepare(scenario_name) as (workload, event):
            responses: list[StepResponse] = []
            state: Object = {}
            while remaining_faults and state != baseline.state:
                kind, failed_requests = remaining_faults[0], list[str]()
                fault_runner.faults.inject(build_fault_rule(FAULTS[kind], request, failed_requests))
                responses.append(fault_runner.deliver(scenario_name, event))
                fault_runner.faults.stop_faults()
                state = read_end_state(workload)
                if (
                    not failed_requests
                ):  # The step did not send the request, because an earlier delivery has made the change.
                    break
                problem = find_response_problem(scenario_name, request, kind, baseline, responses[-1], state)
                if problem and failed:  # An earlier fault may have caused the problem, so prepare the scenario again.
                    break
                failed.append(remaining_faults.pop(0))
                if problem:
                    yield f"{request}, {kind}: {problem}: {responses[-1]}"
            responses.append(fault_runner.deliver(scenario_name, get_next_delivery(event)))
            if (scenario_name, strip_number(request)) == FINALIZER_REQUEST:
                restore_event = workload.functions.invoke("resync-runs", build_tick())
                assert restore_event is not None, "resync-runs does not end a finished run that has a finalizer"
                responses.append(fault_runner.deliver(scenario_name, restore_event))
            end_state = read_end_state(workload)
        if not failed:
            yield f"{request}: not sent in the delivery with the fault {remaining_faults.pop(0)}"
        if not is_same_end_state(scenario_name, end_state, baseline.state) and not must_administrator_resume_run(
            scenario_name, request, failed
        ):
            yield f"{request}, {failed}: different end state: {describe_difference(baseline.state, end_state)}"
        has_expected_response = baseline.response.type in {response.type for response in responses}
        if not (
            has_expected_response
            or must_administrator_resume_run(scenario_name, request, failed)
            or is_reply_lost(scenario_name, request)
        ):
            yield f"{request}, {failed}: no response had the event type {baseline.response.type}: {responses}"


def is_same_end_state(scenario_name: str, actual: Object, expected: Object) -> bool:
    """Return whether the two end states are equal except for a condition that the next step overwrites."""
    overwritten_condition = OVERWRITTEN_CONDITIONS.get(scenario_name)

    def normalize_state(state: Object) -> str:
        objects = json.loads(json.dumps(state))
        for kubernetes_object in filter(None, objects.values()):
            status = kubernetes_object.get("status", {}) if isinstance(kubernetes_object, dict) else {}
            if scenario_name.startswith("restore-pools"):
                # An attempt of which some requests were rejected records its progress there.
                status.get("record", {}).pop("restored", None)
            conditions = status.get("conditions", [])
            status["conditions"] = sorted(
                (condition for condition in conditions if condition["type"] != overwritten_condition),
                key=lambda condition: str(condition["type"]),
            )
        return json.dumps(objects, sort_keys=True)

    return normalize_state(actual) == normalize_state(expected)


def strip_number(request: str) -> str:
    """Return a request such as "get nodes 2" without its number."""
    return request.rpartition(" ")[0]


def must_administrator_resume_run(scenario_name: str, request: str, failed: list[str]) -> bool:
    """Return whether an administrator must resume the run after one of the kinds of fault in `failed`."""
    step_and_request = scenario_name.partition(",")[0], strip_number(request)
    return step_and_request == HALTING_REQUEST and bool({*failed} & {*UNRETRYABLE_FAULTS})


def is_reply_lost(scenario_name: str, request: str) -> bool:
    """Return whether the reply of the step is lost if this request fails."""
    return (scenario_name, strip_number(request)) in LOST_REPLIES


def describe_difference(expected: Object, actual: Object) -> str:
    """Return a description of the objects that differ between the two end states."""
    return "; ".join(
        f"{expected_item} is not {actual_item}"
        for expected_item, actual_item in zip(expected.values(), actual.values(), strict=True)
        if expected_item != actual_item
    )


def find_response_problem(
    scenario_name: str, request: str, kind: str, baseline: BaselineRun, response: StepResponse, state: Object
) -> str:
    """Return the problem with the response to a delivery in which this request failed, or "" if there is none."""
    if response.status not in (200, 204, 503):
        return f"status {response.status}"
    if "DisruptionBudget" in response.body:
        return "failure reported as a disruption budget"
    is_done = response.type == baseline.response.type and state == baseline.state
    if response.status == 503 or is_done:
        return ""
    if kind in UNRETRYABLE_FAULTS and any(
        build_fault_message(kind) in text for text in (response.body, json.dumps(state))
    ):
        return ""
    step = scenario_name.partition(",")[0]
    if kind in UNRETRYABLE_FAULTS and step == "run-job" and response.type == events.RUN_HALTED:
        return ""
    sent_request = strip_number(request)
    is_logged = (
        kind in UNRETRYABLE_FAULTS
        and sent_request in REQUESTS_WITH_LOGGED_REJECTION.get(step, ())
        and build_fault_message(kind) in response.log
    )
    return "" if is_logged or sent_request in OPTIONAL_REQUESTS.get(step, ()) else "failure neither reported nor logged"
