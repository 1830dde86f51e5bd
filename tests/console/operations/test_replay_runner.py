"""Tests of which functions a replay posts a recorded event to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from console.operations.replay_report import FAILS, UNRECORDED
from console.operations.errors import NoResult
from console.operations.replay_runner import FUNCTION_LABEL, FUNCTIONS, Target, Targets, Wanted, dry_run, one_by_one
from eventing import events
from eventing.journal.entries import Entry
from eventing.replay import function_client
from eventing.replay.function_client import NoAnswer, TooLate
from eventing.replay.object_changes import NO_CHANGES
from eventing.http_binding import BATCH
from functions import app
from kube.client.sync_client import Cluster
from localcluster.cluster import LocalCluster
from tests.receiver import PATIENCE, Answer, Receiver

ABOUT = events.Reference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
BEGUN = events.event(events.MAINTENANCE_BEGUN, "begin", ABOUT, "node-1")
ENTRY = Entry(1, datetime.now(timezone.utc), BEGUN)
FOREIGN = {"broker": "default"}


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Cluster]:
    """Yield a client of a cluster without Triggers."""
    door = Cluster(str(cluster.kubeconfig))
    yield door
    door.close()


def trigger(name: str, spec: dict[str, Any], url: str = "", function: str = "") -> str:
    """Return a Trigger as JSON, which is also YAML; empty arguments leave out the subscriber's address or the label."""
    labels = {"labels": {FUNCTION_LABEL: function}} if function else {}
    head = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": {"name": name, **labels}}
    return json.dumps({**head, "spec": spec, "status": {"subscriberUri": url} if url else {}})


def targets(folder: Path, admin: Cluster, *documents: str, **wanted: Any) -> list[str]:
    """Return the functions to which a replay posts the event if these are the Triggers."""
    file = folder / "triggers.yaml"
    file.write_text("\n---\n".join(documents))
    found = Targets(Wanted(manifests=(file,), base="http://functions", **wanted), admin).of(BEGUN)
    return [target.function for target in found]


def test_the_functions_are_those_that_are_served() -> None:
    """Check that the replay knows exactly the functions that the product serves."""
    assert sorted(FUNCTIONS) == sorted(app.FUNCTIONS)


@pytest.mark.parametrize("spec", [FOREIGN, {**FOREIGN, "filters": [{"exact": {"type": "t"}}]}])
def test_a_subscriber_that_is_no_function_of_ours_gets_nothing(
    admin: Cluster, tmp_path: Path, spec: dict[str, Any]
) -> None:
    """X-2: A subscriber that is not one of our functions gets no replayed event, because it may ignore `dryrun`.

    If the user names such a subscriber, the command reports it as unknown.
    """
    ours = trigger("cordon-on-begun", {**FOREIGN, "filter": {"attributes": {"type": events.MAINTENANCE_BEGUN}}})
    labelled = trigger("ours", FOREIGN, function="status")
    foreign = trigger("my-logger", spec)

    assert targets(tmp_path, admin, foreign, ours, labelled) == ["cordon", "status"]
    with pytest.raises(NoResult, match="there is no function my-logger: begin, "):
        targets(tmp_path, admin, foreign, ours, functions=("my-logger",))
    with pytest.raises(NoResult, match="no Trigger of a function of ours"):
        targets(tmp_path, admin, foreign)


def test_who_took_too_long_once_is_asked_no_more() -> None:
    """X-6: A function that times out once is not called again, so that it costs its 10 s only once."""
    errors: dict[str, NoAnswer] = {"hangs": TooLate("it takes too long"), "is away": NoAnswer("it cannot be reached")}
    asked = []

    def ask(_: Entry, target: Target) -> function_client.Answer:
        asked.append(target.function)
        if target.function in errors:
            raise errors[target.function]
        return function_client.Answer(target.function, 200, 0.1)

    calls = [(ENTRY, Target(name, "")) for name in ("hangs", "is away", "answers") * 2]
    found = list(one_by_one(calls, ask, NO_CHANGES))

    assert asked == ["hangs", "is away", "answers", "is away", "answers"]
    assert [each.result for each in found] == [FAILS, FAILS, UNRECORDED] * 2
    assert found[3].now == function_client.Answer("hangs", 503, 0.0, error="it takes too long")


def test_a_dry_run_asks_all_functions_side_by_side(admin: Cluster, receiver: Receiver) -> None:
    """X-6: A dry run calls all functions concurrently, so that a few that hang do not exceed a browser's timeout."""
    both = Barrier(2)

    def answer(_: object) -> Answer:
        both.wait(PATIENCE)
        return Answer(200, {"content-type": BATCH}, b"[]")

    receiver.answers |= {"/cordon": answer, "/status": answer}

    shown = dry_run(ENTRY, admin, admin.api, receiver.url)

    assert {each.now.function: each.now.status for each in shown.answers} == {"cordon": 200, "status": 200}
