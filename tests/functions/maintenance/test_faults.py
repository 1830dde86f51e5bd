"""Tests that make each request of each maintenance step fail, in each way that an API server can fail."""

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

from eventing import events
from eventing.http_binding import received
from functions.event_data import data_of
from functions.serving import handler, failure_tracker
from kube.maintenance import objects as m
from kube.maintenance.status_patch import KEPT
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.fault_proxy import RESET, SILENCE, Fault, Faults
from tests.functions.conftest import Functions, behind_faults, is_passing, unattended
from tests.functions.event_builders import said, updated
from tests.functions.maintenance.scenarios import (
    Scene,
    again,
    begin,
    cordon,
    drained,
    evict,
    guard,
    restore,
    resync_node,
    resync_pods,
    status,
    taint,
)
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

WORDS = "it is as the test wants it"
FAULTS = {
    "500": Fault(500, f"Internal error occurred: failed calling webhook: {WORDS}"),
    "503": Fault(503, f"the server is shutting down: {WORDS}"),
    "429": Fault(429, f"too many requests, {WORDS}"),
    "429, Retry-After": Fault(429, f"too many requests, {WORDS}", 1, {"details": {"retryAfterSeconds": 1}}),
    "409": Fault(409, f"the object has been modified: {WORDS}"),
    "401": Fault(401, f"Unauthorized: {WORDS}"),
    "403": Fault(403, f"forbidden: {WORDS}"),
    "reset": RESET,
    "silence": SILENCE,
}
LATER = ("500", "503", "429", "429, Retry-After", "409", "reset", "silence")
"""Failures that a retry may resolve."""
ANSWER_SECONDS = 1.5
"""Deadline for a step's API requests; a request without a response takes this long."""
TOO_LATE_AT_MOST = 10
"""Maximum number of 503 responses without an injected fault, as a busy machine may cause them."""
LISTS = "list nodemaintenances"
INSIDE = ("cordon", "taint")
"""Steps that consume only events of other steps."""
CLAIM = ("create selfsubjectreviews", "get leases")
"""Requests by which the other steps determine whether their install is active, unless the answer is cached."""
SCENES: dict[str, tuple[Scene, str, set[str]]] = {
    "begin": (
        *(begin, events.MAINTENANCE_BEGUN),
        {
            *("get nodemaintenances", "get nodes", "list pods", "get daemonsets"),
            *("create leases", "patch nodemaintenances"),
        },
    ),
    "begin, again": (again, events.MAINTENANCE_BEGUN, {"get nodemaintenances", "get nodes", "get leases"}),
    "cordon": (cordon, events.NODE_CORDONED, {"get nodemaintenances", "get nodes", "patch nodes"}),
    "taint": (taint, events.NODE_TAINTED, {"get nodemaintenances", "get nodes", "patch nodes"}),
    "evict": (
        *(evict, events.PODS_EVICTED),
        {
            *("get nodemaintenances", "get nodes", "list pods", "list poddisruptionbudgets"),
            *("create pods/eviction",),
        },
    ),
    "evict, drained": (
        *(drained, events.NODE_DRAINED),
        {"get nodemaintenances", "get nodes", "list pods", "get daemonsets"},
    ),
    "status": (
        *(status, ""),
        {"get nodemaintenances", "get nodes", "list pods", "patch nodemaintenances/status", "create events"},
    ),
    "restore": (
        *(restore, events.NODE_RESTORED),
        {
            *("get nodemaintenances", "get nodes", LISTS, "patch nodes", "get leases", "delete leases"),
            *("patch nodemaintenances", "create events"),
        },
    ),
    "guard": (guard, events.NODE_DRIFTED, {LISTS, "get nodes", "list events", "create events"}),
    "resync, at a node": (
        *(resync_node, events.NODE_DRIFTED),
        {LISTS, "list nodes", "list leases", "get nodes"},
    ),
    "resync, at pods": (resync_pods, events.NODE_TAINTED, {LISTS, "list nodes", "list leases", "list pods"}),
}
"""Scenario → its preparation, the final reply's event type, and the requests that the step sends."""
HARMLESS = {"list events", "create events", "patch events"}
"""Requests about Kubernetes Events; their failure does not affect the step."""
SEEN_BY_ITSELF = {"create pods/eviction"}
"""Requests whose failure the step reports as the reason of a blocked pod."""
EVICTION_REASONS = {
    **dict.fromkeys(("401", "403"), "Forbidden"),
    **dict.fromkeys(("500", "503"), "Error"),
    **dict.fromkeys(("429", "429, Retry-After"), "Busy"),
    "reset": "NoAnswer",
}
"""Kind of failure → reason of the blocked pod. Flow control never counts as a disruption budget."""
LEFT_FOR_THE_NEXT = {("resync", "get nodes"), ("resync", "list pods")}
"""Reads of a tick for one maintenance, whose failure must not stop the other reads."""
NAMES_NONE = ("status", "guard", "resync")
"""Steps that answer 503 and log: their events name no maintenance, or the step writes the status itself."""
TAKEN_FOR_A_PART = {
    ("restore", LISTS),
    ("resync", LISTS),
    ("guard", LISTS),
    ("resync", "list nodes"),
    ("resync", "list leases"),
}
"""Lists whose refusal is logged, while the step uses the other lists."""


