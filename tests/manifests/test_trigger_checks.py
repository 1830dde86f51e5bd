"""Triggers that could never deliver a useful event are found before they are applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventing import events
from eventing.local.manifests import Document
from tests.manifests import trigger_checks

FUNCTIONS = {"cordon": (events.MAINTENANCE_BEGUN,), "guard": (events.RESOURCE_UPDATED,), "record": ()}
EMITTED = {events.MAINTENANCE_BEGUN}
SERVICE = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "namespace": "ns"}
NODES = {
    "kind": "ApiServerSource",
    "metadata": {"name": "nodes"},
    "spec": {"mode": "Resource", "resources": [{"kind": "Node"}]},
}


def destination(function: str, *, path: bool = True) -> dict[str, Any]:
    return (
        {"ref": {**SERVICE, "name": "functions"}, "uri": f"/{function}"}
        if path
        else {"ref": {**SERVICE, "name": function}}
    )


def trigger(attributes: dict[str, str], subscriber: dict[str, Any], dead: str = "record") -> dict[str, Any]:
    spec = {"filter": {"attributes": attributes}, "subscriber": subscriber}
    return {
        "kind": "Trigger",
        "metadata": {"name": "t"},
        "spec": {**spec, "delivery": {"deadLetterSink": destination(dead)}},
    }


def problems(*objects: dict[str, Any]) -> list[str]:
    return trigger_checks.problems([Document(Path("f.yaml"), item) for item in objects], FUNCTIONS, EMITTED)


@pytest.mark.parametrize("path", [True, False], ids=["by path", "by Service"])
def test_a_trigger_that_brings_a_function_what_it_consumes_is_fine(path: bool) -> None:
    """X-4: a Trigger for a consumed type has no problem, with one Service for each function or one for all."""
    assert problems(trigger({"type": events.MAINTENANCE_BEGUN}, destination("cordon", path=path))) == []


def test_a_trigger_without_a_filter_is_fine() -> None:
    """Check that a Trigger without a filter has no problem if its function, `record`, consumes every type."""
    assert problems(trigger({}, destination("record"))) == []


@pytest.mark.parametrize("path", [True, False], ids=["by path", "by Service"])
def test_an_unknown_function_is_found(path: bool) -> None:
    """Report a Trigger with an unknown function; the Broker would retry and dead-letter every event."""
    found = problems(trigger({"type": events.MAINTENANCE_BEGUN}, destination("cordn", path=path)))

    assert found == ["f.yaml: Trigger t: spec.subscriber names 'cordn', which is no function: cordon, guard, record"]


def test_a_type_that_nothing_emits_is_found() -> None:
    """Report a filter whose type is never emitted; it would match no event."""
    found = problems(trigger({"type": "dev.nodemaintenance.maintenance.begum"}, destination("record")))

    assert found == [
        "f.yaml: Trigger t: spec.filter.attributes are type=dev.nodemaintenance.maintenance.begum, which nothing emits"
    ]


def test_a_type_that_the_function_does_not_consume_is_found() -> None:
    """Report a Trigger whose function does not consume the type, and would only answer that it ignores the event."""
    found = problems(NODES, trigger({"type": events.RESOURCE_UPDATED}, destination("cordon")))

    assert found == [
        f"f.yaml: Trigger t: spec.filter.attributes are type={events.RESOURCE_UPDATED}, "
        "which brings nothing that cordon consumes"
    ]


@pytest.mark.parametrize(("flag", "emits", "brought"), [("progress", True, True), ("more", False, False)])
def test_a_flag_brings_every_type_that_carries_it(flag: str, emits: bool, brought: bool) -> None:
    """Check that a flag matches every type that carries it, and that a flag without an emitted type is reported."""
    found = problems(trigger({flag: "true"}, destination("cordon")))

    assert ("which nothing emits" in "".join(found)) is not emits
    assert ("brings nothing that cordon consumes" in "".join(found)) is not brought


def test_what_a_source_emits_is_known_only_where_there_is_that_source() -> None:
    """Check that a Trigger on node changes requires a source that watches nodes."""
    on_nodes = trigger({"type": events.RESOURCE_UPDATED, "kind": "Node"}, destination("guard"))
    attributes = f"type={events.RESOURCE_UPDATED}, kind=Node"

    assert problems(NODES, on_nodes) == []
    assert problems(on_nodes) == [
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which brings nothing that guard consumes",
        f"f.yaml: Trigger t: spec.filter.attributes are {attributes}, which nothing emits",
        "f.yaml: Trigger t: spec.filter.attributes.kind is 'Node', which no ApiServerSource watches",
    ]


def test_a_dead_letter_sink_that_is_no_function_is_found() -> None:
    """Report a dead letter sink that is not a function; undelivered events would be lost."""
    found = problems(trigger({"type": events.MAINTENANCE_BEGUN}, destination("cordon"), dead="recrod"))

    assert found == [
        "f.yaml: Trigger t: spec.delivery.deadLetterSink names 'recrod', which is no function: cordon, guard, record"
    ]
