"""Tests for `notify-owners` on a real API server: announcements, missing permissions and notification receivers."""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events, extensions
from eventing.http_binding import decode_event, encode_binary
from functions.installs import INSTALL_LEASE_CACHE
from functions.maintenance.event_objects import parse_reference
from functions.notifications import notify_owners, sender
from functions.notifications.notify_owners import ANNOUNCED_BLOCKAGES, REFUSED_REASON
from functions.serving import handler
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import CLUSTER_SCOPED_NAMESPACE
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S, ApiGroup
from kube.maintenance.kubernetes_events import EVENTS_PATH
from kube.notifications import announcements
from kube.notifications.announcements import BLOCKED_REASON, SENT_REASON, UNBLOCKED_REASON
from kube.notifications.lookup import OPT_OUT_LABEL, OPT_OUT_VALUE
from kube.notifications.webhooks import parse_key
from kube.paths import build_events_path
from localcluster.audit_log import AuditLog
from localcluster.http_receiver import ReceivedRequest, Receiver, Response
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_tick, build_updated_event
from tests.functions.maintenance.test_status import run_steps_with_status
from tests.functions.request_hooks import count_requests
from tests.functions.test_corrupted_events import JSON_VALUES, build_post_function, iterate_value_paths, replace_value
from tests.proofs import proves
from tests.workload import Workload

STEP = "notify-owners"
USERNAME = f"system:serviceaccount:node-maintenance:{STEP}"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATH = "/services/drains"
LONG_DEADLINE_SECONDS = 60.0
"""Deadline for all API requests of a pass, so that no result depends on the speed of the machine."""
SHORT_TIMEOUT_SECONDS = 0.2
"""Timeout of notifications in the test with a receiver that does not respond."""


@pytest.fixture(autouse=True)
def immediate_announcements(monkeypatch: pytest.MonkeyPatch, clean_cluster: None, admin_client: SyncClient) -> None:
    """Make the step announce a blocked drain immediately, and clear its cache as after a start of the process.

    The fixture deletes the announcements of earlier tests, because a tick would announce the end of their blockages.
    It also extends the deadline of a pass. On a busy machine, the pass would otherwise respond with 503 after it has
    written the record, and no later pass would write the missing Events.
    """
    monkeypatch.setenv("NOTIFY_SECONDS", "0")
    monkeypatch.setattr(handler, "API_DEADLINE_SECONDS", LONG_DEADLINE_SECONDS)
    query = {"fieldSelector": "involvedObject.kind=NodeMaintenance"}
    admin_client.run(admin_client.api.request("DELETE", EVENTS_PATH, query=query))
    ANNOUNCED_BLOCKAGES.clear()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Yield an HTTP server to which the install permits notifications."""
    with closing(Receiver()) as server:
        monkeypatch.setenv("NOTIFY_HOSTS", server.url)
        monkeypatch.setenv("NOTIFY_KEY", KEY)
        yield server


class BlockedDrain:
    """A maintenance of a node with a Deployment of two pods, whose PDB blocks the drain."""

    def __init__(self, functions: Functions, workload: Workload, group: ApiGroup = MEDIK8S, *, url: str = "") -> None:
        self._functions, self._workload = functions, workload
        self.node = workload.take_node()
        workload.create_deployment("web", self.node, 2)
        self.budget = workload.create_budget("web", {"app": "web"}, 2, expected_healthy=2)
        maintenance = workload.create_maintenance(self.node, group)
        if url:
            workload.client.patch(m.build_path(maintenance), {"spec": {"notify": {"url": url}}})
        self.maintenance = run_steps_with_status(functions, workload, maintenance)
        assert [item["reason"] for item in self.maintenance["status"]["blockedPods"]] == ["DisruptionBudget"] * 2

    def unblock(self) -> None:
        """Write a maintenance status without blocked pods, as after the deletion of the PDB."""
        path = f"{m.build_path(self.maintenance)}/status"
        self.maintenance = self._workload.client.patch(path, {"status": {"blockedPods": []}})

    def succeed(self) -> None:
        """Scale the Deployment to zero, and run `evict` and `status`, so that the maintenance succeeds."""
        namespace = self._workload.namespace
        deployment_path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
        self._workload.client.patch(deployment_path, {"spec": {"replicas": 0}})
        self._workload.wait_for_collection(f"/api/v1/namespaces/{namespace}/pods", lambda pods: not pods)
        tainted = self._functions.run_chain(self.maintenance, "begin", "cordon", "taint")
        drained = self._functions.invoke("evict", tainted)
        assert drained is not None
        assert parse_reference(drained).uid == self.maintenance["metadata"]["uid"]
        self._functions.invoke("status", drained)

    def notify(self) -> int:
        """Post an update event with the current NodeMaintenance, and return the status code of the response."""
        event = build_updated_event(self._workload.read_maintenance(self.maintenance))
        return self._functions.post(STEP, event).status_code

    def read_events(self, namespace: str = "") -> dict[tuple[str, str], str]:
        """Return the messages of the step's Kubernetes Events in a namespace, by (object kind, reason)."""
        listed = self._workload.client.list(build_events_path(namespace or self._workload.namespace))["items"]
        found = [
            item
            for item in listed
            if item["reason"] in (BLOCKED_REASON, UNBLOCKED_REASON, SENT_REASON, REFUSED_REASON)
            and (not namespace or item["involvedObject"].get("uid") == self.maintenance["metadata"]["uid"])
        ]
        return {(item["involvedObject"]["kind"], item["reason"]): item["message"] for item in found}

    def read_own_events(self) -> dict[tuple[str, str], str]:
        """Return the messages of the step's Kubernetes Events on the NodeMaintenance, by (object kind, reason)."""
        return self.read_events(CLUSTER_SCOPED_NAMESPACE)


