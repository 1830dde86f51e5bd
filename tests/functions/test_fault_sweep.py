"""Tests that make each request of each step fail once, in each way that an API server can fail.

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

from eventing import events
from functions import installs
from functions.app import FUNCTIONS
from functions.cpu_labels import label_cpu
from functions.serving import handler
from kube import install_lease
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.virtualization import migration_claims
from kube.virtualization.migration_claims import CLAIM_PATH
from localcluster.cluster import LocalCluster
from tests.fault_proxy import RESET, SILENCE, Fault, Faults
from tests.functions.conftest import Functions, behind_faults, unattended
from tests.functions.event_builders import tick
from tests.functions.mutex.conftest import OLD
from tests.functions.scenarios import SCENARIOS, Stage
from tests.manifests.documented_rights import documented
from tests.openshift import FakeCvo
from tests.proofs import proves
from tests.sources import steps_of


def words(kind: str) -> str:
    """Return the API server's message by which the tests recognize a failure of this kind."""
    return f"the test wants this request to fail by {kind}"


FAULTS = {
    **{kind: Fault(int(kind), words(kind)) for kind in ("401", "403", "409", "429", "500", "503")},
    "reset": RESET,
    "busy": Fault(429, words("busy"), 1, {"details": {"retryAfterSeconds": 1}}),
}
"""Kind of failure → response to the request. `429` has no `Retry-After`; `busy` is a 429 with one."""
REFUSALS = ("401", "403")
"""Failures that a retry does not resolve; the step must report them to the administrator."""
ONLY_LOGGED = {
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
"""Step → requests whose refusal is only logged, since no status can hold it. The next tick sends the request again."""
DONE_WITHOUT = {
    "renew-certificates": {
        *("list apiservices", "list customresourcedefinitions"),
        *("list mutatingwebhookconfigurations", "list validatingwebhookconfigurations"),
    },
    "migrate": {"create virtualmachineinstancemigrations"},
    "protect": {"create poddisruptionbudgets", "list nodemaintenances"},
}
"""Step → requests whose failure does not stop the step's work on other objects. The next tick sends them again."""
REPLACED_BY_THE_NEXT_STEP = {
    "claim-pools": "TargetPoolsPaused",
    "release-node": "NodeUpgrade",
    "run-job, create": "JobRun",
}
"""Scenario → the condition that reports the refusal until the next step, or the Job's end, overwrites it."""
NEEDS_A_PERSON = ("run-job", "create jobs")
"""If the creation of a Job is refused, the run halts and an administrator must resume it."""
FINISHED_BY_THE_TICK = ("restore-pools", "patch mutexrunconfigs")
"""The run is recorded as finished but keeps its finalizer; `resync-runs` emits `run.ended` at the next tick."""
NOT_ANSWERED_AGAIN = {("protect", "get nodes"), ("protect", "list nodemaintenances")}
"""The budget is written, so the next delivery finds nothing to do; at the tick `evict` reads the pods anyway."""
ANSWER_SECONDS = 20.0
"""Deadline for all requests of a step in this test, long enough for a busy machine."""
SILENT_SECONDS = 1.6
"""The product's deadline, used in tests where a request gets no answer."""


SILENT = [name for name in SCENARIOS if name != "renew-certificates"]
"""Scenarios whose first request gets no answer. `renew-certificates` continues without the list that it reads first."""


class Answer(NamedTuple):
    """Response of a step: the HTTP status, the event type or "", the body, and the logged messages."""

    status: int
    type: str
    body: str
    log: str


class Run(NamedTuple):
    """One execution of a step without faults: the requests that it sent, its answer, and the end state."""

    requests: list[str]
    answer: Answer
    state: Object


class Bench:
    """A cluster on which only the called functions run, and the functions with and without the fault proxy."""

    def __init__(self, local: LocalCluster, functions: Functions, faults: Faults, disturbed: Functions) -> None:
        self.local, self.functions, self.faults, self.disturbed = local, functions, faults, disturbed
        self.admin: Cluster = local.door()
        self.known: dict[str, Run] = {}

    @contextmanager
    def prepared(self, name: str) -> Iterator[tuple[Stage, BaseCloudEvent]]:
        """Prepare a scenario; afterwards stop all faults and delete the scenario's objects."""
        self.admin.run(absent_ok(self.admin.api.request("DELETE", install_lease.CLAIM_PATH)))
        claims = installs.Claims()
        with (
            pytest.MonkeyPatch.context() as patched,
            closing_stage(Stage(self.local, self.admin, self.functions)) as stage,
        ):
            for module in (installs, label_cpu):
                patched.setattr(module, "CLAIMS", claims)
            event = SCENARIOS[name](stage)
            try:
                yield stage, event
            finally:
                self.faults.speak_again()

    def deliver(self, name: str, event: BaseCloudEvent) -> Answer:
        """Post the event to the scenario's step."""
        with logged() as lines:
            response = self.disturbed.post(name.partition(",")[0], event)
        return Answer(response.status_code, response.headers.get("ce-type", ""), response.text, "\n".join(lines))

    def undisturbed(self, name: str) -> Run:
        """Return the scenario's execution without faults."""
        if name not in self.known:
            with self.prepared(name) as (stage, event):
                requests: list[str] = []
                self.faults.spoil(requests.append)
                answer = self.deliver(name, event)
                self.known[name] = Run(requests, answer, state_of(stage))
        return self.known[name]


class LineHandler(logging.Handler):
    """Handler that collects the messages of a logger.

    Attributes:
        lines: the messages so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record's message to `lines`."""
        self.lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the list of messages that are logged while the block runs."""
    handler = LineHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def closing_stage(stage: Stage) -> Iterator[Stage]:
    """Yield the stage and delete its objects afterwards."""
    try:
        yield stage
    finally:
        stage.end()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield the cluster and all functions twice: with and without the fault proxy."""
    with pytest.MonkeyPatch.context() as patched:
        for variable in ("FUNCTION", "K_SINK"):
            patched.delenv(variable, raising=False)
        patched.setattr(handler, "SECONDS_TO_ANSWER", ANSWER_SECONDS)
        for pause in ("SHORTEST", "LONGEST", "LEASE"):  # backoff before a migration is retried
            patched.setattr(migration_claims, pause, timedelta(0))
        with (
            unattended(tmp_path_factory.mktemp("sweep")) as local,
            closing(Functions(local)) as functions,
            behind_faults(local, tmp_path_factory.mktemp("kubeconfigs")) as (faults, disturbed),
        ):
            FakeCvo(local.door()).install(OLD)
            yield Bench(local, functions, faults, disturbed)


VOLATILE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "TIME"),
    (re.compile(r"\b[0-9a-f]{10,}\b"), "HEX"),
    (re.compile(r"[A-Za-z0-9+/=]{100,}"), "BASE64"),
    (re.compile(r"\b(tick|hint)-\d+"), "EVENT"),
)
"""Values that differ between two executions with the same result."""
NAMED = re.compile(r"\b(node|maintenance|work)-\d+")
"""Generated names; they are compared by the order in which they appear."""


