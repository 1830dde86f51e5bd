"""The EventPolicies: which senders may post to the Broker if Knative authenticates them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from functions.app import FUNCTIONS
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import MANIFESTS, Manifest, filter_by_kind, render

SOURCE_KINDS = ("ApiServerSource", "PingSource", "ContainerSource", "SinkBinding")
FUNCTION_LABEL = "nodemaintenance.dev/function"
OPTIONAL_SOURCE = "maintenances-v1alpha1"
OPTIONAL_COMPONENTS = ("mutex", "virtualization", "cpu-labels")
SOURCE_BY_COMPONENT = {
    "certificates": "certificates",
    "virtualization": "virtual-machines",
    "cpu-labels": "cpu-capabilities",
}
"""Component → one source that it contains."""


def get_identity(item: Manifest) -> tuple[str, ...]:
    return item["apiVersion"], item["kind"], item["metadata"]["namespace"], item["metadata"]["name"]


@pytest.mark.parametrize("name", ["knative", "compact", "plain", "kafka", "func", "hyperconverged"])
def test_policy_lists_exactly_the_event_senders(tmp_path: Path, name: str) -> None:
    """X-2: the policy lists each source, each publisher and each Trigger whose function replies, without patterns.

    Each of them exists in the overlay. Otherwise Knative would report the policy as not ready.
    """
    objects = render(_write_overlay_with_senders(tmp_path, name))
    policies = filter_by_kind(objects, "EventPolicy")
    responding = [
        item
        for item in filter_by_kind(objects, "Trigger")
        if FUNCTIONS[item["metadata"]["labels"][FUNCTION_LABEL]].emits
    ]
    (broker,) = filter_by_kind(objects, "Broker")
    namespace = broker["metadata"]["namespace"]

    listed = [sender for policy in policies for sender in policy["spec"]["from"]]
    refs = [sender["ref"] for sender in listed if "ref" in sender]
    identities = [tuple(ref[key] for key in ("apiVersion", "kind", "namespace", "name")) for ref in refs]
    sources = [item for item in filter_by_kind(objects, *SOURCE_KINDS) if item["metadata"]["name"] != OPTIONAL_SOURCE]
    assert set(identities) == {get_identity(item) for item in [*sources, *responding]}
    assert len(identities) == len(set(identities))
    accounts = [sender["sub"] for sender in listed if "ref" not in sender]
    assert accounts == [f"system:serviceaccount:{namespace}:{OPTIONAL_SOURCE}-oidc-sources.knative.dev-apiserversource"]
    broker_reference = {"apiVersion": broker["apiVersion"], "kind": "Broker", "name": broker["metadata"]["name"]}
    for policy in policies:
        assert policy["metadata"]["namespace"] == namespace
        assert [sender["ref"] for sender in policy["spec"]["to"]] == [broker_reference]


def test_optional_source_is_in_v1alpha1() -> None:
    """Check that the only source that the policy names by its account is that of manifests/v1alpha1."""
    assert [item["metadata"]["name"] for item in filter_by_kind(render(MANIFESTS / "v1alpha1"), *SOURCE_KINDS)] == [
        OPTIONAL_SOURCE
    ]


def test_knative_accepts_the_event_policy(knative_cluster: LocalCluster) -> None:
    """X-2: Knative's schema accepts each field of the EventPolicy; it would silently drop an unknown one."""
    policy = (MANIFESTS / "components" / "senders" / "policy.yaml").read_text()
    policy_in_default = policy.replace(
        "namespace: node-maintenance", "namespace: default"
    )  # another test creates the original

    result = knative_cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=policy_in_default
    )

    assert result.stdout == "eventpolicy.eventing.knative.dev/senders created (server dry run)\n"


@pytest.mark.parametrize("component", OPTIONAL_COMPONENTS)
def test_component_policy_lists_its_senders(component: str) -> None:
    """Check that a component's policy lists its sources and the Triggers of its replying functions.

    The Broker silently rejects events from other senders.
    """
    folder = MANIFESTS / "components" / component
    objects = list(yaml.safe_load_all((folder / "eventing.yaml").read_text()))
    policy = yaml.safe_load((folder / "senders" / "policy.yaml").read_text())

    senders = [(sender["ref"]["kind"], sender["ref"]["name"]) for sender in policy["spec"]["from"]]
    posting_sources = [
        item
        for item in objects
        if item["kind"] != "Trigger" or FUNCTIONS[item["metadata"]["labels"][FUNCTION_LABEL]].emits
    ]
    assert senders == [(item["kind"], item["metadata"]["name"]) for item in posting_sources]


def _write_overlay_with_senders(directory: Path, name: str) -> Path:
    """Write an overlay with the EventPolicies of its sources, and return its directory."""
    sources = filter_by_kind(render(MANIFESTS / "overlays" / name), "ApiServerSource")
    source_names = {item["metadata"]["name"] for item in sources}
    components = [
        "senders",
        *(
            f"{component_name}/senders"
            for component_name, source in SOURCE_BY_COMPONENT.items()
            if source in source_names
        ),
    ]
    manifests_path = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    file = {
        "resources": [f"{manifests_path}/overlays/{name}"],
        "components": [f"{manifests_path}/components/{component}" for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(file))
    return directory