def tick(functions: Functions) -> None:
    """Post a tick, and assert that the step succeeds without a reply."""
    assert functions.invoke(STEP, build_tick()) is None


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_owners_are_notified_of_beginning_and_end_of_blockage(
    functions: Functions, workload: Workload, group: ApiGroup
) -> None:
    """Check that PDB, Deployment and NodeMaintenance get an Event with the remedy, and one at the blockage's end."""
    drain = BlockedDrain(functions, workload, group)
    tick(functions)

    remedy = f"""kubectl -n {workload.namespace} patch pdb web -p '{{"spec":{{"minAvailable":1}}}}'"""
    blocked_events = drain.read_events()
    assert blocked_events.keys() == {("PodDisruptionBudget", BLOCKED_REASON), ("Deployment", BLOCKED_REASON)}
    assert all(remedy in message and drain.node in message for message in blocked_events.values())
    assert drain.read_own_events().keys() == {("NodeMaintenance", BLOCKED_REASON)}
    described = workload.local_cluster.kubectl("describe", "pdb", "web", "-n", workload.namespace).stdout
    assert BLOCKED_REASON in described.partition("Events:")[2]

    drain.unblock()
    tick(functions)
    assert drain.read_events().keys() - blocked_events.keys() == {
        ("PodDisruptionBudget", UNBLOCKED_REASON),
        ("Deployment", UNBLOCKED_REASON),
    }


