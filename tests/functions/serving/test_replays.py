"""Tests for replayed events: only the replaying client gets the replies, and a dry run stores no writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events, extensions
from eventing.http_binding import BATCH_CONTENT_TYPE, encode_binary
from eventing.journal.entries import Query
from eventing.logs import JsonFormatter
from functions.record import get_journal
from kube.maintenance.objects import build_path
from kube.nodes import is_cordoned
from kube.paths import Object
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import (
    build_added_event,
    build_node_deleted_event,
    build_product_event,
    build_tick,
    build_updated_event,
)
from tests.workload import Workload, summarize_writes

DRY_RUN_EXTENSIONS = {"replay": "r1", "dryrun": "All"}
Prepare = Callable[[Functions, Workload, str], BaseCloudEvent]


def post_event(
    functions: Functions, step: str, event: BaseCloudEvent, accept: str = BATCH_CONTENT_TYPE, **extensions: str
) -> TestResponse:
    """Post the event with additional extension attributes and this `Accept` header."""
    message = encode_binary(event)
    headers = {**message.headers, **{f"ce-{name}": value for name, value in extensions.items()}, "accept": accept}
    return functions.clients[step].post(f"/{step}", data=message.body, headers=headers)


def parse_batch(response: TestResponse) -> list[Any]:
    """Return the CloudEvents of a batch response."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == BATCH_CONTENT_TYPE
    batch: list[Any] = json.loads(response.data)
    return batch


def select_product_entries(entries: list[Object]) -> list[Object]:
    """Return the audit entries of the product's ServiceAccounts, without those of nodes and Kubernetes controllers."""
    return [entry for entry in entries if entry["user"]["username"].startswith(OWN_USER_PREFIX)]


def prepare_begin(functions: Functions, workload: Workload, node: str) -> BaseCloudEvent:
    return build_added_event(workload.create_maintenance(node))


def prepare_cordon(functions: Functions, workload: Workload, node: str) -> BaseCloudEvent:
    return functions.run_begin(workload.create_maintenance(node))


def prepare_taint(functions: Functions, workload: Workload, node: str) -> BaseCloudEvent:
    return functions.run_chain(workload.create_maintenance(node), "begin", "cordon")


def prepare_evict(functions: Functions, workload: Workload, node: str) -> BaseCloudEvent:
    return functions.run_until_tainted(workload.create_maintenance(node))


def prepare_restore(functions: Functions, workload: Workload, node: str) -> BaseCloudEvent:
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    workload.delete(build_path(maintenance))
    return build_updated_event(workload.read_maintenance(maintenance))


