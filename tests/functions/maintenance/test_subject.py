"""What an event of ours must say of its NodeMaintenance and node; what is wrong is named to whoever sent it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference
from eventing.wire import BadEvent
from functions.maintenance.subject import node_of, reference_of
from kube.maintenance.groups import GROUPS, MEDIK8S
from tests.kube.samples import maintenance

REFERENCE = {"apiVersion": MEDIK8S.api_version, "name": "maintenance-1", "uid": "some-uid"}


def event(data: Mapping[str, Any]) -> CloudEvent:
    attributes = {"id": "1", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}
    return CloudEvent(attributes, dict(data))


def test_the_maintenance_is_named_by_a_reference_or_is_the_data_itself() -> None:
    """X-4: our own events refer to it; those of ApiServerSource carry it whole."""
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
    """X-6: the fault is found without reading the code."""
    with pytest.raises(BadEvent) as error:
        reference_of(event({"maintenance": maintenance}))

    assert str(error.value).startswith(named)


@pytest.mark.parametrize("node", [None, "", 1, "a/b", "UPPER"])
def test_what_is_wrong_about_the_node_is_named(node: object) -> None:
    """X-6: a name that no node can have is not asked for."""
    with pytest.raises(BadEvent) as error:
        node_of(event({"node": node}))

    assert str(error.value).startswith("data.node is ")
