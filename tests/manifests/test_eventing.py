"""Names, filters and references of the Knative manifests agree with the functions and the event types."""

from __future__ import annotations

import runpy
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from eventing import events
from eventing.event_types import KNOWN
from eventing.local.manifests import LOADER
from eventing.local.ping_source import Schedule
from eventing.local.triggers import PARALLELISM, Policy, seconds
from kube import selectors
from kube.nodes import LABEL
from tests.manifests import trigger_checks
from tests.proofs import proves
from tests.sources import OPT_IN

MANIFESTS = Path(__file__).parents[2] / "manifests"
OPTED = ("components/mutex", "components/virtualization", "components/cpu-labels")
CHAIN = ("base/eventing", "components/certificates", *OPTED)
FUNCTIONS = {
    *("begin", "cordon", "taint", "evict", "status", "restore", "guard", "resync", "record"),
    "renew-certificates",
    *OPT_IN,
}
HEARD = set(KNOWN)
RUN_HINTS = ("tick", "survey", "pool-updated", "cluster-version-updated")
MOVING_HINTS = (
    *("tick", "node-tainted", "virtual-machine-added", "virtual-machine-updated"),
    *("migration-added", "migration-updated", "migration-deleted"),
)
CPU_HINTS = (
    *("tick", "labels-due"),
    *(f"{what}-{how}" for what in ("capabilities", "hyperconverged") for how in ("added", "updated", "deleted")),
)
CERTIFICATE_HINTS = ("tick", "secret-added", "secret-updated", "secret-deleted")


@cache
def documents(folder: str) -> list[dict[str, Any]]:
    files = sorted((MANIFESTS / folder).glob("*.yaml"))
    return [document for file in files for document in yaml.load_all(file.read_text(), Loader=LOADER)]


def of_kind(kind: str, *folders: str) -> list[dict[str, Any]]:
    wanted = folders or (*CHAIN, "v1alpha1")
    return [document for folder in wanted for document in documents(folder) if document["kind"] == kind]


def refs(value: Any) -> list[dict[str, Any]]:
    """Return every `ref` at any depth."""
    if isinstance(value, list):
        return [ref for item in value for ref in refs(item)]
    if not isinstance(value, dict):
        return []
    return [item for key, child in value.items() for item in ([child] if key == "ref" else refs(child))]


