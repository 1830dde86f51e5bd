"""Each overlay's Triggers connect all functions with the events that they consume."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventing import events
from eventing.local import manifests, triggers
from eventing.podsource import watcher
from eventing.subscriptions import SUBSCRIPTIONS
from functions.app import FUNCTIONS
from tests.manifests import trigger_checks
from tests.manifests.rendering import MANIFESTS, OVERLAYS, WITH_CERTIFICATES, opted_steps, text
from tests.sources import OPT_IN

CONSUMES = {name: function.consumes for name, function in FUNCTIONS.items()}
ALWAYS = {name: kinds for name, kinds in CONSUMES.items() if name not in {"renew-certificates", *OPT_IN}}
SAID = {events.MAINTENANCE_FAILED, *watcher.EMITS}.union(*(function.emits for function in FUNCTIONS.values()))


def read(folder: Path, to: Path) -> list[manifests.Document]:
    """Render a directory with kustomize and load it as the local delivery loads manifests."""
    file = to / f"{folder.name}.yaml"
    file.write_text(text(folder))
    return manifests.read([file])


def test_what_is_emitted_is_the_vocabulary() -> None:
    """X-4: the emitted event types are exactly those of the vocabulary."""
    assert set(events.MEANINGS) == SAID


@pytest.mark.parametrize("folder", [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS)], ids=str)
def test_every_trigger_brings_a_function_what_something_emits(folder: Path, tmp_path: Path) -> None:
    """Check that no Trigger names an unknown function, an event without a sender, or an event the function ignores."""
    assert trigger_checks.problems(read(folder, tmp_path), CONSUMES, SAID) == []


@pytest.mark.parametrize("folder", [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in OVERLAYS)], ids=str)
def test_every_function_is_brought_every_type_it_takes(folder: Path, tmp_path: Path) -> None:
    """Check that some Trigger delivers each event type that a function consumes."""
    found = triggers.read(read(folder, tmp_path), "http://functions")
    certificates = {"renew-certificates": CONSUMES["renew-certificates"]} if folder.name in WITH_CERTIFICATES else {}
    consumes = ALWAYS | certificates | {name: CONSUMES[name] for name in opted_steps(folder.name)}
    known = {*SAID, *(kind for kinds in trigger_checks.EMITTED_BY_SOURCES.values() for kind in kinds)}
    brought = {
        (each.url.rpartition("/")[2], kind) for each in found.values() for kind in trigger_checks.brings(each.attributes, known)
    }

    assert brought == {(name, kind) for name, takes in consumes.items() for kind in takes or known}


def test_who_listens_is_known_without_manifests(tmp_path: Path) -> None:
    """Check that `SUBSCRIPTIONS`, which finds the missing attempts of a recording, agrees with the Triggers.

    `record` consumes everything. The optional functions' Triggers for ticks and tainted nodes are excluded, because
    installs without these functions have such events, too.
    """
    opted = ("mutex", "virtualization", "cpu-labels")
    wings = manifests.read([MANIFESTS / "components" / wing / "eventing.yaml" for wing in opted])
    found = triggers.read([*read(MANIFESTS / "base", tmp_path), *wings], "http://functions").values()
    told = {(each.url.rpartition("/")[2], frozenset(each.attributes.items())) for each in found}
    looking = ("resync-runs", "migrate", "protect", "label-cpu")
    ticking = {(name, frozenset({("type", events.TICK)})) for name in looking}
    tainted = {(name, frozenset({("type", events.NODE_TAINTED)})) for name in ("migrate", "protect")}
    elsewhere = {("record", frozenset()), *ticking, *tainted}

    assert {(name, frozenset(wanted.items())) for name, wanted in SUBSCRIPTIONS} == told - elsewhere
    assert elsewhere < told


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_local_delivery_reads_every_overlay_as_the_same_chain(name: str, tmp_path: Path) -> None:
    """Check that the local delivery reads the same chain from every overlay, whichever Service serves a function."""
    read_as = [
        {
            name: (each.attributes, each.url, each.policy)
            for name, each in triggers.read(found, "http://functions").items()
        }
        for found in (read(MANIFESTS / "base", tmp_path), read(MANIFESTS / "overlays" / name, tmp_path))
    ]
    more = read_as[1].keys() - read_as[0].keys()

    assert {key: value for key, value in read_as[1].items() if key not in more} == read_as[0]
    beside = {key for key in more if key.startswith("renew-certificates-on-")}
    assert bool(beside) == (name in WITH_CERTIFICATES)
    assert {read_as[1][key][1].rpartition("/")[2] for key in more - beside} == opted_steps(name)
