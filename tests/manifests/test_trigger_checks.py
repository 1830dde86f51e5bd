"""Triggers that could never deliver a useful event are found before they are applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventing import events
from eventing.local.manifests import Document
from tests.manifests import trigger_checks

FUNCTIONS = {"cordon": (events.MAINTENANCE_BEGUN,), "guard": (events.RESOURCE_UPDATED,), "record": ()}
EMITTED_TYPES = {events.MAINTENANCE_BEGUN}
SERVICE = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "namespace": "ns"}
NODE_SOURCE = {
    "kind": "ApiServerSource",
    "metadata": {"name": "nodes"},
    "spec": {"mode": "Resource", "resources": [{"kind": "Node"}]},
}


def build_destination(function: str, *, by_path: bool = True) -> dict[str, Any]:
    return (
        {"ref": {**SERVICE, "name": "functions"}, "uri": f"/{function}"}
        if by_path
        else {"ref": {**SERVICE, "name": function}}
    )


def build_trigger(
    attributes: dict[str, str], subscriber: dict[str, Any], dead_letter_function: str = "record"
) -> dict[str, Any]:
    spec = {"filter": {"attributes": attributes}, "subscriber": subscriber}
    return {
        "kind": "Trigger",
        "metadata": {"name": "t"},
        "spec": {**spec, "delivery": {"deadLetterSink": build_destination(dead_letter_function)}},
    }


def find_problems(*objects: dict[str, Any]) -> list[str]:
    return trigger_checks.find_problems([Document(Path("f.yaml"), item) for item in objects], FUNCTIONS, EMITTED_TYPES)


@pytest.mark.parametrize("path", [True, False], ids=["by path", "by Service"])
def test_trigger_for_consumed_type_has_no_problem(path: bool) -> None:
    """X-4: a Trigger for a consumed type has no problem, with one Service for each function or one for all."""
    assert (
        find_problems(build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordon", by_path=path)))
        == []
    )


def test_trigger_without_filter_has_no_problem() -> None:
    """Check that a Trigger without a filter has no problem if its function, `record`, consumes every type."""
    assert find_problems(build_trigger({}, build_destination("record"))) == []


@pytest.mark.parametrize("path", [True, False], ids=["by path", "by Service"])
def test_unknown_function_is_reported(path: bool) -> None:
    """Report a Trigger with an unknown function; the Broker would retry and dead-letter every event."""
    problems = find_problems(
        build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordn", by_path=path))
    )

    assert problems == [
        "f.yaml: Trigger t: spec.subscriber names 'cordn', which is not a function: choose from cordon, guard, record"
    ]


def test_type_without_sender_is_reported() -> None:
    """Report a filter whose type is never emitted; it would match no event."""
    problems = find_problems(
        build_trigger({"type": "dev.nodemaintenance.maintenance.begum"}, build_destination("record"))
    )

    assert problems == [
        "f.yaml: Trigger t: spec.filter.attributes are type=dev.nodemaintenance.maintenance.begum, "
        "which match no emitted event"
    ]


def test_unconsumed_type_is_reported() -> None:
    """Report a Trigger whose function does not consume the type, and would only answer that it ignores the event."""
    problems = find_problems(NODE_SOURCE, build_trigger({"type": events.RESOURCE_UPDATED}, build_destination("cordon")))

    assert problems == [
        f"f.yaml: Trigger t: spec.filter.attributes are type={events.RESOURCE_UPDATED}, "
        "which match no event that cordon consumes"
    ]


@pytest.mark.parametrize(("flag", "is_emitted", "is_consumed"), [("progress", True, True), ("more", False, False)])
def test_flag_matches_every_type_that_carries_it(flag: str, is_emitted: bool, is_consumed: bool) -> None:
    """Check that a flag matches every type that carries it, and that a flag without an emitted type is reported."""
    problems = find_problems(build_trigger({flag: "true"}, build_destination("cordon")))

    assert ("which match no emitted event" in "".join(problems)) is not is_emitted
    assert ("match no event that cordon consumes" in "".join(problems)) is not is_consumed


def test_source_events_require_the_source() -> None:
    """Check that a Trigger on node changes requires a source that watches nodes."""
    node_trigger = build_trigger({"type": events.RESOURCE_UPDATED, "kind": "Node"}, build_destination("guard"))
    attributes = f"type={events.RESOURCE_UPDATED}, kind=Node"

    assert find_problems(NODE_SOURCE, node_trigger) == []
    assert find_problems(node_trigger) == [
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which match no event that guard consumes",
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which match no emitted event",
        "f.yaml: Trigger t: spec.filter.attributes.kind is 'Node', which no ApiServerSource watches",
    ]


def test_unknown_dead_letter_sink_is_found() -> None:
    """Report a dead letter sink that is not a function; undelivered events would be lost."""
    problems = find_problems(
        build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordon"), dead_letter_function="recrod")
    )

    assert problems == [
        "f.yaml: Trigger t: spec.delivery.deadLetterSink names 'recrod', which is not a function: "
        "choose from cordon, guard, record"
    ]
