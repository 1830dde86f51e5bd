"""Tests that an event without the product's signature changes neither a status nor the journal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events, extensions
from eventing.http_binding import BATCH_CONTENT_TYPE, STRUCTURED_CONTENT_TYPE, decode_event, encode_binary
from eventing.journal.entries import Attempt, build_attempts_event, parse_time
from eventing.journal.store import Query
from eventing.signatures import KEY_VARIABLE, SIGNATURE_EXTENSION, has_valid_signature, sign_event
from functions.event_data import require_data
from functions.record import get_journal
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_added_event, build_product_event, build_updated_event
from tests.workload import Workload

pytestmark = pytest.mark.slow

POD_REFERENCE = {"namespace": "default", "name": "web", "uid": "1"}
FORGED_EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "maintenance.step_failed": (events.MAINTENANCE_STEP_FAILED, {"step": "cordon", "error": "call this number"}),
    "pods.evicted": (
        events.PODS_EVICTED,
        {"blocked": [{**POD_REFERENCE, "reason": "Forged"}], "error": "call this number"},
    ),
    "drain.overdue": (events.DRAIN_OVERDUE, {}),
    "node.drained": (events.NODE_DRAINED, {}),
    "pods.gone": (events.PODS_GONE, {"podsVersion": "1"}),
    "maintenance.begun": (events.MAINTENANCE_BEGUN, {"totalpods": 1, "evictionPods": 1}),
}


@pytest.fixture(autouse=True)
def signing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the key with which the product signs events."""
    monkeypatch.setenv(KEY_VARIABLE, "secret")


