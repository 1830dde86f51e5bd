"""The EventPolicies: which senders may post to the Broker if Knative authenticates them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, Manifest, of_kind, rendered

SOURCES = ("ApiServerSource", "PingSource", "ContainerSource", "SinkBinding")
LABEL = "nodemaintenance.dev/function"
OPTIONAL = "maintenances-v1alpha1"
OPTED = ("mutex", "virtualization", "cpu-labels")
SOURCE_OF = {"certificates": "certificates", "virtualization": "virtual-machines", "cpu-labels": "cpu-capabilities"}
"""Component → one source that it contains."""


def reference(item: Manifest) -> tuple[str, ...]:
    return item["apiVersion"], item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]


@pytest.mark.parametrize("name", ["knative", "compact", "plain", "kafka", "func", "hyperconverged"])
def test_who_may_post_is_who_has_something_to_say(tmp_path: Path, name: str) -> None:
    """X-2: the policy lists each source, each publisher and each Trigger whose function replies, without patterns.

    Each of them exists in the overlay. Otherwise Knative would report the policy as not ready.
    """
    objects = rendered(_with_senders(tmp_path, name))
    policies = of_kind(objects, "EventPolicy")
    answering = [item for item in of_kind(objects, "Trigger") if FUNCTIONS[item["metadata"]["labels"][LABEL]].emits]
    (broker,) = of_kind(objects, "Broker")
    namespace = broker["metadata"]["namespace"]

    listed = [one for policy in policies for one in policy["spec"]["from"]]
    refs = [one["ref"] for one in listed if "ref" in one]
    named = [tuple(ref[key] for key in ("apiVersion", "kind", "namespace", "name")) for ref in refs]
    sources = [item for item in of_kind(objects, *SOURCES) if item["metadata"]["name"] != OPTIONAL]
    assert set(named) == {reference(item) for item in [*sources, *answering]}
    assert len(named) == len(set(named))
    accounts = [one["sub"] for one in listed if "ref" not in one]
    assert accounts == [f"system:serviceaccount:{namespace}:{OPTIONAL}-oidc-sources.knative.dev-apiserversource"]
    to = {"apiVersion": broker["apiVersion"], "kind": "Broker", "name": broker["metadata"]["name"]}
    for policy in policies:
        assert policy["metadata"]["namespace"] == namespace
        assert [one["ref"] for one in policy["spec"]["to"]] == [to]


def test_the_source_that_may_not_be_there_is_the_one_of_the_oldest_group() -> None:
    """Check that the only source that the policy names by its account is that of manifests/v1alpha1."""
    assert [item["metadata"]["name"] for item in of_kind(rendered(MANIFESTS / "v1alpha1"), *SOURCES)] == [OPTIONAL]


def test_knative_s_own_schema_takes_it(knative: LocalCluster) -> None:
    """X-2: Knative's schema accepts each field of the EventPolicy; it would silently drop an unknown one."""
    policy = (MANIFESTS / "components" / "senders" / "policy.yaml").read_text()
    elsewhere = policy.replace("namespace: node-maintenance", "namespace: default")  # another test creates the original

    done = knative.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=elsewhere)

    assert done.stdout == "eventpolicy.eventing.knative.dev/senders created (server dry run)\n"


@pytest.mark.parametrize("component", OPTED)
def test_a_component_names_its_sources_and_all_that_answer_for_it(component: str) -> None:
    """Check that a component's policy lists its sources and the Triggers of its replying functions.

    The Broker silently rejects events from other senders.
    """
    folder = MANIFESTS / "components" / component
    shipped = list(yaml.safe_load_all((folder / "eventing.yaml").read_text()))
    policy = yaml.safe_load((folder / "senders" / "policy.yaml").read_text())

    named = [(sender["ref"]["kind"], sender["ref"]["name"]) for sender in policy["spec"]["from"]]
    posting = [
        item for item in shipped if item["kind"] != "Trigger" or FUNCTIONS[item["metadata"]["labels"][LABEL]].emits
    ]
    assert named == [(item["kind"], item["metadata"]["name"]) for item in posting]


def _with_senders(folder: Path, name: str) -> Path:
    """Write an overlay with the EventPolicies of its sources, and return its directory."""
    found = of_kind(rendered(MANIFESTS / "overlays" / name), "ApiServerSource")
    there_are = {item["metadata"]["name"] for item in found}
    components = ["senders", *(f"{wing}/senders" for wing, source in SOURCE_OF.items() if source in there_are)]
    there = f"{'../' * len(folder.parts[1:])}{MANIFESTS.relative_to('/')}"
    file = {
        "resources": [f"{there}/overlays/{name}"],
        "components": [f"{there}/components/{component}" for component in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(file))
    return folder
