"""The component `deleting`: the right to delete pods, which only `spec.drain.disableEviction` needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS, Manifest, filter_by_kind, render, render_overlay
from tests.proofs import proves


def render_added_objects(directory: Path, overlay_name: str) -> list[Manifest]:
    """Return the objects that the component adds to an overlay."""
    manifests_path = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    file = {
        "resources": [f"{manifests_path}/overlays/{overlay_name}"],
        "components": [f"{manifests_path}/components/deleting"],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(file))
    before = render_overlay(overlay_name)
    return [item for item in render(directory) if item not in before]


@proves("DRN-1a")
@pytest.mark.parametrize(("base", "account"), [("plain", "evict"), ("knative", "evict"), ("compact", "functions")])
def test_only_the_component_grants_pod_deletion_to_evict(tmp_path: Path, base: str, account: str) -> None:
    """DRN-1a: the component grants `evict` the deletion of pods; without it no account may delete pods."""
    role, binding = render_added_objects(tmp_path, base)

    accounts = {item["metadata"]["name"] for item in filter_by_kind(render_overlay(base), "ServiceAccount")}
    rules = [rule for item in filter_by_kind(render_overlay(base), "ClusterRole", "Role") for rule in item["rules"]]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert account in accounts & {subject["name"] for subject in binding["subjects"]}
    assert not [rule for rule in rules if "pods" in rule["resources"] and "delete" in rule["verbs"]]
