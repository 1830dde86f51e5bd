"""Tests for parsing the NodeMaintenance and the node in an event's data, and for the errors about malformed data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference
from eventing.http_binding import BadEvent
from functions.event_data import require_data
from functions.failures import Retry
from functions.maintenance.event_objects import build_step_failed, log, log_about, parse_node_name, parse_reference
from kube.maintenance.groups import GROUPS, MEDIK8S, ApiGroup
from kube.maintenance.status_patch import MAX_ERROR_CHARACTERS
from kube.text_limits import truncate
from tests.functions.event_builders import build_added_event
from tests.kube.samples import make_maintenance
from tests.proofs import proves

REFERENCE = {"apiVersion": MEDIK8S.api_version, "name": "maintenance-1", "uid": "some-uid"}


def build_event(data: Mapping[str, Any]) -> CloudEvent:
    attributes = {"id": "1", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}
    return CloudEvent(attributes, dict(data))


def test_maintenance_is_parsed_from_reference_or_object() -> None:
    """X-4: functions' events contain a reference to the maintenance, ApiServerSource's events the whole object."""
    maintenance = make_maintenance()
    uid, name = maintenance["metadata"]["uid"], maintenance["metadata"]["name"]

    assert parse_reference(build_event({"maintenance": REFERENCE})) == ObjectReference(*REFERENCE.values())
    assert parse_reference(build_event(maintenance)) == ObjectReference(maintenance["apiVersion"], name, uid)


@pytest.mark.parametrize(
    ("maintenance", "message"),
    [
        *((value, "data.maintenance is missing") for value in (None, "maintenance-1", ["maintenance-1"])),
        *(({**REFERENCE, field: value}, f"the {field} of") for field in REFERENCE for value in (None, "", 1)),
        *(({**REFERENCE, "name": name}, "the name of") for name in ("a/b", "..", "UPPER", "a" * 254)),
        ({**REFERENCE, "apiVersion": "v1"}, f"apiVersion v1 is not one of {', '.join(GROUPS)}"),
    ],
)
def test_error_names_malformed_field_of_maintenance_reference(maintenance: object, message: str) -> None:
    """X-6: the error names the missing or malformed field of the maintenance reference."""
    with pytest.raises(BadEvent) as error:
        parse_reference(build_event({"maintenance": maintenance}))

    assert str(error.value).startswith(message)


@pytest.mark.parametrize("node", [None, "", 1, "a/b", "UPPER"])
def test_invalid_node_name_is_rejected(node: object) -> None:
    """X-6: a missing or invalid node name is rejected."""
    with pytest.raises(BadEvent) as error:
        parse_node_name(build_event({"node": node}))

    assert str(error.value).startswith("data.node is ")


@proves("NMO-13")
@pytest.mark.parametrize(
    ("cause", "node"),
    [
        pytest.param(build_event({"maintenance": REFERENCE, "node": "node-1"}), "node-1", id="own event"),
        pytest.param(build_event({"maintenance": REFERENCE, "node": ""}), "-", id="without a node"),
        pytest.param(build_added_event(make_maintenance()), "node-1", id="object"),
        pytest.param(build_added_event({**make_maintenance(), "spec": {}}), "-", id="object without node"),
        pytest.param(build_added_event({**make_maintenance(), "spec": "none"}), "-", id="object without spec"),
    ],
)
def test_step_failed_event_names_step_maintenance_and_node(cause: CloudEvent, node: str) -> None:
    """NMO-13: `maintenance.step_failed` names step, maintenance and node for any cause, and truncates the error."""
    (reply,) = build_step_failed("cordon", cause, "x" * 10**5, waits=True)

    data, reference = require_data(reply), parse_reference(cause)
    assert (reply.get_type(), reply.get_source()) == (events.MAINTENANCE_STEP_FAILED, events.SOURCE_PREFIX + "cordon")
    assert (reply.get_extension("cause"), reply.get_extension("node")) == (cause.get_id(), node)
    assert (data["maintenance"], data["node"], data["step"]) == (reference.as_data(), node, "cordon")
    assert data["waits"] is True
    assert data["error"] == truncate("x" * 10**5, MAX_ERROR_CHARACTERS)


@pytest.mark.parametrize("data", [{}, {"kind": "Node", "metadata": {"name": "node-1"}}], ids=["a tick", "a node"])
def test_step_failure_without_maintenance_raises_retry(data: Mapping[str, Any]) -> None:
    """X-6: a step failure for an event without a maintenance raises `Retry`, since no status can report it."""
    with pytest.raises(Retry, match="no right"):
        build_step_failed("resync", build_event(data), "no right")


@proves("NMO-17", "NMO-17a", "KNM-5", "C5")
@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_log_line_has_fields_of_replaced_operators(group: ApiGroup, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17, NMO-17a, KNM-5: a log line has all fields that the replaced operators log, and additional fields."""
    maintenance = {**make_maintenance(), "apiVersion": group.api_version}

    with caplog.at_level("INFO", logger=log.name):
        log_about("cordon Node: node-1", maintenance, pod="shop/web")

    (record,) = caplog.records
    assert record.message == "cordon Node: node-1"
    assert vars(record)["fields"] == {
        "reconciler group": group.api_version.split("/")[0],
        "reconciler kind": "NodeMaintenance",
        **{"name": "nm", "namespace": "", "Request.Namespace": "", "Request.Name": "nm"},
        **{"node": "node-1", "nodeName": "node-1", "pod": "shop/web"},
    }
