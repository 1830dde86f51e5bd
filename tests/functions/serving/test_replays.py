"""Tests of replayed events: only the client that replays gets the replies, and a dry run stores nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from werkzeug.test import TestResponse

from eventing import events, replay_extensions
from eventing.journal.entries import Query
from eventing.logs import JsonLines
from eventing.http_binding import BATCH, binary
from functions.record import journal
from kube.maintenance.objects import path
from kube.nodes import is_cordoned
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import added, node_deleted, said, tick, updated
from tests.workload import OURS, Audit, Workload, written

DRY = {"replay": "r1", "dryrun": "All"}
Prepare = Callable[[Functions, Workload, str], BaseCloudEvent]


def post(functions: Functions, step: str, event: BaseCloudEvent, accept: str = BATCH, **more: str) -> TestResponse:
    """Post the event with additional extensions."""
    message = binary(event)
    headers = {**message.headers, **{f"ce-{name}": value for name, value in more.items()}, "accept": accept}
    return functions.clients[step].post(f"/{step}", data=message.body, headers=headers)


def told(response: TestResponse) -> list[Any]:
    """Return the events of a batch response."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == BATCH
    batch: list[Any] = json.loads(response.data)
    return batch


def by_us(entries: list[Object]) -> list[Object]:
    """Return the audit entries of the product's accounts, without heartbeats of nodes and writes of controllers."""
    return [entry for entry in entries if entry["user"]["username"].startswith(OURS)]


def begin(functions: Functions, work: Workload, node: str) -> BaseCloudEvent:
    return added(work.maintenance(node))


def cordon(functions: Functions, work: Workload, node: str) -> BaseCloudEvent:
    return functions.begin(work.maintenance(node))


def taint(functions: Functions, work: Workload, node: str) -> BaseCloudEvent:
    return functions.chain(work.maintenance(node), "begin", "cordon")


def evict(functions: Functions, work: Workload, node: str) -> BaseCloudEvent:
    return functions.prepare(work.maintenance(node))


def restore(functions: Functions, work: Workload, node: str) -> BaseCloudEvent:
    item = work.maintenance(node)
    functions.prepare(item)
    work.delete(path(item))
    return updated(work.again(item))