FAILING = {begin: "get nodes", taint: "patch nodes", evict: "list pods", restore: "patch nodes"}
"""Scenario → a request that may fail for a long time."""


@pytest.fixture
def answers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the deadline of a function's API requests."""
    monkeypatch.setattr(handler, "SECONDS_TO_ANSWER", ANSWER_SECONDS)


@pytest.fixture(autouse=True)
def mended(faults: Faults) -> Iterator[None]:
    """Stop the fault injection after the test."""
    yield
    faults.speak_again()


def each_request_once(
    faults: Faults, fault: Fault, anew: Callable[[], BaseCloudEvent], post: Callable[[BaseCloudEvent], TestResponse]
) -> Iterator[tuple[str, TestResponse]]:
    """Post an event repeatedly; each time another request fails, and finally none.

    After a success, the scenario is prepared again. The client retries a read whose connection broke, so a reset breaks
    all requests of that kind. A busy machine may cause a 503 without a fault; a broker would deliver that event again.
    """
    spoiled: list[str] = []
    event, patience = anew(), TOO_LATE_AT_MOST

    def rule(request: str) -> Fault | None:
        request = request.rpartition(" ")[0] if fault is RESET else request
        if request in spoiled or now not in ([], [request]):
            return None
        now[:] = [request]
        return fault

    while True:
        now: list[str] = []
        faults.spoil(rule)
        response = post(event)
        faults.speak_again()
        spoiled += now
        yield (now[0].rstrip(" 0123456789") if now else ""), response
        patience -= not now
        if not now and (response.status_code < 300 or not patience):
            return
        if response.status_code < 300:
            event = anew()


def reply_of(response: TestResponse) -> BaseCloudEvent | None:
    assert response.status_code in (200, 204), response.text
    return received(dict(response.headers), response.data) if response.status_code == 200 else None


BY_THEMSELVES = ("resync, at a node", "resync, at pods")
"""Scenarios of ticks, which read the objects of all other scenarios."""
ONE_BY_ONE = threading.Lock()


@proves("X-6", "X-6a")
@pytest.mark.usefixtures("answers_soon")
@pytest.mark.parametrize(("case", "kind"), [*itertools.product(SCENES, [kind for kind in FAULTS if kind != "silence"])])
def test_whatever_request_fails_is_tried_again_or_told(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults, case: str, kind: str
) -> None:
    """X-6: a step answers 503 to a failure that a retry may resolve, reports others, and never answers 500."""
    judge(functions, spoiled, work, faults, case, kind)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Functions]]:
    """Yield a second cluster and its functions for the scenarios that cannot run next to others."""
    with unattended(tmp_path_factory.mktemp("elsewhere")) as running, closing(Functions(running)) as functions:
        yield running, functions


