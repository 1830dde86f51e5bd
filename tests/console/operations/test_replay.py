"""Tests for a replay: the selection of the functions, the calls of these functions, and the summary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from console.operations.errors import NoResult
from console.operations.replay import (
    FAILS,
    ReplayResult,
    format_summary,
    replay_calls,
    replay_dry_run,
)
from console.operations.replay_targets import FUNCTION_LABEL, KNOWN_FUNCTIONS, Target, TargetOptions, TargetResolver
from eventing import events
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse, NoResponse
from eventing.replay.object_changes import NO_CHANGES
from functions import app
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import TIMEOUT_SECONDS, Receiver, Response

MAINTENANCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
BEGUN = events.build_event(events.MAINTENANCE_BEGUN, "begin", MAINTENANCE, "node-1")
ENTRY = Entry(1, datetime.now(timezone.utc), BEGUN)
BROKER_SPEC = {"broker": "default"}


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[SyncClient]:
    """Yield an API client for a cluster without Triggers."""
    sync_client = SyncClient(str(cluster.kubeconfig))
    yield sync_client
    sync_client.close()


def build_trigger(name: str, spec: dict[str, Any], url: str = "", function: str = "") -> str:
    """Return a Trigger as JSON, which is valid YAML; an empty `url` or `function` is omitted."""
    labels = {"labels": {FUNCTION_LABEL: function}} if function else {}
    type_fields = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": {"name": name, **labels}}
    return json.dumps({**type_fields, "spec": spec, "status": {"subscriberUri": url} if url else {}})


def resolve_targets(directory: Path, client: SyncClient, *triggers: str, **options: Any) -> list[str]:
    """Return the functions to which a replay would post the event according to these Triggers."""
    file = directory / "triggers.yaml"
    file.write_text("\n---\n".join(triggers))
    targets = TargetResolver(
        TargetOptions(manifests=(file,), functions_url="http://functions", **options), client
    ).resolve(BEGUN)
    return [target.function for target in targets]


def test_replay_can_call_all_functions_of_product() -> None:
    """Check that a replay can call exactly the functions that the product serves."""
    assert sorted(KNOWN_FUNCTIONS) == sorted(app.FUNCTIONS)


@pytest.mark.parametrize("spec", [BROKER_SPEC, {**BROKER_SPEC, "filters": [{"exact": {"type": "t"}}]}])
def test_event_is_not_replayed_to_subscriber_of_other_product(
    client: SyncClient, tmp_path: Path, spec: dict[str, Any]
) -> None:
    """X-2: an event is replayed only to functions of this product, because other subscribers may ignore `dryrun`.

    If the user names such a subscriber, the command reports it as unknown.
    """
    product_trigger = build_trigger(
        "cordon-on-begun", {**BROKER_SPEC, "filter": {"attributes": {"type": events.MAINTENANCE_BEGUN}}}
    )
    labelled_trigger = build_trigger("ours", BROKER_SPEC, function="status")
    other_trigger = build_trigger("my-logger", spec)

    assert resolve_targets(tmp_path, client, other_trigger, product_trigger, labelled_trigger) == ["cordon", "status"]
    with pytest.raises(NoResult, match='function "my-logger" not found: name one of begin, '):
        resolve_targets(tmp_path, client, other_trigger, product_trigger, functions=("my-logger",))
    with pytest.raises(NoResult, match="no Trigger of a nodemaintenance function found"):
        resolve_targets(tmp_path, client, other_trigger)


def test_replay_ends_after_first_call_without_response() -> None:
    """X-6: after a call without a response, a replay makes no more calls; the user waits for at most one timeout."""
    called_names = []

    def call_function(_: Entry, target: Target) -> FunctionResponse:
        called_names.append(target.function)
        if target.function == "hangs":
            raise NoResponse("no response within 10 s")
        return FunctionResponse(target.function, 503, 0.1)

    calls = [(ENTRY, Target(name, "")) for name in ("fails", "fails", "hangs", "fails", "hangs")]
    results = list(replay_calls(calls, call_function, NO_CHANGES))

    assert called_names == ["fails", "fails", "hangs"]
    assert [result.result for result in results] == [FAILS] * 3
    assert results[2].response == FunctionResponse("hangs", 503, None, error="no response within 10 s")


def test_dry_run_calls_functions_concurrently(client: SyncClient, receiver: Receiver) -> None:
    """X-6: a dry run calls functions concurrently, so that hanging functions do not exceed a browser's timeout."""
    barrier = Barrier(2)

    def respond_when_both_are_called(_: object) -> Response:
        barrier.wait(TIMEOUT_SECONDS)
        return Response(200, {"content-type": BATCH_CONTENT_TYPE}, b"[]")

    receiver.answers |= {"/cordon": respond_when_both_are_called, "/status": respond_when_both_are_called}

    report = replay_dry_run(ENTRY, client, client.api, receiver.url)

    assert {result.response.function: result.response.status for result in report.results} == {
        "cordon": 200,
        "status": 200,
    }


POD = {"namespace": "default", "name": "a", "uid": "uid-a"}
PODS_EVICTED_REPLY = {"type": events.PODS_EVICTED, "data": {"evicted": [POD], "blocked": [{**POD, "uid": "uid-b"}]}}
SUMMARY_CASES = {
    "dry run": (True, (PODS_EVICTED_REPLY,), "dry run: no writes were stored"),
    "no eviction": (False, (), "all writes were stored"),
    "one eviction": (False, (PODS_EVICTED_REPLY,), "all writes were stored, including 1 eviction"),
    "one eviction in two responses": (
        False,
        (PODS_EVICTED_REPLY, PODS_EVICTED_REPLY),
        "all writes were stored, including 1 eviction",
    ),
    "invalid responses": (False, ({"type": "t", "data": "x"}, {"type": "t"}), "all writes were stored"),
}


@pytest.mark.parametrize(("dry_run", "replies", "expected"), SUMMARY_CASES.values(), ids=SUMMARY_CASES)
def test_summary_states_whether_writes_were_stored(
    dry_run: bool, replies: tuple[dict[str, object], ...], expected: str
) -> None:
    """X-2: the last line of the output states whether writes were stored; a dry run prints the same other lines."""
    event = CloudEvent({"id": "1", "source": "/s", "type": events.NODE_TAINTED}, {})
    entry = Entry(1, datetime(2026, 1, 2, tzinfo=timezone.utc), event)

    summary = format_summary(
        [ReplayResult(entry, None, FunctionResponse("evict", 200, 0.1, replies), [])], dry_run=dry_run
    )

    assert summary == f"1 event, 1 response: 0 the same, 1 without a recorded response, 0 different; {expected}"