STEPS = {
    "begin": (prepare_begin, events.MAINTENANCE_BEGUN, {("create", "leases"), ("patch", "nodemaintenances")}),
    "cordon": (prepare_cordon, events.NODE_CORDONED, {("patch", "nodes")}),
    "taint": (prepare_taint, events.NODE_TAINTED, {("patch", "nodes")}),
    "evict": (prepare_evict, events.PODS_EVICTED, {("create", "pods/eviction")}),
    "restore": (
        prepare_restore,
        events.NODE_RESTORED,
        {("patch", "nodes"), ("create", "events"), ("delete", "leases"), ("patch", "nodemaintenances")},
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_dry_run_returns_reply_and_stores_no_writes(
    functions: Functions, workload: Workload, audit: AuditLog, step: str
) -> None:
    """X-2: A dry run of a step stores no writes, and returns a reply with the event's extension attributes."""
    prepare, kind, writes = STEPS[step]
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    event = prepare(functions, workload, node)
    persisted_count = len(audit.list_persisted_writes())
    before = len(audit.list_writes_by())

    (response,) = parse_batch(post_event(functions, step, event, **DRY_RUN_EXTENSIONS))

    step_writes = summarize_writes(audit.list_writes_by()[before:])
    assert {(verb, kind) for verb, kind, _ in step_writes} == writes
    assert select_product_entries(audit.list_persisted_writes()[persisted_count:]) == []
    assert response["type"] == kind
    assert {name: response[name] for name in DRY_RUN_EXTENSIONS} == DRY_RUN_EXTENSIONS


def test_dry_run_of_status_does_not_store_status(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-12: A dry run of `status`, the only writer of the status, does not store the status."""
    maintenance = workload.create_maintenance(workload.take_node())
    begun_event = functions.run_begin(maintenance)
    before, persisted_count = len(audit.list_writes_by()), len(audit.list_persisted_writes())

    assert parse_batch(post_event(functions, "status", begun_event, **DRY_RUN_EXTENSIONS)) == []

    assert {kind for _, kind, _ in summarize_writes(audit.list_writes_by()[before:])} == {
        "nodemaintenances/status",
        "events",
    }
    assert select_product_entries(audit.list_persisted_writes()[persisted_count:]) == []
    assert "status" not in workload.read_maintenance(maintenance)


def test_dry_run_of_guard_deletes_no_maintenance(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """NMO-20: A dry run of `guard` does not delete the maintenance of a node that no longer exists."""
    node = workload.take_node()
    maintenance = workload.create_maintenance(node)
    functions.run_until_tainted(maintenance)
    labelled_node = workload.read_node(node)
    # Without an owner reference, the garbage collector does not delete the maintenance.
    workload.client.patch(build_path(maintenance), {"metadata": {"ownerReferences": None}})
    workload.delete(f"/api/v1/nodes/{node}")
    before, persisted_count = len(audit.list_writes_by()), len(audit.list_persisted_writes())

    assert (
        parse_batch(post_event(functions, "guard", build_node_deleted_event(labelled_node), **DRY_RUN_EXTENSIONS)) == []
    )

    assert summarize_writes(audit.list_writes_by()[before:]) == [
        ("delete", "nodemaintenances", maintenance["metadata"]["name"])
    ]
    assert select_product_entries(audit.list_persisted_writes()[persisted_count:]) == []
    assert not workload.read_maintenance(maintenance)["metadata"].get("deletionTimestamp")


def test_replay_without_accept_header_gets_empty_response(functions: Functions, workload: Workload) -> None:
    """X-2: A replay without a suitable `Accept` header gets an empty response.

    If a broker delivers a replay, no second chain of events therefore starts.
    """
    event = functions.run_begin(workload.create_maintenance(workload.take_node()))

    response = post_event(functions, "cordon", event, accept="*/*", replay="r1")

    assert (response.status_code, response.data) == (204, b"")


def test_several_replies_to_replay_are_returned_as_batch(functions: Functions, workload: Workload) -> None:
    """X-3: A replay of `resync` returns all replies in its response, even if `K_SINK` is not set."""
    maintenances = [workload.create_maintenance(workload.take_node()) for _ in range(2)]

    replies = parse_batch(post_event(functions, "resync", build_tick(), replay="r1", dryrun="All"))

    assert {maintenance["metadata"]["uid"] for maintenance in maintenances} <= {
        response["maintenance"] for response in replies
    }


@pytest.mark.parametrize("value", ["None", "all", "true", ""])
def test_event_with_unknown_dryrun_value_is_rejected(
    functions: Functions, workload: Workload, audit: AuditLog, value: str
) -> None:
    """X-1: An event with an unknown value of `dryrun` is rejected, because its sender may expect a dry run."""
    event = functions.run_begin(workload.create_maintenance(workload.take_node()))
    before = len(audit.list_writes_by())

    response = post_event(functions, "cordon", event, dryrun=value)

    assert (response.status_code, response.text) == (
        400,
        f"extension dryrun is {value!r}: send 'All', or omit it\n",
    )
    assert len(audit.list_writes_by()) == before


def test_replay_without_dryrun_writes(functions: Functions, workload: Workload, audit: AuditLog) -> None:
    """X-2: A replay without `dryrun` stores the step's writes, and only the client that replays gets the replies."""
    node = workload.take_node()
    event = functions.run_begin(workload.create_maintenance(node))

    (response,) = parse_batch(post_event(functions, "cordon", event, replay="r1"))

    assert is_cordoned(workload.read_node(node))
    assert (response["replay"], response.get("dryrun")) == ("r1", None)


def test_dry_run_replay_is_not_counted_in_metrics(functions: Functions, workload: Workload) -> None:
    """X-2: The metrics count neither a dry run nor the pods that it would evict."""
    node = workload.take_node()
    workload.create_bare_pods(node, "a")
    event = functions.run_until_tainted(workload.create_maintenance(node))
    before = read_metric_lines(functions)

    assert parse_batch(post_event(functions, "evict", event, **DRY_RUN_EXTENSIONS))[0]["data"]["evicted"]

    assert read_metric_lines(functions) == before


def read_metric_lines(functions: Functions) -> list[str]:
    lines = functions.clients["evict"].get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("nodemaintenance_function", "nodemaintenance_evictions"))]


def test_journal_stores_no_dry_run(functions: Functions) -> None:
    """X-2: The journal stores no dry-run replay. The event of any other replay is already in the journal."""
    event = build_tick()

    post_event(functions, "record", event, **DRY_RUN_EXTENSIONS)

    assert get_journal().select(Query(ids=(event.get_id(),))) == []


def test_log_lines_of_replay_contain_replay_extensions(
    functions: Functions, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    """NMO-17, KNM-5: Each log line of a replay contains the replay's extension attributes; later log lines do not."""
    maintenance: Object = workload.create_maintenance(workload.take_node())
    caplog.handler.setFormatter(JsonFormatter())
    caplog.clear()

    with caplog.at_level(logging.INFO, "controller_nodemaintenance"):
        post_event(functions, "begin", build_added_event(maintenance), **DRY_RUN_EXTENSIONS)
        dry_run_lines = [json.loads(line) for line in caplog.text.splitlines()]
        caplog.clear()
        functions.run_begin(maintenance)

    assert dry_run_lines
    assert all(line["replay"] == "r1" and line["dryrun"] == "All" for line in dry_run_lines)
    assert not [line for line in caplog.text.splitlines() if "replay" in json.loads(line)]


def test_reply_to_replay_inherits_replay_extensions(workload: Workload) -> None:
    """X-2: A reply to a replay is itself marked as a replay."""
    maintenance = workload.create_maintenance("nowhere")
    cause = extensions.add_replay_extensions(build_product_event(events.NODE_TAINTED, maintenance), "r1", dry_run=True)

    response = events.build_event(
        events.NODE_DRAINED, "evict", events.ObjectReference.from_object(maintenance), "nowhere", cause=cause
    )

    assert extensions.get_replay_extensions(response) == DRY_RUN_EXTENSIONS
    assert extensions.is_replay(response)
    assert not extensions.is_replay(build_product_event(events.NODE_TAINTED, maintenance))