STEPS = {
    "begin": (begin, events.MAINTENANCE_BEGUN, {("create", "leases"), ("patch", "nodemaintenances")}),
    "cordon": (cordon, events.NODE_CORDONED, {("patch", "nodes")}),
    "taint": (taint, events.NODE_TAINTED, {("patch", "nodes")}),
    "evict": (evict, events.PODS_EVICTED, {("create", "pods/eviction")}),
    "restore": (
        restore,
        events.NODE_RESTORED,
        {("patch", "nodes"), ("create", "events"), ("delete", "leases"), ("patch", "nodemaintenances")},
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_dry_run_answers_as_ever_and_writes_nothing(
    functions: Functions, work: Workload, audit: Audit, step: str
) -> None:
    """X-2: A dry run of a step sends all writes, stores none of them, and returns a reply with the same marks."""
    prepare, kind, writes = STEPS[step]
    node = work.node()
    work.pods(node, "a")
    event = prepare(functions, work, node)
    kept = len(audit.kept())
    before = len(audit.writes_by())

    (answer,) = told(post(functions, step, event, **DRY))

    sent = written(audit.writes_by()[before:])
    assert {(verb, kind) for verb, kind, _ in sent} == writes
    assert by_us(audit.kept()[kept:]) == []
    assert answer["type"] == kind
    assert {name: answer[name] for name in DRY} == DRY


def test_a_dry_status_writes_nothing(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-12: A dry run of `status`, the only writer of the status, does not store the status."""
    item = work.maintenance(work.node())
    begun = functions.begin(item)
    before, kept = len(audit.writes_by()), len(audit.kept())

    assert told(post(functions, "status", begun, **DRY)) == []

    assert {kind for _, kind, _ in written(audit.writes_by()[before:])} == {"nodemaintenances/status", "events"}
    assert by_us(audit.kept()[kept:]) == []
    assert "status" not in work.again(item)


def test_a_dry_guard_deletes_nothing(functions: Functions, work: Workload, audit: Audit) -> None:
    """NMO-20: A dry run of `guard` does not delete the maintenance of a node that no longer exists."""
    node = work.node()
    item = work.maintenance(node)
    functions.prepare(item)
    whole = work.read_node(node)
    # without an owner reference, the garbage collector does not delete it
    work.admin.patch(path(item), {"metadata": {"ownerReferences": None}})
    work.delete(f"/api/v1/nodes/{node}")
    before, kept = len(audit.writes_by()), len(audit.kept())

    assert told(post(functions, "guard", node_deleted(whole), **DRY)) == []

    assert written(audit.writes_by()[before:]) == [("delete", "nodemaintenances", item["metadata"]["name"])]
    assert by_us(audit.kept()[kept:]) == []
    assert not work.again(item)["metadata"].get("deletionTimestamp")


def test_a_replay_is_told_to_nobody_who_does_not_ask(functions: Functions, work: Workload) -> None:
    """X-2: A replay without a suitable `Accept` header gets an empty response.

    A broker that delivers a replay therefore does not start a second chain of events.
    """
    event = functions.begin(work.maintenance(work.node()))

    response = post(functions, "cordon", event, accept="*/*", replay="r1")

    assert (response.status_code, response.data) == (204, b"")


def test_a_replay_with_several_answers_posts_none(functions: Functions, work: Workload) -> None:
    """X-3: A replay of `resync` returns all replies in its response, and needs no `K_SINK`, which is not set here."""
    items = [work.maintenance(work.node()) for _ in range(2)]

    found = told(post(functions, "resync", tick(), replay="r1", dryrun="All"))

    assert {item["metadata"]["uid"] for item in items} <= {answer["maintenance"] for answer in found}


@pytest.mark.parametrize("value", ["None", "all", "true", ""])
def test_another_dry_run_is_refused(functions: Functions, work: Workload, audit: Audit, value: str) -> None:
    """X-1: An event with an unknown value of `dryrun` is rejected, because its sender may not want any writes."""
    event = functions.begin(work.maintenance(work.node()))
    before = len(audit.writes_by())

    response = post(functions, "cordon", event, dryrun=value)

    assert (response.status_code, response.text) == (
        400,
        f"extension dryrun is {value!r}; send 'All', or leave it out\n",
    )
    assert len(audit.writes_by()) == before


def test_a_real_replay_writes_what_is_missing(functions: Functions, work: Workload, audit: Audit) -> None:
    """X-2: A replay without `dryrun` makes the step's writes; its replies still go only to the client that replays."""
    node = work.node()
    event = functions.begin(work.maintenance(node))

    (answer,) = told(post(functions, "cordon", event, replay="r1"))

    assert is_cordoned(work.read_node(node))
    assert (answer["replay"], answer.get("dryrun")) == ("r1", None)


def test_the_figures_know_no_replay(functions: Functions, work: Workload) -> None:
    """X-2: Metrics count neither a replay nor the pods that it would evict."""
    node = work.node()
    work.pods(node, "a")
    event = functions.prepare(work.maintenance(node))
    before = figures(functions)

    assert told(post(functions, "evict", event, **DRY))[0]["data"]["evicted"]

    assert figures(functions) == before


def figures(functions: Functions) -> list[str]:
    lines = functions.clients["evict"].get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith(("nodemaintenance_function", "nodemaintenance_evictions"))]


def test_the_journal_keeps_no_dry_run(functions: Functions) -> None:
    """X-2: The journal stores no dry run. A real replay is the event that it contains already."""
    event = tick()

    post(functions, "record", event, **DRY)

    assert journal().select(Query(ids=(event.get_id(),))) == []


def test_the_log_tells_replays_apart(functions: Functions, work: Workload, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17, KNM-5: Each log line of a replay carries its marks, and no later line does."""
    item: Object = work.maintenance(work.node())
    caplog.handler.setFormatter(JsonLines())
    caplog.clear()

    with caplog.at_level(logging.INFO, "controller_nodemaintenance"):
        post(functions, "begin", added(item), **DRY)
        dry = [json.loads(line) for line in caplog.text.splitlines()]
        caplog.clear()
        functions.begin(item)

    assert dry
    assert all(line["replay"] == "r1" and line["dryrun"] == "All" for line in dry)
    assert not [line for line in caplog.text.splitlines() if "replay" in json.loads(line)]


def test_marks_are_inherited(work: Workload) -> None:
    """X-2: A reply to a replay is marked as a replay too."""
    item = work.maintenance("nowhere")
    cause = replay_extensions.marked(said(events.NODE_TAINTED, item), "r1", dry_run=True)

    answer = events.event(events.NODE_DRAINED, "evict", events.Reference.of(item), "nowhere", cause=cause)

    assert replay_extensions.of(answer) == DRY
    assert replay_extensions.is_replay(answer)
    assert not replay_extensions.is_replay(said(events.NODE_TAINTED, item))
