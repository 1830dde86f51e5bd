"""Tests of how an event names its NodeMaintenance and node, and of the errors for malformed data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference
from eventing.http_binding import BadEvent
from functions.event_data import data_of
from functions.failures import Retry
from functions.maintenance.event_objects import failed, log, log_about, node_of, reference_of
from kube.maintenance.groups import GROUPS, MEDIK8S, Group
from kube.maintenance.status_patch import LONGEST_ERROR
from kube.text_limits import shortened
from tests.functions.event_builders import added
from tests.kube.samples import maintenance
from tests.proofs import proves

REFERENCE = {"apiVersion": MEDIK8S.api_version, "name": "maintenance-1", "uid": "some-uid"}


def event(data: Mapping[str, Any]) -> CloudEvent:
    attributes = {"id": "1", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}
    return CloudEvent(attributes, dict(data))


def test_the_maintenance_is_named_by_a_reference_or_is_the_data_itself() -> None:
    """X-4: our own events refer to the maintenance; those of ApiServerSource contain the whole object."""
    whole = maintenance()
    uid, name = whole["metadata"]["uid"], whole["metadata"]["name"]

    assert reference_of(event({"maintenance": REFERENCE})) == Reference(*REFERENCE.values())
    assert reference_of(event(whole)) == Reference(whole["apiVersion"], name, uid)


@pytest.mark.parametrize(
    ("maintenance", "named"),
    [
        *((value, "data.maintenance is missing") for value in (None, "maintenance-1", ["maintenance-1"])),
        *(({**REFERENCE, field: value}, f"the {field} of") for field in REFERENCE for value in (None, "", 1)),
        *(({**REFERENCE, "name": name}, "the name of") for name in ("a/b", "..", "UPPER", "a" * 254)),
        ({**REFERENCE, "apiVersion": "v1"}, f"apiVersion v1 is none of {', '.join(GROUPS)}"),
    ],
)
def test_what_is_wrong_about_the_maintenance_is_named(maintenance: object, named: str) -> None:
    """X-6: the error names the missing or malformed field of the maintenance."""
    with pytest.raises(BadEvent) as error:
        reference_of(event({"maintenance": maintenance}))

    assert str(error.value).startswith(named)


@pytest.mark.parametrize("node", [None, "", 1, "a/b", "UPPER"])
def test_what_is_wrong_about_the_node_is_named(node: object) -> None:
    """X-6: a missing or invalid node name is rejected."""
    with pytest.raises(BadEvent) as error:
        node_of(event({"node": node}))

    assert str(error.value).startswith("data.node is ")


@proves("NMO-13")
@pytest.mark.parametrize(
    ("said", "node"),
    [
        pytest.param(event({"maintenance": REFERENCE, "node": "node-1"}), "node-1", id="an event of ours"),
        pytest.param(event({"maintenance": REFERENCE, "node": ""}), "-", id="without a node"),
        pytest.param(added(maintenance()), "node-1", id="the object"),
        pytest.param(added({**maintenance(), "spec": {}}), "-", id="the object without a node"),
        pytest.param(added({**maintenance(), "spec": "none"}), "-", id="the object without a spec"),
    ],
)
def test_a_failure_names_the_step_the_maintenance_and_its_node(said: CloudEvent, node: str) -> None:
    """NMO-13: the failure event names step, maintenance and node for every kind of event, and truncates the error."""
    (reply,) = failed("cordon", said, "x" * 10**5, waits=True)

    data, reference = data_of(reply), reference_of(said)
    assert (reply.get_type(), reply.get_source()) == (events.MAINTENANCE_FAILED, events.SOURCE + "cordon")
    assert (reply.get_extension("cause"), reply.get_extension("node")) == (said.get_id(), node)
    assert (data["maintenance"], data["node"], data["step"]) == (reference.as_data(), node, "cordon")
    assert data["waits"] is True
    assert data["error"] == shortened("x" * 10**5, LONGEST_ERROR)


@pytest.mark.parametrize("data", [{}, {"kind": "Node", "metadata": {"name": "node-1"}}], ids=["a tick", "a node"])
def test_a_failure_about_no_maintenance_is_tried_again(data: Mapping[str, Any]) -> None:
    """X-6: a failure without a maintenance raises `Retry`, since no status can hold it."""
    with pytest.raises(Retry, match="no right"):
        failed("resync", event(data), "no right")


@proves("NMO-17", "NMO-17a", "KNM-5", "C5")
@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.api_version.split("/")[0])
def test_a_line_has_the_keys_that_an_operator_greps_for(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """NMO-17, NMO-17a, KNM-5: a log line has the fields of the replaced operator's lines, and additional ones."""
    item = {**maintenance(), "apiVersion": group.api_version}

    with caplog.at_level("INFO", logger=log.name):
        log_about("cordon Node: node-1", item, pod="shop/web")

    (record,) = caplog.records
    assert record.message == "cordon Node: node-1"
    assert vars(record)["fields"] == {
        "reconciler group": group.api_version.split("/")[0],
        "reconciler kind": "NodeMaintenance",
        **{"name": "nm", "namespace": "", "Request.Namespace": "", "Request.Name": "nm"},
        **{"node": "node-1", "nodeName": "node-1", "pod": "shop/web"},
    }
