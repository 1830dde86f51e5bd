"""Tests for the EventPolicies, which list the clients that may post to the Broker if Knative authenticates them."""

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
"""Map from optional component to the name of one of its event sources."""


def get_identity(manifest: Manifest) -> tuple[str, ...]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


@pytest.mark.parametrize("name", ["knative", "compact", "plain", "kafka", "func", "hyperconverged"])
def test_event_policies_list_exactly_actual_senders(tmp_path: Path, name: str) -> None:
    """X-2: the policies list each event source, and each Trigger whose function replies, without patterns.

    All listed senders exist in the overlay. Otherwise, Knative would report the policy as not ready.
    """
    objects = render(_write_overlay_with_senders(tmp_path, name))
    policies = filter_by_kind(objects, "EventPolicy")
    replying_triggers = [
        trigger
        for trigger in filter_by_kind(objects, "Trigger")
        if FUNCTIONS[trigger["metadata"]["labels"][FUNCTION_LABEL]].emits
    ]
    (broker,) = filter_by_kind(objects, "Broker")
    namespace = broker["metadata"]["namespace"]

    senders = [sender for policy in policies for sender in policy["spec"]["from"]]
    refs = [sender["ref"] for sender in senders if "ref" in sender]
    identities = [tuple(ref[key] for key in ("apiVersion", "kind", "namespace", "name")) for ref in refs]
    sources = [
        source for source in filter_by_kind(objects, *SOURCE_KINDS) if source["metadata"]["name"] != OPTIONAL_SOURCE
    ]
    assert set(identities) == {get_identity(manifest) for manifest in [*sources, *replying_triggers]}
    assert len(identities) == len(set(identities))
    accounts = [sender["sub"] for sender in senders if "ref" not in sender]
    assert accounts == [f"system:serviceaccount:{namespace}:{OPTIONAL_SOURCE}-oidc-sources.knative.dev-apiserversource"]
    broker_reference = {"apiVersion": broker["apiVersion"], "kind": "Broker", "name": broker["metadata"]["name"]}
    for policy in policies:
        assert policy["metadata"]["namespace"] == namespace
        assert [sender["ref"] for sender in policy["spec"]["to"]] == [broker_reference]


def test_policy_lists_only_v1alpha1_source_by_service_account() -> None:
    """Check that the policy lists a source by its ServiceAccount only if the source is in manifests/v1alpha1."""
    assert [source["metadata"]["name"] for source in filter_by_kind(render(MANIFESTS / "v1alpha1"), *SOURCE_KINDS)] == [
        OPTIONAL_SOURCE
    ]


def test_knative_crd_accepts_event_policy(knative_cluster: LocalCluster) -> None:
    """X-2: Knative's schema accepts each field of the EventPolicy; it would silently drop unknown fields."""
    policy = (MANIFESTS / "components" / "senders" / "policy.yaml").read_text()
    policy_in_default = policy.replace(
        "namespace: node-maintenance", "namespace: default"
    )  # Another test applies the unchanged policy.

    result = knative_cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=policy_in_default
    )

    assert result.stdout == "eventpolicy.eventing.knative.dev/senders created (server dry run)\n"


@pytest.mark.parametrize("component", OPTIONAL_COMPONENTS)
def test_component_policy_lists_all_senders_of_component(component: str) -> None:
    """Check that a component's EventPolicy lists its event sources, and the Triggers of functions that reply.

    The Broker silently rejects events from other senders.
    """
    folder = MANIFESTS / "components" / component
    objects = list(yaml.safe_load_all((folder / "eventing.yaml").read_text()))
    policy = yaml.safe_load((folder / "senders" / "policy.yaml").read_text())

    senders = [(sender["ref"]["kind"], sender["ref"]["name"]) for sender in policy["spec"]["from"]]
    sending_objects = [
        manifest
        for manifest in objects
        if manifest["kind"] != "Trigger" or FUNCTIONS[manifest["metadata"]["labels"][FUNCTION_LABEL]].emits
    ]
    assert senders == [(manifest["kind"], manifest["metadata"]["name"]) for manifest in sending_objects]


def _write_overlay_with_senders(directory: Path, name: str) -> Path:
    """Write an overlay with the EventPolicies of all its event sources; return the overlay's directory."""
    sources = filter_by_kind(render(MANIFESTS / "overlays" / name), "ApiServerSource")
    source_names = {source["metadata"]["name"] for source in sources}
    components = [
        "senders",
        *(
            f"{component_name}/senders"
            for component_name, source in SOURCE_BY_COMPONENT.items()
            if source in source_names
        ),
    ]
    manifests_path = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    kustomization = {
        "resources": [f"{manifests_path}/overlays/{name}"],
        "components": [f"{manifests_path}/components/{component}" for component in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return directory