TRIGGERS = of_kind("Trigger")
TICKED = (
    *("resync-on-tick", *(f"resync-runs-on-{hint}" for hint in RUN_HINTS)),
    *(f"renew-certificates-on-{hint}" for hint in CERTIFICATE_HINTS),
    *(f"migrate-on-{hint}" for hint in MOVING_HINTS if not hint.endswith("-added")),
    *(f"protect-on-{hint}" for hint in MOVING_HINTS),
    *(f"label-cpu-on-{hint}" for hint in CPU_HINTS),
)
"""Triggers whose events need no dead letter, because the next tick does the same work."""
SOURCES = [source for kind in ("ApiServerSource", "PingSource", "ContainerSource") for source in of_kind(kind)]


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda file: str(file.relative_to(MANIFESTS)))
def test_every_manifest_is_yaml_that_names_its_kind(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        assert {"apiVersion", "kind"} <= document.keys()


def test_one_process_for_all_functions_has_threads_that_evict_and_record_do_not_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that one process for all functions has threads left while `evict` and `record` use all of theirs.

    A node's maintenance must begin or end at once, even if a hundred nodes are drained and the journal is slow.
    """
    monkeypatch.delenv("FUNCTION", raising=False)
    threads = runpy.run_path(str(MANIFESTS.parent / "functions" / "gunicorn.conf.py"))["threads"]
    at_once = {
        trigger["metadata"]["name"]: int(trigger["metadata"].get("annotations", {}).get(PARALLELISM, threads))
        for trigger in TRIGGERS
    }

    assert 1 < at_once["evict-on-more"] < threads - at_once["record-on-everything"] < threads - 1


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["metadata"]["name"])
def test_a_trigger_calls_the_function_that_its_name_and_label_say(trigger: dict[str, Any]) -> None:
    function = trigger["spec"]["subscriber"]["ref"]["name"]

    assert function in FUNCTIONS
    assert trigger["metadata"]["name"].startswith(f"{function}-on-")
    assert trigger["metadata"]["labels"]["nodemaintenance.dev/function"] == function


def test_every_function_is_called_by_some_trigger() -> None:
    assert {trigger["spec"]["subscriber"]["ref"]["name"] for trigger in TRIGGERS} == FUNCTIONS


@proves("X-4")
@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["metadata"]["name"])
def test_a_trigger_filters_by_exact_attributes_of_a_known_event_alone(trigger: dict[str, Any]) -> None:
    """X-4: a Trigger filters by exact attributes of known events; the RabbitMQ Broker does not support `filters`."""
    assert "filters" not in trigger["spec"]
    attributes = trigger["spec"].get("filter", {}).get("attributes", {})

    assert all(isinstance(value, str) for value in attributes.values())
    assert trigger_checks.brings(attributes, HEARD)
    assert attributes or trigger["metadata"]["name"] == "record-on-everything"


def test_every_event_that_we_emit_has_a_listener_beside_the_journal() -> None:
    """Check that some Trigger filters for each emitted event type, except for two that end a chain.

    One of these reports completion, the other requires an administrator.
    """
    filters = [trigger["spec"]["filter"]["attributes"] for trigger in TRIGGERS if "filter" in trigger["spec"]]
    heard = {kind for attributes in filters for kind in trigger_checks.brings(attributes, HEARD)}

    assert set(events.MEANINGS) - heard == {events.NODE_RESTORED, events.RUN_STOPPED}


def test_what_cannot_be_delivered_is_recorded_but_the_record_does_not_call_itself() -> None:
    dead_letters = {
        trigger["metadata"]["name"]: trigger["spec"]["delivery"].get("deadLetterSink", {}).get("ref", {}).get("name")
        for trigger in TRIGGERS
    }

    assert dead_letters.pop("record-on-everything") is None
    ticked = [dead_letters.pop(name) for name in list(dead_letters) if name in TICKED]
    assert len(ticked) == len(TICKED)
    assert set(ticked) == {None}  # the next tick does the same work
    assert set(dead_letters.values()) == {"record"}


@pytest.mark.parametrize("name", TICKED)
def test_a_tick_is_given_up_before_the_next_one_comes(name: str) -> None:
    """Rule 10: all delivery attempts for a tick end before the next tick, which would otherwise queue after it."""
    (ping,) = of_kind("PingSource")
    found = next(each for each in TRIGGERS if each["metadata"]["name"] == name)
    schedule = Schedule(ping["spec"]["schedule"], timezone.utc)
    delivery = found["spec"]["delivery"]
    policy = Policy(
        delivery["retry"], delivery["backoffPolicy"], seconds(delivery["backoffDelay"]), seconds(delivery["timeout"])
    )
    tick = schedule.after(datetime(2026, 1, 1, tzinfo=timezone.utc))

    tried = policy.timeout * (policy.retry + 1) + sum(policy.pause(retries) for retries in range(policy.retry))

    assert tried < (schedule.after(tick) - tick).total_seconds()


@pytest.mark.parametrize("item", [*TRIGGERS, *SOURCES], ids=lambda item: item["metadata"]["name"])
def test_every_reference_names_its_namespace(item: dict[str, Any]) -> None:
    """Check that every reference names its namespace: Knative sets it at creation only, so an apply would remove it."""
    found = refs(item)

    assert found
    assert {ref["namespace"] for ref in found} == {"node-maintenance"}


def test_sources_watch_all_three_groups_and_nodes() -> None:
    """X-7: only `v1alpha1` watches the third API group. Rule 10: only nodes under maintenance are watched."""
    watched = {
        folder: {
            resource["apiVersion"]
            for source in of_kind("ApiServerSource", folder)
            for resource in source["spec"]["resources"]
        }
        for folder in ("base/eventing", "v1alpha1")
    }

    (nodes,) = [one for one in of_kind("ApiServerSource") if one["metadata"]["name"] == "nodes"]
    assert [selectors.text(one["selector"]) for one in nodes["spec"]["resources"]] == [LABEL]
    assert watched == {
        "base/eventing": {"nodemaintenance.medik8s.io/v1beta1", "nodemaintenance.kubevirt.io/v1beta1", "v1"},
        "v1alpha1": {"kubevirt.io/v1alpha1"},
    }
