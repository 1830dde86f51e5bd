"""Tests for the component `deleting`: the permission to delete pods, for `spec.drain.disableEviction`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS, Manifest, filter_by_kind, render, render_overlay
from tests.proofs import proves


def render_added_objects(directory: Path, overlay_name: str) -> list[Manifest]:
    """Return the objects that the component `deleting` adds to an overlay."""
    manifests_path = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    kustomization = {
        "resources": [f"{manifests_path}/overlays/{overlay_name}"],
        "components": [f"{manifests_path}/components/deleting"],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    overlay_objects = render_overlay(overlay_name)
    return [manifest for manifest in render(directory) if manifest not in overlay_objects]


@proves("DRN-1a")
@pytest.mark.parametrize(
    ("overlay_name", "account"), [("plain", "evict"), ("knative", "evict"), ("compact", "functions")]
)
def test_evict_function_may_delete_pods_only_with_component_deleting(
    tmp_path: Path, overlay_name: str, account: str
) -> None:
    """DRN-1a: the component lets `evict` delete pods; without it, no ServiceAccount may delete pods."""
    role, binding = render_added_objects(tmp_path, overlay_name)

    accounts = {
        account["metadata"]["name"] for account in filter_by_kind(render_overlay(overlay_name), "ServiceAccount")
    }
    rules = [
        rule for role in filter_by_kind(render_overlay(overlay_name), "ClusterRole", "Role") for rule in role["rules"]
    ]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert account in accounts & {subject["name"] for subject in binding["subjects"]}
    assert not [rule for rule in rules if "pods" in rule["resources"] and "delete" in rule["verbs"]]
