"""Tests that Triggers that can never deliver an event that their function consumes are found."""

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
    return trigger_checks.find_problems(
        [Document(Path("f.yaml"), manifest) for manifest in objects], FUNCTIONS, EMITTED_TYPES
    )


@pytest.mark.parametrize("by_path", [True, False], ids=["by path", "by Service"])
def test_trigger_for_consumed_type_is_valid(by_path: bool) -> None:
    """X-4: a Trigger for a consumed type is valid, whether each function has a Service or all functions share one."""
    assert (
        find_problems(build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordon", by_path=by_path)))
        == []
    )


def test_trigger_without_filter_is_valid_for_record() -> None:
    """Check that a Trigger without a filter is valid for `record`, because this function consumes every type."""
    assert find_problems(build_trigger({}, build_destination("record"))) == []


@pytest.mark.parametrize("by_path", [True, False], ids=["by path", "by Service"])
def test_trigger_with_unknown_function_is_reported(by_path: bool) -> None:
    """Check that a Trigger with an unknown function is reported, because every event would become a dead letter."""
    problems = find_problems(
        build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordn", by_path=by_path))
    )

    assert problems == [
        "f.yaml: Trigger t: spec.subscriber names 'cordn', which is not a function: choose from cordon, guard, record"
    ]


def test_filter_type_that_is_never_emitted_is_reported() -> None:
    """Check that a filter with a type that is never emitted is reported, because it would match no event."""
    problems = find_problems(
        build_trigger({"type": "dev.nodemaintenance.maintenance.begum"}, build_destination("record"))
    )

    assert problems == [
        "f.yaml: Trigger t: spec.filter.attributes are type=dev.nodemaintenance.maintenance.begum, "
        "which match no emitted event"
    ]


def test_filter_type_that_function_does_not_consume_is_reported() -> None:
    """Check that a filter with a type that the function does not consume is reported, as it would ignore the events."""
    problems = find_problems(NODE_SOURCE, build_trigger({"type": events.RESOURCE_UPDATED}, build_destination("cordon")))

    assert problems == [
        f"f.yaml: Trigger t: spec.filter.attributes are type={events.RESOURCE_UPDATED}, "
        "which match no event that cordon consumes"
    ]


@pytest.mark.parametrize(("flag", "is_emitted", "is_consumed"), [("progress", True, True), ("more", False, False)])
def test_filter_for_flag_matches_every_event_type_with_flag(flag: str, is_emitted: bool, is_consumed: bool) -> None:
    """Check that a filter for a flag matches every type with this flag; a flag without an emitted type is reported."""
    problems = find_problems(build_trigger({flag: "true"}, build_destination("cordon")))

    assert ("which match no emitted event" in "".join(problems)) is not is_emitted
    assert ("match no event that cordon consumes" in "".join(problems)) is not is_consumed


def test_trigger_for_node_changes_requires_source_for_nodes() -> None:
    """Check that a Trigger for changes of nodes is reported unless a source watches nodes."""
    node_trigger = build_trigger({"type": events.RESOURCE_UPDATED, "kind": "Node"}, build_destination("guard"))
    attributes = f"type={events.RESOURCE_UPDATED}, kind=Node"

    assert find_problems(NODE_SOURCE, node_trigger) == []
    assert find_problems(node_trigger) == [
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which match no event that guard consumes",
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which match no emitted event",
        "f.yaml: Trigger t: spec.filter.attributes.kind is 'Node', which no ApiServerSource watches",
    ]


def test_unknown_dead_letter_sink_is_reported() -> None:
    """Check that a dead letter sink that is not a function is reported, because undelivered events would be lost."""
    problems = find_problems(
        build_trigger({"type": events.MAINTENANCE_BEGUN}, build_destination("cordon"), dead_letter_function="recrod")
    )

    assert problems == [
        "f.yaml: Trigger t: spec.delivery.deadLetterSink names 'recrod', which is not a function: "
        "choose from cordon, guard, record"
    ]