@proves("X-6", "X-6a")
@pytest.mark.abreast
@pytest.mark.usefixtures("answers_soon", "work")
@pytest.mark.parametrize("case", SCENES)
def test_whatever_request_gets_no_answer_is_tried_again(
    functions: Functions, quiet: LocalCluster, elsewhere: tuple[LocalCluster, Functions], case: str
) -> None:
    """X-6: a step answers 503 if a request gets no response.

    Scenarios of ticks run in the second cluster, one at a time.
    """
    alone = case in BY_THEMSELVES
    local, called = elsewhere if alone else (quiet, functions)
    with (
        ONE_BY_ONE if alone else nullcontext(),
        TemporaryDirectory() as folder,
        behind_faults(local, Path(folder)) as (faults, spoiled),
    ):
        judge(called, spoiled, Workload(local, local.door()), faults, case, "silence")


def judge(functions: Functions, spoiled: Functions, work: Workload, faults: Faults, case: str, kind: str) -> None:
    """Make each request of a scenario fail in this way, and check the step's responses."""
    scene, wanted, costs = SCENES[case]
    step = case.partition(",")[0]
    asked, response = set(), None

    def post(event: BaseCloudEvent) -> TestResponse:
        return spoiled.post(step, event)

    for request, response in each_request_once(faults, FAULTS[kind], lambda: scene(functions, work), post):
        asked.add(request)
        check(step, request, kind, response)

    assert asked >= costs
    takes = {"resync": ("create leases", "patch leases"), "begin": ("create leases",)}.get(step, ())
    assert asked - costs - HARMLESS <= {"", *(() if step in INSIDE else (*CLAIM, *takes))}
    assert response is not None
    assert response.status_code < 300
    assert response.headers.get("ce-type", "") == wanted


def check(step: str, request: str, kind: str, response: TestResponse) -> None:
    """Assert that the step may respond like this when the request fails in this way."""
    assert "DisruptionBudget" not in response.text
    if not request or request in HARMLESS or (step, request) in LEFT_FOR_THE_NEXT:
        # a request without a response leaves no time for later ones, and so may a slow machine
        is_late = (kind == "silence" and response.status_code == 503) or is_passing(response)
        assert is_late or response.status_code in (200, 204)
    elif request in SEEN_BY_ITSELF:
        assert response.headers["ce-type"] == events.PODS_EVICTED
        told = EVICTION_REASONS.get(kind)
        assert told is None or [pod["reason"] for pod in json.loads(response.data)["blocked"]] == [told]
    elif kind == "409":
        assert response.status_code in (200, 204, 503)
        assert response.headers.get("ce-type") != events.MAINTENANCE_FAILED
    elif kind in LATER:
        assert response.status_code == 503, (request, response.text)
    elif (step, request) in TAKEN_FOR_A_PART:
        assert response.status_code in (200, 204)
    elif step in NAMES_NONE:
        assert response.status_code == 503
    else:
        assert response.headers["ce-type"] == events.MAINTENANCE_FAILED
        assert WORDS in json.loads(response.data)["error"]


@proves("X-6", "NMO-13")
@pytest.mark.usefixtures("answers_soon")
@pytest.mark.parametrize(
    ("scene", "request_of_it", "kind"),
    [
        *((cordon, "patch nodes", kind) for kind in LATER),
        *((scene, name, "500") for scene, name in FAILING.items()),
    ],
)
def test_what_fails_for_long_is_told_and_ends_when_it_is_cured(
    functions: Functions,
    spoiled: Functions,
    work: Workload,
    faults: Faults,
    monkeypatch: pytest.MonkeyPatch,
    scene: Scene,
    request_of_it: str,
    kind: str,
) -> None:
    """X-6, NMO-13: a lasting failure gets 503, is later reported in the status, and the step succeeds once cured."""
    step = scene.__name__
    event = scene(functions, work)
    faults.spoil(lambda request: FAULTS[kind] if request.rpartition(" ")[0] == request_of_it else None)

    first = spoiled.post(step, event)
    monkeypatch.setattr(failure_tracker, "TOLD_SECONDS", 0.0)
    told = reply_of(spoiled.post(step, event))
    assert told is not None
    functions.answer("status", told)
    item = work.again(maintenance_of(event))
    monkeypatch.undo()
    faults.speak_again()
    cured = reply_of(spoiled.post(step, event))

    assert first.status_code == 503
    assert told.get_type() == events.MAINTENANCE_FAILED
    error = data_of(told)["error"]
    assert error
    assert item["status"]["lastError"] == (f"{KEPT}{error}" if step == "restore" else error)
    assert cured is not None
    assert cured.get_type() != events.MAINTENANCE_FAILED


