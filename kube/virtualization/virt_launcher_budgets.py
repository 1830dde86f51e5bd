"""Disruption budgets that protect the virt-launcher pod of a VMI with `LiveMigrate` until it has migrated (DRN-9).

This project or KubeVirt creates the budgets. In both cases, annotations state what the pod waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.budgets import CREATED_BY_LABEL, WAIT_ANNOTATION_PREFIX, Budget, build_budgets_path
from kube.paths import Object, encode_path_segment
from kube.text_limits import truncate
from kube.virtualization.evacuation import MAX_MESSAGE_CHARACTERS, Wait
from kube.virtualization.vmis import API_VERSION, VMI_KIND, Resource

VMI_UID_LABEL = "nodemaintenance.dev/launcher"
"""Label on our budgets, with the uid of the VMI."""
VmiUidKey = tuple[str, str]
"""Key of a budget: namespace and uid of the VMI that it protects."""
UNREACHABLE_MIN_AVAILABLE = 100
"""Value of `minAvailable` that exceeds any number of virt-launcher pods of one VMI.

During a migration, a VMI has two virt-launcher pods, and one more for each migration that was deleted while running.
"""


def build_budget(vmi: Resource, wait: Wait | None) -> Object:
    """Build the VMI's budget; the VMI owns the budget, so both are deleted together."""
    metadata = vmi["metadata"]
    uid = metadata["uid"]
    owner = {"apiVersion": API_VERSION, "kind": VMI_KIND, "name": metadata["name"], "uid": uid}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": build_budget_name(uid),
            "namespace": metadata["namespace"],
            "labels": {VMI_UID_LABEL: uid},
            "ownerReferences": [owner],
            "annotations": build_wait_annotations(wait),
        },
        "spec": build_spec(vmi),
    }


def build_budget_name(uid: str) -> str:
    """Return the name of the budget for the VMI with this uid."""
    return f"launcher-{uid}"


def build_spec(vmi: Resource) -> Object:
    """Return the spec of a VMI's budget."""
    return {
        "minAvailable": UNREACHABLE_MIN_AVAILABLE,
        "selector": {"matchLabels": {CREATED_BY_LABEL: vmi["metadata"]["uid"]}},
    }


def build_wait_annotations(wait: Wait | None) -> dict[str, str]:
    """Return the annotations that state what the pod waits for, with the value "" if `wait` is None."""
    fields = wait._asdict() if wait else dict.fromkeys(Wait._fields, "")
    return {
        f"{WAIT_ANNOTATION_PREFIX}{name}": truncate(value, MAX_MESSAGE_CHARACTERS) for name, value in fields.items()
    }


def build_spec_patch(budget: Budget, vmi: Resource) -> list[Object]:
    """Build the JSON patch that restores the spec of our budget, [] if the spec is correct."""
    desired = build_spec(vmi)
    is_unchanged = all(
        budget["spec"].get(name) == desired.get(name) for name in ("minAvailable", "maxUnavailable", "selector")
    )
    return [] if is_unchanged else [{"op": "replace", "path": "/spec", "value": desired}]


def build_annotations_patch(budget: Budget, wait: Wait | None) -> Object:
    """Build the merge patch that updates the budget's annotations to `wait`, {} if they are up to date."""
    desired, annotations = build_wait_annotations(wait), budget["metadata"].get("annotations") or {}
    changed = {name: value for name, value in desired.items() if annotations.get(name, "") != value}
    return {"metadata": {"annotations": changed}} if changed else {}


def get_annotated_node(budget: Budget) -> str:
    """Return the node where the pod waits according to the budget's annotations, "" for none."""
    return str((budget["metadata"].get("annotations") or {}).get(f"{WAIT_ANNOTATION_PREFIX}node") or "")


def is_own_budget(budget: Budget) -> bool:
    """Return whether we created the budget; any client may set the label, so the name must also match."""
    uid = str((budget["metadata"].get("labels") or {}).get(VMI_UID_LABEL) or "")
    return bool(uid) and budget["metadata"]["name"] == build_budget_name(uid)


def index_own_budgets(budgets: Iterable[Budget]) -> dict[VmiUidKey, Budget]:
    """Return the budgets that we created, by namespace and VMI uid."""
    return {
        (budget["metadata"]["namespace"], budget["metadata"]["labels"][VMI_UID_LABEL]): budget
        for budget in budgets
        if is_own_budget(budget)
    }


def get_vmi_uid_key(vmi: Resource) -> VmiUidKey:
    """Return the VMI's namespace and uid, which are the key of its budget."""
    return vmi["metadata"]["namespace"], vmi["metadata"]["uid"]


def index_kubevirt_budgets(budgets: Iterable[Budget]) -> dict[VmiUidKey, Budget]:
    """Return the budgets that KubeVirt created for virt-launcher pods, by namespace and VMI uid."""
    return {
        (budget["metadata"]["namespace"], owner["uid"]): budget
        for budget in budgets
        for owner in budget["metadata"].get("ownerReferences") or []
        if owner["kind"] == VMI_KIND and not is_own_budget(budget)
    }


def build_budget_path(budget: Budget) -> str:
    """Return the API path of a budget."""
    metadata = budget["metadata"]
    return f"{build_budgets_path(metadata['namespace'])}/{encode_path_segment(metadata['name'])}"
