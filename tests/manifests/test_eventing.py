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


def read_documents(file: Path) -> list[Any]:
    """Return the documents in the file. A YAML error names the file."""
    with file.open() as stream:
        return list(yaml.load_all(stream, Loader=YAML_LOADER))


@cache
def load_documents(folder: str) -> list[dict[str, Any]]:
    return [document for file in sorted((MANIFESTS / folder).glob("*.yaml")) for document in read_documents(file)]


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


def test_every_manifest_document_has_api_version_and_kind() -> None:
    documents = {
        f"{file.relative_to(MANIFESTS)}, document {number}": document or {}
        for file in MANIFESTS.rglob("*.yaml")
        for number, document in enumerate(read_documents(file), start=1)
    }
    missing_fields = {place: {"apiVersion", "kind"} - document.keys() for place, document in documents.items()}

    assert documents
    assert {place: fields for place, fields in missing_fields.items() if fields} == {}


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


def test_name_and_label_of_trigger_contain_called_function() -> None:
    functions = [
        (
            trigger["metadata"]["name"],
            trigger["metadata"].get("labels", {}).get("nodemaintenance.dev/function"),
            trigger["spec"]["subscriber"]["ref"]["name"],
        )
        for trigger in TRIGGERS
    ]
    faults = {
        name: f"label {label}, function {function}"
        for name, label, function in functions
        if function not in FUNCTIONS or not name.startswith(f"{function}-on-") or label != function
    }

    assert functions
    assert faults == {}


def test_every_function_is_subscriber_of_a_trigger() -> None:
    assert {trigger["spec"]["subscriber"]["ref"]["name"] for trigger in TRIGGERS} == FUNCTIONS


def has_exact_filter_of_known_types(trigger: dict[str, Any]) -> bool:
    """Return whether the Trigger filters only by exact attributes, and by those of at least one known event type."""
    attributes = trigger["spec"].get("filter", {}).get("attributes", {})
    return (
        "filters" not in trigger["spec"]
        and all(isinstance(value, str) for value in attributes.values())
        and bool(trigger_checks.match_types(attributes, KNOWN_TYPES))
        and (bool(attributes) or trigger["metadata"]["name"] == "record-on-everything")
    )


@proves("X-4")
def test_trigger_filters_by_exact_attributes_of_known_event_types() -> None:
    """X-4: a Trigger filters by exact attributes of known events; the RabbitMQ Broker does not support `filters`."""
    faults = {
        trigger["metadata"]["name"]: {field: trigger["spec"].get(field) for field in ("filter", "filters")}
        for trigger in TRIGGERS
        if not has_exact_filter_of_known_types(trigger)
    }

    assert TRIGGERS
    assert faults == {}


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


def build_policy(trigger: dict[str, Any]) -> DeliveryPolicy:
    """Build the Trigger's delivery policy without the dead letter sink."""
    delivery = trigger["spec"]["delivery"]
    return DeliveryPolicy(
        delivery["retry"],
        delivery["backoffPolicy"],
        parse_duration(delivery["backoffDelay"]),
        parse_duration(delivery["timeout"]),
    )


def list_backoff_seconds(policy: DeliveryPolicy) -> list[float]:
    """Return the seconds to wait before each retry."""
    return [policy.get_backoff_seconds(retries) for retries in range(policy.retry)]


def compute_max_delivery_seconds(trigger: dict[str, Any]) -> float:
    """Return the duration of all delivery attempts for one event if each attempt times out."""
    policy = build_policy(trigger)
    return policy.timeout_seconds * (policy.retry + 1) + sum(list_backoff_seconds(policy))


def test_delays_between_retries_are_short_and_last_three_minutes() -> None:
    """Check that a drain continues within 10 s after an outage of all functions, and that three minutes lose no event.

    The local delivery and Kafka keep a node's events in order, so the delay of a retry also delays the newer events.
    `record` does not delay a drain.
    """
    delays = {
        trigger["metadata"]["name"]: list_backoff_seconds(build_policy(trigger))
        for trigger in TRIGGERS
        if trigger["metadata"]["name"] not in (*TICK_BACKED_TRIGGERS, "record-on-everything")
    }

    assert delays
    assert {name: max(seconds) for name, seconds in delays.items() if max(seconds) > 10.0} == {}
    assert {name: sum(seconds) for name, seconds in delays.items() if sum(seconds) < 180.0} == {}


def test_delivery_attempts_for_tick_finish_before_next_tick() -> None:
    """Design rule 10: all delivery attempts for a tick end before the next tick, so that ticks do not queue up."""
    (ping,) = filter_by_kind("PingSource")
    schedule = Schedule(ping["spec"]["schedule"], timezone.utc)
    tick = schedule.get_next_time(datetime(2026, 1, 1, tzinfo=timezone.utc))
    seconds_between_ticks = (schedule.get_next_time(tick) - tick).total_seconds()

    max_seconds = {
        trigger["metadata"]["name"]: compute_max_delivery_seconds(trigger)
        for trigger in TRIGGERS
        if trigger["metadata"]["name"] in TICK_BACKED_TRIGGERS
    }

    assert max_seconds.keys() == set(TICK_BACKED_TRIGGERS)
    assert {name: seconds for name, seconds in max_seconds.items() if seconds >= seconds_between_ticks} == {}


def test_every_reference_has_namespace() -> None:
    """Check that every reference has a namespace: Knative sets it only on creation, so an apply would remove it."""
    namespaces = {
        f"{manifest['kind']} {manifest['metadata']['name']}": {ref.get("namespace") for ref in find_refs(manifest)}
        for manifest in (*TRIGGERS, *SOURCES)
    }

    assert TRIGGERS
    assert SOURCES
    assert {name: found for name, found in namespaces.items() if found != {"node-maintenance"}} == {}


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
