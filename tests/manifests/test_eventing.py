"""Tests that names, filters and references in the Knative manifests match the functions and the event types."""

from __future__ import annotations

import runpy
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from eventing import events
from eventing.events import KNOWN_TYPES
from eventing.local.manifests import PARALLELISM_ANNOTATION, YAML_LOADER, DeliveryPolicy, parse_duration
from eventing.local.ping_source import Schedule
from kube import selectors
from kube.nodes import MAINTENANCE_LABEL
from tests.manifests import trigger_checks
from tests.proofs import proves
from tests.sources import OPT_IN_STEPS

MANIFESTS = Path(__file__).parents[2] / "manifests"
OPTIONAL_COMPONENT_DIRS = (
    *("components/mutex", "components/virtualization", "components/cpu-labels", "components/node-conditions"),
    "components/notifications",
)
EVENTING_DIRS = ("base/eventing", "components/certificates", *OPTIONAL_COMPONENT_DIRS)
FUNCTIONS = {
    *("begin", "cordon", "taint", "evict", "status", "restore", "guard", "resync", "record"),
    "renew-certificates",
    *OPT_IN_STEPS,
}
TRIGGER_TYPES = set(KNOWN_TYPES)
RESYNC_RUNS_TRIGGER_SUFFIXES = ("tick", "survey", "pool-updated", "cluster-version-updated")
VIRTUALIZATION_TRIGGER_SUFFIXES = (
    *("tick", "node-tainted", "virtual-machine-added", "virtual-machine-updated"),
    *("migration-added", "migration-updated", "migration-deleted"),
)
LABEL_CPU_TRIGGER_SUFFIXES = (
    *("tick", "labels-due"),
    *(
        f"{source}-{change}"
        for source in ("capabilities", "hyperconverged")
        for change in ("added", "updated", "deleted")
    ),
)
PUBLISH_CONDITIONS_TRIGGER_SUFFIXES = ("maintenance-updated", "node-tainted", "tick")
NOTIFY_OWNERS_TRIGGER_SUFFIXES = ("maintenance-updated", "tick")
RENEW_CERTIFICATES_TRIGGER_SUFFIXES = ("tick", "secret-added", "secret-updated", "secret-deleted")


@cache
def load_documents(folder: str) -> list[dict[str, Any]]:
    files = sorted((MANIFESTS / folder).glob("*.yaml"))
    return [document for file in files for document in yaml.load_all(file.read_text(), Loader=YAML_LOADER)]


def filter_by_kind(kind: str, *folders: str) -> list[dict[str, Any]]:
    directories = folders or (*EVENTING_DIRS, "v1alpha1")
    return [document for folder in directories for document in load_documents(folder) if document["kind"] == kind]


def find_refs(value: Any) -> list[dict[str, Any]]:
    """Return all `ref` fields of the value, at any depth."""
    if isinstance(value, list):
        return [ref for element in value for ref in find_refs(element)]
    if not isinstance(value, dict):
        return []
    return [ref for key, child in value.items() for ref in ([child] if key == "ref" else find_refs(child))]


TRIGGERS = filter_by_kind("Trigger")
TICK_BACKED_TRIGGERS = (
    *("resync-on-tick", *(f"resync-runs-on-{suffix}" for suffix in RESYNC_RUNS_TRIGGER_SUFFIXES)),
    *(f"renew-certificates-on-{suffix}" for suffix in RENEW_CERTIFICATES_TRIGGER_SUFFIXES),
    *(f"migrate-on-{suffix}" for suffix in VIRTUALIZATION_TRIGGER_SUFFIXES if not suffix.endswith("-added")),
    *(f"protect-on-{suffix}" for suffix in VIRTUALIZATION_TRIGGER_SUFFIXES),
    *(f"label-cpu-on-{suffix}" for suffix in LABEL_CPU_TRIGGER_SUFFIXES),
    *(f"publish-conditions-on-{suffix}" for suffix in PUBLISH_CONDITIONS_TRIGGER_SUFFIXES),
    *(f"notify-owners-on-{suffix}" for suffix in NOTIFY_OWNERS_TRIGGER_SUFFIXES),
)
"""Triggers whose undelivered events need not become dead letters, because their function repeats the work on a tick."""
SOURCES = [source for kind in ("ApiServerSource", "PingSource", "ContainerSource") for source in filter_by_kind(kind)]