def state_of(stage: Stage) -> Object:
    """Return the compared objects by path, without values that differ between two equal runs."""
    api = stage.admin.api
    found = stage.admin.together(*(absent_ok(api.get(path)) for path in stage.compared))
    objects = {path: _comparable(path, item) for path, item in zip(stage.compared, found, strict=True)}
    text = json.dumps(objects)
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    names: dict[str, str] = {}
    text = NAMED.sub(lambda match: names.setdefault(match[0], f"{match[1]}-{chr(97 + len(names))}"), text)
    state: Object = json.loads(text)
    return state


def _comparable(path: str, item: Object | None) -> object:
    """Return the part of an object that the step determines; None if it is absent or is a terminating pod."""
    if item is None or ("/pods/" in path and item["metadata"].get("deletionTimestamp")):
        return None
    if "items" in item:
        return [_comparable(path, each) for each in item["items"] if each["metadata"]["name"] != "kube-root-ca.crt"]
    metadata = item["metadata"]
    kept: dict[str, Any] = {key: metadata.get(key) for key in ("name", "labels", "annotations", "finalizers")}
    kept["deleting"] = "deletionTimestamp" in metadata
    if path == CLAIM_PATH:
        return kept["name"]  # a lease expires by itself
    if "/nodes/" in path:
        taints = [taint for taint in item["spec"].get("taints", []) if "node.kubernetes.io/" not in taint["key"]]
        return {**kept, "taints": taints, "unschedulable": item["spec"].get("unschedulable", False)}
    if any(f"/{kind}" in path for kind in ("pods", "jobs", "poddisruptionbudgets")):
        return kept  # Kubernetes' own controllers write the rest
    if any(f"/{kind}" in path for kind in ("secrets", "configmaps")):
        return {**kept, "data": sorted(item.get("data") or {})}
    return {**kept, **{key: value for key, value in item.items() if key not in ("metadata", "kind", "apiVersion")}}