def test_repeated_events_about_blockage_write_no_kubernetes_events(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that repeated ticks and updates during and after a blockage write no Events, even in a new process."""
    drain = BlockedDrain(functions, workload)
    for _ in range(2):
        tick(functions)
        assert drain.notify() == 204
        ANNOUNCED_BLOCKAGES.clear()
    assert len(audit.list_writes_by(USERNAME)) == 3

    drain.unblock()
    for _ in range(2):
        tick(functions)
        assert drain.notify() == 204
        ANNOUNCED_BLOCKAGES.clear()
    assert len(audit.list_writes_by(USERNAME)) == 6


def test_update_of_maintenance_announces_end_of_blockage(functions: Functions, workload: Workload) -> None:
    """Check that a maintenance's update announces the end of a blockage that the same process announced."""
    drain = BlockedDrain(functions, workload)
    tick(functions)
    drain.unblock()

    assert drain.notify() == 204

    assert ("Deployment", UNBLOCKED_REASON) in drain.read_events()


def test_tick_announces_end_of_blockage_of_deleted_maintenance(functions: Functions, workload: Workload) -> None:
    """X-3: a tick announces the end of a blockage whose NodeMaintenance was deleted, even in a new process."""
    drain = BlockedDrain(functions, workload)
    tick(functions)
    workload.remove_maintenance(drain.maintenance)
    ANNOUNCED_BLOCKAGES.clear()

    tick(functions)

    assert ("Deployment", UNBLOCKED_REASON) in drain.read_events()


def test_unrecorded_end_of_blockage_is_announced_without_duplicates(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """Check that no owner misses an Event if a process ends before it records the end of a blockage.

    The record of a blockage is written before the Events for the owners, and the record of its end after them.
    """
    drain = BlockedDrain(functions, workload)
    tick(functions)
    drain.unblock()
    tick(functions)
    namespaces = [entry["objectRef"]["namespace"] for entry in audit.list_writes_by(USERNAME)]
    assert namespaces == [CLUSTER_SCOPED_NAMESPACE, *[workload.namespace] * 4, CLUSTER_SCOPED_NAMESPACE]
    query = {"fieldSelector": f"reason={UNBLOCKED_REASON}"}
    workload.client.run(workload.client.api.request("DELETE", EVENTS_PATH, query=query))
    ANNOUNCED_BLOCKAGES.clear()

    tick(functions)

    assert ("NodeMaintenance", UNBLOCKED_REASON) in drain.read_own_events()
    owners = workload.client.list(build_events_path(workload.namespace), field_selector=f"reason={UNBLOCKED_REASON}")
    assert [item["count"] for item in owners["items"]] == [1, 1]


def test_forged_update_does_not_announce_end_of_blockage(functions: Functions, workload: Workload) -> None:
    """Design rule 1: an update event about an object that does not exist announces no end of a blockage."""
    drain = BlockedDrain(functions, workload)
    tick(functions)
    forged = {**drain.maintenance, "metadata": {**drain.maintenance["metadata"], "name": "absent"}}

    assert functions.invoke(STEP, build_updated_event(forged)) is None

    assert ("Deployment", UNBLOCKED_REASON) not in drain.read_events()


def test_short_blockage_is_not_announced(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a blockage is not announced until it has lasted for the minimum time."""
    monkeypatch.setenv("NOTIFY_SECONDS", "3600")
    drain = BlockedDrain(functions, workload)

    tick(functions)

    assert drain.read_events() == drain.read_own_events() == {}


def test_namespace_with_opt_out_label_gets_no_events(functions: Functions, workload: Workload) -> None:
    """Check that only the NodeMaintenance gets an Event if the namespace has the opt-out label."""
    workload.client.patch(
        f"/api/v1/namespaces/{workload.namespace}", {"metadata": {"labels": {OPT_OUT_LABEL: OPT_OUT_VALUE}}}
    )
    drain = BlockedDrain(functions, workload)

    tick(functions)
    drain.unblock()
    tick(functions)

    assert drain.read_events() == {}
    assert drain.read_own_events().keys() == {
        ("NodeMaintenance", BLOCKED_REASON),
        ("NodeMaintenance", UNBLOCKED_REASON),
    }


def test_blockage_of_pod_without_controller_is_announced_on_pdb(functions: Functions, workload: Workload) -> None:
    """Check that only the PDB gets an Event if the blocked pod has no controller."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a", labels={"app": "a"})
    workload.create_budget("a", {"app": "a"}, 1, expected_healthy=1)
    run_steps_with_status(functions, workload, workload.create_maintenance(node))

    tick(functions)

    listed = workload.client.list(build_events_path(workload.namespace), field_selector=f"reason={BLOCKED_REASON}")
    assert [item["involvedObject"]["kind"] for item in listed["items"]] == ["PodDisruptionBudget"]


@pytest.mark.parametrize(
    ("refused", "expected_kinds"),
    [
        ("get namespaces", set()),
        ("get poddisruptionbudgets", {"Deployment"}),
        ("get replicasets", {"PodDisruptionBudget", "ReplicaSet"}),
        ("get pods", {"PodDisruptionBudget"}),
    ],
)
def test_objects_without_read_permission_get_no_events(
    proxied_functions: Functions,
    functions: Functions,
    fault_proxy: FaultProxy,
    workload: Workload,
    refused: str,
    expected_kinds: set[str],
) -> None:
    """Check that only objects that the step is permitted to read get an Event."""
    drain = BlockedDrain(functions, workload)
    refusal = Fault(403, f"{refused} is forbidden")
    fault_proxy.inject(lambda request: refusal if request.startswith(refused) else None)
    try:
        response = proxied_functions.post(STEP, build_tick())
    finally:
        fault_proxy.stop_faults()

    assert response.status_code == 204
    assert {kind for kind, _ in drain.read_events()} == expected_kinds
    assert drain.read_own_events().keys() == {("NodeMaintenance", BLOCKED_REASON)}


def test_no_blockage_is_announced_without_record(
    proxied_functions: Functions,
    functions: Functions,
    fault_proxy: FaultProxy,
    workload: Workload,
) -> None:
    """Check that without permission to record the announcement, the step answers 503 and writes no other Event."""
    drain = BlockedDrain(functions, workload)
    refusal = Fault(403, "events is forbidden")
    fault_proxy.inject(lambda request: refusal if request.startswith("create events") else None)
    try:
        response = proxied_functions.post(STEP, build_tick())
    finally:
        fault_proxy.stop_faults()
    assert response.status_code == 503
    assert drain.read_events() == drain.read_own_events() == {}

    tick(functions)

    assert len(drain.read_events()) == 2


def test_failed_list_of_maintenances_announces_no_end_of_blockage(
    proxied_functions: Functions, functions: Functions, fault_proxy: FaultProxy, workload: Workload
) -> None:
    """Check that a tick announces no end of a blockage if the maintenances of an API group cannot be listed."""
    drain = BlockedDrain(functions, workload, KUBEVIRT)
    tick(functions)
    refusal = Fault(403, "nodemaintenances is forbidden")
    fault_proxy.inject(lambda request: refusal if request.startswith("list nodemaintenances") else None)
    try:
        response = proxied_functions.post(STEP, build_tick())
    finally:
        fault_proxy.stop_faults()

    assert response.status_code == 503
    assert ("Deployment", UNBLOCKED_REASON) not in drain.read_events()


def test_updates_of_unblocked_drain_cause_no_requests(functions: Functions, workload: Workload) -> None:
    """Design rule 10: updates of an unblocked maintenance cause no API request, and a tick only lists maintenances.

    The test first makes the process read the earlier announcements, as its first tick does.
    """
    tick(functions)
    maintenance = run_steps_with_status(functions, workload, workload.create_maintenance(workload.take_node()))
    assert m.get_phase(maintenance) == m.SUCCEEDED
    INSTALL_LEASE_CACHE.confirm(functions.clusters[STEP])

    with count_requests(functions.clusters[STEP].api) as requests:
        functions.invoke(STEP, build_updated_event(maintenance))
        assert not requests
        tick(functions)

    assert requests == {f"GET {group.path}": 1 for group in GROUPS.values()}


def test_notify_owners_ignores_events_in_passive_install(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DRN-15: in a passive install, `notify-owners` ignores its events."""
    drain = BlockedDrain(functions, workload)
    monkeypatch.setattr(notify_owners, "is_active_install", lambda _client: False)

    tick(functions)
    assert drain.notify() == 204

    assert drain.read_events() == drain.read_own_events() == {}


def is_signed(request: ReceivedRequest) -> bool:
    """Return whether the request's signature is the one that a receiver with the key computes."""
    content = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.digest(parse_key(KEY), content, "sha256")).decode()
    return request.headers["webhook-signature"] == f"v1,{expected}"


def list_received_event_types(receiver: Receiver) -> list[str]:
    """Return the types of the received CloudEvents."""
    received = [decode_event(request.headers, request.body) for request in receiver.list_requests(PATH)]
    return [event.get_type().removeprefix("dev.nodemaintenance.drain.") for event in received]


@pytest.mark.parametrize("group", [MEDIK8S, KUBEVIRT], ids=lambda group: group.api_version.split("/")[0])
def test_receiver_gets_signed_event_for_start_and_end_of_blockage_and_end_of_drain(
    functions: Functions, workload: Workload, receiver: Receiver, group: ApiGroup
) -> None:
    """Check that a receiver gets one signed event each when a drain is blocked, continues and has ended."""
    drain = BlockedDrain(functions, workload, group, url=f"{receiver.url}{PATH}")
    tick(functions)
    assert drain.notify() == 204
    drain.unblock()
    assert drain.notify() == 204
    drain.succeed()
    assert drain.notify() == 204
    tick(functions)

    requests = receiver.list_requests(PATH)
    assert list_received_event_types(receiver) == ["blocked", "unblocked", "succeeded"]
    assert all(map(is_signed, requests))
    assert {request.headers["content-type"] for request in requests} == {"application/cloudevents+json"}
    assert abs(time.time() - int(requests[0].headers["webhook-timestamp"])) < 600
    body = json.loads(requests[0].body)
    assert body["id"] == requests[0].headers["webhook-id"]
    assert (body["data"]["node"], body["data"]["podCount"]) == (drain.node, 2)
    assert body["data"]["remedies"][1]["command"].startswith(f"kubectl -n {workload.namespace} patch pdb web")
    assert drain.read_own_events()[("NodeMaintenance", BLOCKED_REASON)] == body["data"]["message"]


@pytest.mark.parametrize("failure", ["error", "redirect", "slow"])
def test_failed_notification_is_sent_again_with_same_id(
    functions: Functions, workload: Workload, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Check that after an error, a redirect or a late response of the receiver, the next tick notifies it again.

    The step answers 503 and does not follow the redirect. The Events for the owners do not wait for the receiver.
    """
    drain = BlockedDrain(functions, workload, url=f"{receiver.url}{PATH}")

    def fail(_request: ReceivedRequest) -> Response:
        if failure == "slow":
            receiver.wait_until(lambda: "/done" in {request.path for request in receiver.requests})
        return Response(302, {"location": f"{receiver.url}/other"}) if failure == "redirect" else Response(500)

    receiver.answers[PATH] = fail
    with monkeypatch.context() as patched:
        if failure == "slow":
            patched.setattr(sender, "TIMEOUT_SECONDS", SHORT_TIMEOUT_SECONDS)
        response = functions.post(STEP, build_tick())
    assert response.status_code == 503
    assert "/services" not in response.text
    assert len(drain.read_events()) == 2
    receiver.handle(ReceivedRequest("/done", {}, b"", 0.0))
    receiver.answers[PATH] = lambda _request: Response(204)

    tick(functions)

    assert len({request.headers["webhook-id"] for request in receiver.list_requests(PATH)}) == 1
    assert receiver.list_requests("/other") == []
    assert ("NodeMaintenance", SENT_REASON) in drain.read_own_events()


def test_accepted_notification_is_recorded_while_other_request_hangs(
    functions: Functions, workload: Workload, receiver: Receiver
) -> None:
    """Check that the step records an accepted notification before the receiver responds to another one.

    The receiver responds to the first request only after the other notification is recorded.
    """
    drain = BlockedDrain(functions, workload, url=f"{receiver.url}{PATH}")
    blocked_pods = drain.maintenance["status"]["blockedPods"]
    other = {**blocked_pods[0], "name": "other", "budget": "other"}
    workload.client.patch(
        f"{m.build_path(drain.maintenance)}/status", {"status": {"blockedPods": [*blocked_pods, other]}}
    )
    numbers = itertools.count()

    def respond(_request: ReceivedRequest) -> Response:
        if next(numbers) == 0:
            fields = f"reason={SENT_REASON},involvedObject.uid={drain.maintenance['metadata']['uid']}"
            workload.wait_for_collection(EVENTS_PATH, bool, fields=fields)
        return Response(204)

    receiver.answers[PATH] = respond

    tick(functions)

    assert list_received_event_types(receiver) == ["blocked", "blocked"]


def test_unreachable_receiver_does_not_affect_maintenance(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that after a refused connection, the step answers 503 without the URL, and the maintenance has no error."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("NOTIFY_HOSTS", url)
    monkeypatch.setenv("NOTIFY_KEY", KEY)
    drain = BlockedDrain(functions, workload, url=f"{url}{PATH}")

    response = functions.post(STEP, build_tick())

    assert response.status_code == 503
    assert PATH not in response.text
    assert "check spec.notify.url and the receiver" in response.text
    drain.succeed()
    assert m.get_last_error(workload.read_maintenance(drain.maintenance)) == ""


def test_no_notification_is_sent_to_host_that_is_not_permitted(
    functions: Functions, workload: Workload, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that no notification is sent to a host that the install does not permit; an Event states the remedy."""
    monkeypatch.setenv("NOTIFY_HOSTS", "hooks.example.com")
    drain = BlockedDrain(functions, workload, url=f"{receiver.url}{PATH}")

    tick(functions)

    assert receiver.requests == []
    assert "add it to NOTIFY_HOSTS of notify-owners" in drain.read_own_events()[("NodeMaintenance", REFUSED_REASON)]
    assert len(drain.read_events()) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_replay_sends_no_notifications(
    functions: Functions, workload: Workload, receiver: Receiver, dry_run: bool
) -> None:
    """Check that a replay sends no notifications, and that a dry run does not write Events either."""
    drain = BlockedDrain(functions, workload, url=f"{receiver.url}{PATH}")

    response = functions.post(STEP, extensions.add_replay_extensions(build_tick(), "r", dry_run=dry_run))

    assert response.status_code == 204
    assert receiver.requests == []
    assert len(drain.read_events()) == (0 if dry_run else 2)


def test_repeated_blockage_is_announced_only_after_delay(
    functions: Functions, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a repeated blockage with the same cause is announced only after `REPEAT_DELAY`."""
    drain = BlockedDrain(functions, workload)
    tick(functions)
    blocked_pods = drain.maintenance["status"]["blockedPods"]
    drain.unblock()
    tick(functions)
    again = [{**item, "since": "2026-01-01T00:00:00Z"} for item in blocked_pods]
    workload.client.patch(f"{m.build_path(drain.maintenance)}/status", {"status": {"blockedPods": again}})

    tick(functions)
    fields = f"reason={BLOCKED_REASON},involvedObject.uid={drain.budget['metadata']['uid']}"
    events_path = build_events_path(workload.namespace)
    assert len(workload.client.list(events_path, field_selector=fields)["items"]) == 1

    monkeypatch.setattr(announcements, "REPEAT_DELAY", announcements.REPEAT_DELAY * 0)
    tick(functions)
    assert len(workload.client.list(events_path, field_selector=fields)["items"]) == 2


def test_notify_owners_writes_only_kubernetes_events(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """Check that `notify-owners` only creates Events, and changes neither the maintenance nor a PDB."""
    BlockedDrain(functions, workload)
    tick(functions)

    writes = audit.list_writes_by(USERNAME)
    assert {(entry["verb"], entry["objectRef"]["resource"]) for entry in writes} == {("create", "events")}


@proves("X-1")
@pytest.mark.slow
def test_corrupt_event_data_does_not_crash_notify_owners(functions: Functions, workload: Workload) -> None:
    """X-1: `notify-owners` never crashes if a field of the event data has an arbitrary JSON value."""
    drain = BlockedDrain(functions, workload)
    valid_event = build_updated_event(drain.maintenance)
    post = build_post_function(functions, STEP, valid_event, events.RESOURCE_UPDATED)
    data = json.loads(encode_binary(valid_event).body)

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(list(iterate_value_paths(data))), JSON_VALUES)
    def post_corrupt_field(path: tuple[object, ...], value: object) -> None:
        status, text = post(replace_value(data, path, value))
        assert status in (200, 204, 400, 503), (path, value, text)
        assert "Traceback" not in text

    post_corrupt_field()
