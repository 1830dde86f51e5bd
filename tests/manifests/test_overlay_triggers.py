"""Tests that the Triggers of each overlay deliver to all functions the events that they consume."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventing import events
from eventing.local import manifests
from eventing.podsource import watcher
from eventing.subscriptions import SUBSCRIPTIONS
from functions.app import FUNCTIONS
from tests.manifests import trigger_checks
from tests.manifests.rendering import CERTIFICATES_OVERLAYS, MANIFESTS, OVERLAYS, list_optional_steps, render_yaml
from tests.sources import OPT_IN_STEPS

CONSUMED_TYPES = {name: function.consumes for name, function in FUNCTIONS.items()}
DEFAULT_CONSUMED_TYPES = {
    name: kinds for name, kinds in CONSUMED_TYPES.items() if name not in {"renew-certificates", *OPT_IN_STEPS}
}
EMITTED_TYPES = {events.MAINTENANCE_STEP_FAILED, *watcher.EMITTED_TYPES}.union(
    *(function.emits for function in FUNCTIONS.values())
)


def load_rendered(directory: Path, output_dir: Path) -> list[manifests.Document]:
    """Render a directory with kustomize, and load the result like the local delivery."""
    file = output_dir / f"{directory.name}.yaml"
    file.write_text(render_yaml(directory))
    return manifests.read_documents([file])


def test_emitted_event_types_equal_described_event_types() -> None:
    """X-4: the emitted event types are exactly those that have a description."""
    assert set(events.TYPE_DESCRIPTIONS) == EMITTED_TYPES


@pytest.mark.parametrize("folder", [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS)], ids=str)
def test_every_trigger_matches_an_emitted_and_consumed_type(folder: Path, tmp_path: Path) -> None:
    """Check that every Trigger names a known function, and an emitted event type that this function consumes."""
    assert trigger_checks.find_problems(load_rendered(folder, tmp_path), CONSUMED_TYPES, EMITTED_TYPES) == []


@pytest.mark.parametrize("folder", [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS)], ids=str)
def test_triggers_deliver_exactly_consumed_event_types(folder: Path, tmp_path: Path) -> None:
    """Check that Triggers deliver to each function exactly the event types that it consumes."""
    parsed_triggers = manifests.parse_triggers(load_rendered(folder, tmp_path), "http://functions")
    certificate_consumers = (
        {"renew-certificates": CONSUMED_TYPES["renew-certificates"]} if folder.name in CERTIFICATES_OVERLAYS else {}
    )
    consumes = (
        DEFAULT_CONSUMED_TYPES
        | certificate_consumers
        | {name: CONSUMED_TYPES[name] for name in list_optional_steps(folder.name)}
    )
    known_types = {*EMITTED_TYPES, *(kind for kinds in trigger_checks.EMITTED_BY_SOURCES.values() for kind in kinds)}
    delivered = {
        (trigger.subscriber_url.rpartition("/")[2], kind)
        for trigger in parsed_triggers.values()
        for kind in trigger_checks.match_types(trigger.attributes, known_types)
    }

    assert delivered == {(name, kind) for name, types in consumes.items() for kind in types or known_types}


def test_subscriptions_match_triggers(tmp_path: Path) -> None:
    """Check that `SUBSCRIPTIONS`, from which missing attempts in a journal are derived, matches the Triggers.

    `record`, which consumes everything, is excluded. The optional functions' Triggers for ticks, tainted nodes and
    updated NodeMaintenances are also excluded, because such events occur in installs without these functions.
    """
    optional_components = ("mutex", "virtualization", "cpu-labels", "node-conditions", "notifications")
    component_documents = manifests.read_documents(
        [MANIFESTS / "components" / component / "eventing.yaml" for component in optional_components]
    )
    parsed_triggers = manifests.parse_triggers(
        [*load_rendered(MANIFESTS / "base", tmp_path), *component_documents], "http://functions"
    ).values()
    filters = {
        (trigger.subscriber_url.rpartition("/")[2], frozenset(trigger.attributes.items()))
        for trigger in parsed_triggers
    }
    tick_functions = ("resync-runs", "migrate", "protect", "label-cpu", "publish-conditions", "notify-owners")
    tick_subscriptions = {(name, frozenset({("type", events.TICK)})) for name in tick_functions}
    tainted = {
        (name, frozenset({("type", events.NODE_TAINTED)})) for name in ("migrate", "protect", "publish-conditions")
    }
    maintenance_updated = frozenset({("type", events.RESOURCE_UPDATED), ("kind", "NodeMaintenance")})
    excluded = {
        ("record", frozenset()),
        *((name, maintenance_updated) for name in ("publish-conditions", "notify-owners")),
        *tick_subscriptions,
        *tainted,
    }

    assert {(name, frozenset(attributes.items())) for name, attributes in SUBSCRIPTIONS} == filters - excluded
    assert excluded < filters


@pytest.mark.parametrize("name", OVERLAYS)
def test_local_delivery_reads_same_triggers_from_every_overlay(name: str, tmp_path: Path) -> None:
    """Check that the local delivery reads the same Triggers from every overlay, whichever Services it has."""
    triggers_by_directory = [
        {
            name: (trigger.attributes, trigger.subscriber_url, trigger.policy)
            for name, trigger in manifests.parse_triggers(documents, "http://functions").items()
        }
        for documents in (
            load_rendered(MANIFESTS / "base", tmp_path),
            load_rendered(MANIFESTS / "overlays" / name, tmp_path),
        )
    ]
    added_triggers = triggers_by_directory[1].keys() - triggers_by_directory[0].keys()

    assert {
        key: value for key, value in triggers_by_directory[1].items() if key not in added_triggers
    } == triggers_by_directory[0]
    certificate_triggers = {key for key in added_triggers if key.startswith("renew-certificates-on-")}
    assert bool(certificate_triggers) == (name in CERTIFICATES_OVERLAYS)
    assert {
        triggers_by_directory[1][key][1].rpartition("/")[2] for key in added_triggers - certificate_triggers
    } == list_optional_steps(name)
