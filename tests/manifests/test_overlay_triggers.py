"""Tests that the Triggers of each overlay deliver to all functions the events that they consume."""

from __future__ import annotations

from pathlib import Path

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
FOLDERS = (MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS))
"""The base and all overlays."""


def load_rendered(directory: Path, output_dir: Path) -> list[manifests.Document]:
    """Render a directory with kustomize, and load the result like the local delivery."""
    file = output_dir / f"{directory.name}.yaml"
    file.write_text(render_yaml(directory))
    return manifests.read_documents([file])


def test_emitted_event_types_equal_described_event_types() -> None:
    """X-4: the emitted event types are exactly those that have a description."""
    assert set(events.TYPE_DESCRIPTIONS) == EMITTED_TYPES


def test_every_trigger_matches_an_emitted_and_consumed_type(tmp_path: Path) -> None:
    """Check that every Trigger names a known function, and an emitted event type that this function consumes."""
    problems = {
        folder.name: trigger_checks.find_problems(load_rendered(folder, tmp_path), CONSUMED_TYPES, EMITTED_TYPES)
        for folder in FOLDERS
    }

    assert OVERLAYS
    assert {name: found for name, found in problems.items() if found} == {}


def list_consumed_types(name: str, known_types: set[str]) -> set[tuple[str, str]]:
    """Return each function in the overlay with each event type that it consumes."""
    certificate_consumers = (
        {"renew-certificates": CONSUMED_TYPES["renew-certificates"]} if name in CERTIFICATES_OVERLAYS else {}
    )
    consumes = (
        DEFAULT_CONSUMED_TYPES
        | certificate_consumers
        | {step: CONSUMED_TYPES[step] for step in list_optional_steps(name)}
    )
    return {(step, kind) for step, types in consumes.items() for kind in types or known_types}


def test_triggers_deliver_exactly_consumed_event_types(tmp_path: Path) -> None:
    """Check that Triggers deliver to each function exactly the event types that it consumes."""
    known_types = {*EMITTED_TYPES, *(kind for kinds in trigger_checks.EMITTED_BY_SOURCES.values() for kind in kinds)}
    delivered = {
        folder.name: {
            (trigger.subscriber_url.rpartition("/")[2], kind)
            for trigger in manifests.parse_triggers(load_rendered(folder, tmp_path), "http://functions").values()
            for kind in trigger_checks.match_types(trigger.attributes, known_types)
        }
        for folder in FOLDERS
    }
    differences = {name: found ^ list_consumed_types(name, known_types) for name, found in delivered.items()}

    assert OVERLAYS
    assert {name: pairs for name, pairs in differences.items() if pairs} == {}


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

    subscriptions = {(name, frozenset(attributes.items())) for name, attributes in SUBSCRIPTIONS}
    assert subscriptions == filters - excluded, "add a new pair to SUBSCRIPTIONS or, in an optional step, to `excluded`"
    assert excluded < filters


def list_differences_from_base(name: str, output_dir: Path) -> set[str]:
    """Return the base's Triggers that the overlay changes, and the functions with unexpected or missing Triggers."""
    base, overlay = (
        {
            key: (trigger.attributes, trigger.subscriber_url, trigger.policy)
            for key, trigger in manifests.parse_triggers(documents, "http://functions").items()
        }
        for documents in (
            load_rendered(MANIFESTS / "base", output_dir),
            load_rendered(MANIFESTS / "overlays" / name, output_dir),
        )
    )
    added_triggers = overlay.keys() - base.keys()
    certificate_triggers = {key for key in added_triggers if key.startswith("renew-certificates-on-")}
    added_steps = {overlay[key][1].rpartition("/")[2] for key in added_triggers - certificate_triggers}
    has_wrong_certificates = bool(certificate_triggers) != (name in CERTIFICATES_OVERLAYS)
    return {
        *(key for key in base if overlay.get(key) != base[key]),
        *(["renew-certificates"] if has_wrong_certificates else []),
        *(added_steps ^ list_optional_steps(name)),
    }


def test_local_delivery_reads_same_triggers_from_every_overlay(tmp_path: Path) -> None:
    """Check that the local delivery reads the same Triggers from every overlay, whichever Services it has."""
    differences = {name: list_differences_from_base(name, tmp_path) for name in OVERLAYS}

    assert differences
    assert {name: found for name, found in differences.items() if found} == {}