def maintenance_of(event: BaseCloudEvent) -> Object:
    """Return those fields of the event's maintenance that are needed to read it again."""
    data = data_of(event)
    if data.get("kind") == "NodeMaintenance":
        return dict(data)
    reference = data["maintenance"]
    return {"apiVersion": reference["apiVersion"], "metadata": {"name": reference["name"]}}


@proves("X-6")
def test_a_busy_server_is_left_in_peace_for_as_long_as_it_asks(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults
) -> None:
    """X-6: a 429 of flow control blocks the pod as Busy with the server's message, until its backoff has passed."""
    node = work.node()
    work.pods(node, f"bare-{node}")
    item = work.maintenance(node)
    tainted = functions.prepare(item)
    faults.spoil(lambda request: FAULTS["429, Retry-After"] if request.startswith("create pods/eviction") else None)

    reply = reply_of(spoiled.post("evict", tainted))
    assert reply is not None
    functions.answer("status", reply)
    first = work.again(item)["status"]
    again = reply_of(spoiled.post("evict", said(events.NODE_TAINTED, item)))

    (blocked,) = first["blockedPods"]
    assert (blocked["reason"], WORDS in blocked["message"]) == ("Busy", True)
    assert blocked["retryAfter"] > first["lastUpdate"]
    assert WORDS in first["lastError"]
    assert again is not None
    assert faults.seen["create pods/eviction"] == 1  # its backoff has not passed


@proves("X-6")
@pytest.mark.parametrize("status", [404, 409, 429, 500])
def test_what_a_webhook_refuses_is_told_whatever_its_status(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults, status: int
) -> None:
    """X-6: a webhook's refusal blocks the pod with the webhook's message, whatever its HTTP status."""
    node = work.node()
    work.pods(node, f"bare-{node}")
    tainted = functions.prepare(work.maintenance(node))
    words = f'admission webhook "w.example.com" denied the request: {WORDS}'
    faults.spoil(lambda request: Fault(status, words) if request.startswith("create pods/eviction") else None)

    reply = reply_of(spoiled.post("evict", tainted))

    assert reply is not None
    assert [(pod["reason"], pod["message"]) for pod in data_of(reply)["blocked"]] == [("Error", words)]
    assert faults.seen["create pods/eviction"] == 1


@proves("X-6", "NMO-4")
@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_node_that_a_webhook_leaves_no_patch_is_told_and_not_asked_again(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults, status: int
) -> None:
    """X-6: a webhook's refusal of a node patch is reported with the webhook's message and not retried."""
    begun = functions.begin(work.maintenance(work.node()))
    words = f'admission webhook "w.example.com" denied the request: {WORDS}'
    faults.spoil(lambda request: Fault(status, words) if request.startswith("patch nodes") else None)

    reply = reply_of(spoiled.post("cordon", begun))

    assert reply is not None
    assert (reply.get_type(), data_of(reply)["error"]) == (events.MAINTENANCE_FAILED, words)
    assert faults.seen["patch nodes"] == 1


@proves("X-6")
def test_why_the_next_one_takes_no_finalizer_is_told(
    functions: Functions, spoiled: Functions, work: Workload, faults: Faults
) -> None:
    """X-6, X-7: `restore` answers 503 with the reason if a policy rejects the finalizer of the next maintenance."""
    node = work.node()
    first = work.maintenance(node)
    functions.prepare(first)
    work.maintenance(node)
    work.delete(m.path(first))
    event, refusal = updated(work.again(first)), Fault(422, f"denied by a policy: {WORDS}")
    faults.spoil(lambda request: refusal if request.startswith("patch nodemaintenances") else None)

    response = spoiled.post("restore", event)

    assert response.status_code == 503
    assert refusal.message in response.text