@pytest.mark.parametrize("file", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda file: str(file.relative_to(MANIFESTS)))
def test_every_manifest_document_has_api_version_and_kind(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        assert {"apiVersion", "kind"} <= document.keys()


def test_shared_process_has_more_threads_than_evict_and_record_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a process that serves all functions has idle threads if `evict` and `record` use their maximum.

    A maintenance must begin or end without delay even while a hundred nodes are drained and the journal is slow.
    """
    monkeypatch.delenv("FUNCTION", raising=False)
    threads = runpy.run_path(str(MANIFESTS.parent / "functions" / "gunicorn.conf.py"))["threads"]
    max_parallel = {
        trigger["metadata"]["name"]: int(
            trigger["metadata"].get("annotations", {}).get(PARALLELISM_ANNOTATION, threads)
        )
        for trigger in TRIGGERS
    }

    assert 1 < max_parallel["evict-on-more"] < threads - max_parallel["record-on-everything"] < threads - 1


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["metadata"]["name"])
def test_name_and_label_of_trigger_contain_called_function(trigger: dict[str, Any]) -> None:
    function = trigger["spec"]["subscriber"]["ref"]["name"]

    assert function in FUNCTIONS
    assert trigger["metadata"]["name"].startswith(f"{function}-on-")
    assert trigger["metadata"]["labels"]["nodemaintenance.dev/function"] == function


def test_every_function_is_subscriber_of_a_trigger() -> None:
    assert {trigger["spec"]["subscriber"]["ref"]["name"] for trigger in TRIGGERS} == FUNCTIONS


@proves("X-4")
@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["metadata"]["name"])
def test_trigger_filters_by_exact_attributes_of_known_event_types(trigger: dict[str, Any]) -> None:
    """X-4: a Trigger filters by exact attributes of known events; the RabbitMQ Broker does not support `filters`."""
    assert "filters" not in trigger["spec"]
    attributes = trigger["spec"].get("filter", {}).get("attributes", {})

    assert all(isinstance(value, str) for value in attributes.values())
    assert trigger_checks.match_types(attributes, KNOWN_TYPES)
    assert attributes or trigger["metadata"]["name"] == "record-on-everything"


def test_every_emitted_event_type_has_a_trigger() -> None:
    """Check that each emitted event type has a Trigger, except for two types that end a chain.

    `NODE_RESTORED` reports completion, and `RUN_HALTED` requires an action by the administrator.
    """
    filters = [trigger["spec"]["filter"]["attributes"] for trigger in TRIGGERS if "filter" in trigger["spec"]]
    filtered_types = {kind for attributes in filters for kind in trigger_checks.match_types(attributes, KNOWN_TYPES)}

    assert set(events.TYPE_DESCRIPTIONS) - filtered_types == {events.NODE_RESTORED, events.RUN_HALTED}


def test_triggers_send_dead_letters_to_record_except_triggers_of_record_and_ticks() -> None:
    dead_letters = {
        trigger["metadata"]["name"]: trigger["spec"]["delivery"].get("deadLetterSink", {}).get("ref", {}).get("name")
        for trigger in TRIGGERS
    }

    assert dead_letters.pop("record-on-everything") is None
    tick_sinks = [dead_letters.pop(name) for name in list(dead_letters) if name in TICK_BACKED_TRIGGERS]
    assert len(tick_sinks) == len(TICK_BACKED_TRIGGERS)
    assert set(tick_sinks) == {None}  # The next tick repeats the work.
    assert set(dead_letters.values()) == {"record"}


@pytest.mark.parametrize("name", TICK_BACKED_TRIGGERS)
def test_delivery_attempts_for_tick_finish_before_next_tick(name: str) -> None:
    """Design rule 10: all delivery attempts for a tick end before the next tick, so that ticks do not queue up."""
    (ping,) = filter_by_kind("PingSource")
    trigger = next(candidate for candidate in TRIGGERS if candidate["metadata"]["name"] == name)
    schedule = Schedule(ping["spec"]["schedule"], timezone.utc)
    delivery = trigger["spec"]["delivery"]
    policy = DeliveryPolicy(
        delivery["retry"],
        delivery["backoffPolicy"],
        parse_duration(delivery["backoffDelay"]),
        parse_duration(delivery["timeout"]),
    )
    tick = schedule.get_next_time(datetime(2026, 1, 1, tzinfo=timezone.utc))

    max_seconds = policy.timeout_seconds * (policy.retry + 1) + sum(
        policy.get_backoff_seconds(retries) for retries in range(policy.retry)
    )

    assert max_seconds < (schedule.get_next_time(tick) - tick).total_seconds()


@pytest.mark.parametrize("manifest", [*TRIGGERS, *SOURCES], ids=lambda manifest: manifest["metadata"]["name"])
def test_every_reference_has_namespace(manifest: dict[str, Any]) -> None:
    """Check that every reference has a namespace: Knative sets it only on creation, so an apply would remove it."""
    references = find_refs(manifest)

    assert references
    assert {ref["namespace"] for ref in references} == {"node-maintenance"}


def test_sources_watch_all_three_api_groups_and_nodes_under_maintenance() -> None:
    """X-7: all three API groups are watched, but only nodes under maintenance (design rule 10)."""
    watched = {
        folder: {
            resource["apiVersion"]
            for source in filter_by_kind("ApiServerSource", folder)
            for resource in source["spec"]["resources"]
        }
        for folder in ("base/eventing", "v1alpha1")
    }

    (nodes,) = [document for document in filter_by_kind("ApiServerSource") if document["metadata"]["name"] == "nodes"]
    assert [selectors.format_selector(document["selector"]) for document in nodes["spec"]["resources"]] == [
        MAINTENANCE_LABEL
    ]
    assert watched == {
        "base/eventing": {"nodemaintenance.medik8s.io/v1beta1", "nodemaintenance.kubevirt.io/v1beta1", "v1"},
        "v1alpha1": {"kubevirt.io/v1alpha1"},
    }