def failing(fault: Fault, wanted: str, hits: list[str]) -> Callable[[str], Fault | None]:
    """Return the rule that fails this request, "get nodes 2" for the second of its kind, and adds it to `hits`.

    A client retries a read whose connection broke, so a reset breaks the retries, too.
    """
    kind, _, number = wanted.rpartition(" ")

    def rule(request: str) -> Fault | None:
        name, _, count = request.rpartition(" ")
        if request != wanted and not (fault is RESET and name == kind and int(count) > int(number)):
            return None
        hits.append(request)
        return fault

    return rule


@proves("X-6a")
@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_request_of_each_step_may_fail(bench: Bench, name: str) -> None:
    """Steps answer 503, report a failed request, or work without it; the next delivery reaches the normal end state."""
    wanted = bench.undisturbed(name)
    assert wanted.requests
    assert wanted.answer.status in (200, 204), wanted.answer.body

    complaints = [complaint for request in wanted.requests for complaint in fail_in_each_way(bench, name, request)]

    assert not complaints, "\n".join(complaints)


@proves("X-6a")
@pytest.mark.slow
@pytest.mark.parametrize("name", SILENT)
def test_a_step_without_an_answer_is_tried_again(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps answer 503 if their first request gets no response, and the next delivery reaches the normal end state."""
    wanted = bench.undisturbed(name)
    request = wanted.requests[0]
    with bench.prepared(name) as (stage, event):
        with monkeypatch.context() as patched:
            patched.setattr(handler, "SECONDS_TO_ANSWER", SILENT_SECONDS)
            bench.faults.spoil(failing(SILENCE, request, []))
            first = bench.deliver(name, event)
            bench.faults.speak_again()
        bench.deliver(name, again(event))
        end = state_of(stage)

    assert first.status == 503
    assert is_same(name, end, wanted.state)


def test_every_step_that_sends_requests_has_a_scenario() -> None:
    """Scenarios cover every step outside `maintenance` but `record`, which sends no requests."""
    assert {name.partition(",")[0] for name in SCENARIOS} == FUNCTIONS.keys() - {"record"} - steps_of("maintenance")
    assert documented("record") == set()


def again(event: BaseCloudEvent) -> BaseCloudEvent:
    """Return the event to deliver next: the same event, or the next tick."""
    return tick() if event.get_type() == events.TICK else event


def fail_in_each_way(bench: Bench, name: str, request: str) -> Iterator[str]:
    """Make this request of a scenario fail in each way, and yield each problem with the step's answers.

    While work remains, the next delivery meets the next fault; the last delivery meets none. After a refusal the
    scenario
    is prepared again, because the step must report each refusal by itself.
    """
    wanted, left = bench.undisturbed(name), list(FAULTS)
    while left:
        failed: list[str] = []
        with bench.prepared(name) as (stage, event):
            answers: list[Answer] = []
            state: Object = {}
            while left and state != wanted.state:
                kind, hits = left[0], list[str]()
                bench.faults.spoil(failing(FAULTS[kind], request, hits))
                answers.append(bench.deliver(name, event))
                bench.faults.speak_again()
                state = state_of(stage)
                if not hits:  # the earlier deliveries did this part already
                    break
                failed.append(left.pop(0))
                if complaint := judge(name, request, kind, wanted, answers[-1], state):
                    yield f"{request}, {kind}: {complaint}: {answers[-1]}"
                if kind in REFUSALS:
                    break
            answers.append(bench.deliver(name, again(event)))
            if (name, without_number(request)) == FINISHED_BY_THE_TICK:
                ended = stage.functions.answer("resync-runs", tick())
                assert ended is not None, "resync-runs does not end a finished run that has a finalizer"
                answers.append(bench.deliver(name, ended))
            end = state_of(stage)
        if not failed:
            yield f"{request}: not sent in {left.pop(0)}"
        if not is_same(name, end, wanted.state) and not is_excused(name, request, failed):
            yield f"{request}, {failed}: other end state: {difference(wanted.state, end)}"
        is_answered = wanted.answer.type in {answer.type for answer in answers}
        if not (is_answered or is_excused(name, request, failed) or is_answered_once(name, request)):
            yield f"{request}, {failed}: never answered {wanted.answer.type}: {answers}"


def is_same(name: str, found: Object, wanted: Object) -> bool:
    """Return whether the end states are equal except for a condition that the next step overwrites."""
    passing = REPLACED_BY_THE_NEXT_STEP.get(name)

    def kept(state: Object) -> str:
        items = json.loads(json.dumps(state))
        for item in filter(None, items.values()):
            status = item.get("status", {}) if isinstance(item, dict) else {}
            if name.startswith("restore-pools"):
                status.get("record", {}).pop("restored", None)  # progress record of a partly refused attempt
            conditions = status.get("conditions", [])
            status["conditions"] = sorted(
                (one for one in conditions if one["type"] != passing), key=lambda one: str(one["type"])
            )
        return json.dumps(items, sort_keys=True)

    return kept(found) == kept(wanted)


def without_number(request: str) -> str:
    """Return a request such as "get nodes 2" without its number."""
    return request.rpartition(" ")[0]


def is_excused(name: str, request: str, failed: list[str]) -> bool:
    """Return whether this failure leaves the remaining work to an administrator."""
    of = name.partition(",")[0], without_number(request)
    return of == NEEDS_A_PERSON and bool({*failed} & {*REFUSALS})


def is_answered_once(name: str, request: str) -> bool:
    """Return whether the step does not repeat its reply after a failure of this request."""
    return (name, without_number(request)) in NOT_ANSWERED_AGAIN


def difference(wanted: Object, found: Object) -> str:
    """Return a description of the objects that differ."""
    return "; ".join(
        f"{one} is not {other}" for one, other in zip(wanted.values(), found.values(), strict=True) if one != other
    )


def judge(name: str, request: str, kind: str, wanted: Run, answer: Answer, state: Object) -> str:
    """Return the problem with the answer to a delivery in which this request failed, or "" if there is none."""
    if answer.status not in (200, 204, 503):
        return "no status of a step"
    if "DisruptionBudget" in answer.body:
        return "taken for a budget"
    is_done = answer.type == wanted.answer.type and state == wanted.state
    if answer.status == 503 or is_done:
        return ""
    if kind in REFUSALS and any(words(kind) in text for text in (answer.body, json.dumps(state))):
        return ""
    step = name.partition(",")[0]
    if kind in REFUSALS and step == "run-job" and answer.type == events.RUN_STOPPED:
        return ""
    sent = without_number(request)
    is_logged = kind in REFUSALS and sent in ONLY_LOGGED.get(step, ()) and words(kind) in answer.log
    return "" if is_logged or sent in DONE_WITHOUT.get(step, ()) else "swallowed"