@pytest.mark.parametrize(("event_type", "data"), FORGED_EVENTS.values(), ids=FORGED_EVENTS)
def test_unsigned_event_does_not_change_status(
    functions: Functions, workload: Workload, audit: AuditLog, event_type: str, data: dict[str, Any]
) -> None:
    """X-2: `status` answers 403 to an unsigned event and writes nothing."""
    node = workload.take_node()
    workload.create_bare_pods(node, "web", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.invoke("status", functions.run_begin(maintenance))
    before, writes = workload.read_maintenance(maintenance), len(audit.list_writes_by())

    response = functions.post("status", build_product_event(event_type, maintenance, data=data))

    assert response.status_code == 403
    assert workload.read_maintenance(maintenance) == before
    assert len(audit.list_writes_by()) == writes


@pytest.mark.parametrize("event_type", [events.PODS_GONE, events.PODS_ADDED, events.NODE_TAINTED, events.PODS_EVICTED])
def test_unsigned_hint_does_not_start_pass(
    functions: Functions, workload: Workload, audit: AuditLog, event_type: str
) -> None:
    """Design rule 8: `evict` answers 403 to an unsigned hint and evicts no pod."""
    node = workload.take_node()
    workload.create_bare_pods(node, "web", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)

    response = functions.post("evict", build_product_event(event_type, maintenance))

    assert response.status_code == 403
    assert audit.list_evictions() == []


def post_replay(functions: Functions, step: str, event: BaseCloudEvent) -> TestResponse:
    """Post a replayed event, with an `Accept` header that requests the replies in the response."""
    message = encode_binary(event)
    return functions.clients[step].post(
        f"/{step}", data=message.body, headers={**message.headers, "accept": BATCH_CONTENT_TYPE}
    )


def remove_replay_extensions(response: TestResponse) -> BaseCloudEvent:
    """Return the only reply of a replay without the replay extensions, so that the reply resembles a new event."""
    (reply_event,) = json.loads(response.data)
    attributes = {
        name: value
        for name, value in reply_event.items()
        if name not in (extensions.REPLAY_EXTENSION, extensions.DRY_RUN_EXTENSION)
    }
    return decode_event({"content-type": STRUCTURED_CONTENT_TYPE}, json.dumps(attributes).encode())


EVENT_TYPES = {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED, "evict": events.NODE_TAINTED}


@pytest.mark.parametrize("step", EVENT_TYPES)
def test_dry_run_replies_are_unsigned(functions: Functions, workload: Workload, step: str) -> None:
    """X-2: the replies of a dry run are not signed, so no function accepts them as new events."""
    node = workload.take_node()
    workload.create_bare_pods(node, "web", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.run_chain(maintenance, "begin", *(["cordon", "taint"] if step == "evict" else []))
    response = post_replay(
        functions,
        step,
        extensions.add_replay_extensions(build_product_event(EVENT_TYPES[step], maintenance), "r1", dry_run=True),
    )
    assert response.status_code == 200

    forged = remove_replay_extensions(response)

    assert SIGNATURE_EXTENSION not in forged.get_attributes()
    steps = ["record", *(["status"] if step == "evict" else [])]
    assert {name: functions.post(name, forged).status_code for name in steps} == dict.fromkeys(steps, 403)


def test_replay_requires_signature_and_signs_replies(functions: Functions, workload: Workload) -> None:
    """X-2: a replay without `dryrun` requires a signed event, and its replies are signed."""
    node = workload.take_node()
    workload.create_bare_pods(node, "web", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    tainted_event = functions.run_until_tainted(maintenance)

    unsigned, signed = (
        post_replay(functions, "evict", extensions.add_replay_extensions(event, "r1", dry_run=False))
        for event in (build_product_event(events.NODE_TAINTED, maintenance), tainted_event)
    )

    assert (unsigned.status_code, signed.status_code) == (403, 200)
    assert has_valid_signature(remove_replay_extensions(signed))


def test_begun_field_is_copied_from_signed_hint_only(functions: Functions, workload: Workload) -> None:
    """X-2: `begin` copies the field `begun` of a hint to `maintenance.step_failed` only if the hint is signed."""
    node = workload.take_node()
    functions.run_begin(workload.create_maintenance(node))
    hint = build_product_event(events.MAINTENANCE_PENDING, workload.create_maintenance(node), data={"begun": True})

    unsigned_reply, signed_reply = (functions.invoke("begin", event) for event in (hint, sign_event(hint)))

    assert unsigned_reply is not None
    assert signed_reply is not None
    assert ("begun" in require_data(unsigned_reply), require_data(signed_reply)["begun"]) == (False, True)


def test_error_in_signed_event_is_written_to_status(functions: Functions, workload: Workload) -> None:
    """NMO-13: `status` accepts a step's signed event `maintenance.step_failed` and writes the error."""
    maintenance = workload.create_maintenance("nowhere")
    failure_event = functions.invoke("begin", build_added_event(maintenance))
    assert failure_event is not None

    functions.invoke("status", failure_event)

    assert workload.read_maintenance(maintenance)["status"]["lastError"] == 'nodes "nowhere" not found'


@pytest.mark.parametrize("node", ["a,b=c", "call this number", "..", "x" * 300])
def test_steps_answer_400_to_invalid_node_name(functions: Functions, workload: Workload, node: str) -> None:
    """X-2: a step answers 400 to an invalid node name, so that no signed error message quotes it."""
    maintenance = workload.create_maintenance(workload.take_node())
    functions.run_begin(maintenance)
    hint = build_product_event(events.NODE_TAINTED, {**maintenance, "spec": {"nodeName": node}})

    for step in ("cordon", "taint", "evict"):
        forged = build_product_event(
            {"cordon": events.NODE_DRIFTED, "taint": events.NODE_CORDONED}.get(step, hint.get_type()), maintenance
        )
        response = functions.post(step, sign_event(type(forged)(forged.get_attributes(), hint.get_data())))
        assert response.status_code == 400


def test_future_resource_version_in_unsigned_hint_is_not_awaited(
    functions: Functions, workload: Workload, audit: AuditLog
) -> None:
    """X-6: an unsigned hint with a future resourceVersion gets 403; a dry run ignores the resourceVersion."""
    node = workload.take_node()
    workload.create_bare_pods(node, "web", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.run_chain(maintenance, "begin", "cordon", "taint")
    hint = build_product_event(events.PODS_GONE, maintenance, data={"podsVersion": "9" * 18})

    responses = [
        functions.post("evict", event) for event in (hint, extensions.add_replay_extensions(hint, "r1", dry_run=True))
    ]

    assert [response.status_code for response in responses] == [403, 204]
    assert [entry["requestURI"].partition("?")[2] for entry in audit.list_evictions()] == ["dryRun=All"]


def test_record_rejects_unsigned_attempts_and_events(functions: Functions, workload: Workload) -> None:
    """X-6: `record` rejects unsigned attempts, and unsigned events whose source is the product."""
    maintenance = workload.create_maintenance("nowhere")
    forged_event, api_server_event = (
        build_product_event(events.NODE_DRAINED, maintenance),
        build_updated_event(maintenance),
    )
    attempt = Attempt(
        api_server_event.get_source(),
        api_server_event.get_id(),
        "restore",
        parse_time("2026-01-01T00:00:00Z"),
        0.1,
        204,
    )

    statuses = [
        functions.post("record", event).status_code
        for event in (forged_event, build_attempts_event([attempt]), api_server_event)
    ]

    (entry,) = get_journal().select(Query(ids=(forged_event.get_id(), api_server_event.get_id())))
    assert statuses == [403, 403, 204]
    assert (entry.event.get_id(), entry.attempts) == (api_server_event.get_id(), ())
