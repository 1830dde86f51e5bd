"""The component `deleting`: the right to delete pods, which only `spec.drain.disableEviction` needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.manifests.rendering import MANIFESTS, Manifest, of_kind, overlay, rendered
from tests.proofs import proves


def added(folder: Path, base: str) -> list[Manifest]:
    """Return the objects that the component adds to an overlay."""
    there = f"{'../' * len(folder.parts[1:])}{MANIFESTS.relative_to('/')}"
    file = {"resources": [f"{there}/overlays/{base}"], "components": [f"{there}/components/deleting"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(file))
    before = overlay(base)
    return [item for item in rendered(folder) if item not in before]


@proves("DRN-1a")
@pytest.mark.parametrize(("base", "account"), [("plain", "evict"), ("knative", "evict"), ("compact", "functions")])
def test_the_account_of_evict_may_delete_pods_with_it_alone(tmp_path: Path, base: str, account: str) -> None:
    """DRN-1a: the component grants `evict` the deletion of pods; without it no account may delete pods."""
    role, binding = added(tmp_path, base)

    accounts = {item["metadata"]["name"] for item in of_kind(overlay(base), "ServiceAccount")}
    rules = [rule for item in of_kind(overlay(base), "ClusterRole", "Role") for rule in item["rules"]]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert account in accounts & {subject["name"] for subject in binding["subjects"]}
    assert not [rule for rule in rules if "pods" in rule["resources"] and "delete" in rule["verbs"]]
