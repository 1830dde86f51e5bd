"""PodDisruptionBudgets (PDBs) that keep the virt-launcher pod of a `LiveMigrate` VMI until it has migrated (DRN-9).

This project or KubeVirt creates the PDBs. In both cases, annotations explain what the pod waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.budgets import CREATED_BY_LABEL, WAIT_ANNOTATION_PREFIX, Budget, build_namespace_budgets_path
from kube.paths import Object, encode_path_segment
from kube.text_limits import truncate
from kube.virtualization.evacuation import MAX_MESSAGE_CHARACTERS, Wait
from kube.virtualization.vmis import API_VERSION, VMI_KIND, Resource

VMI_UID_LABEL = "nodemaintenance.dev/launcher"
"""Label on this project's PodDisruptionBudgets; its value is the uid of the VMI."""
VmiUidKey = tuple[str, str]
"""Key of a virt-launcher pod's PodDisruptionBudget: the namespace and the uid of the VMI."""
UNREACHABLE_MIN_AVAILABLE = 100
"""Value of `minAvailable` that exceeds the number of virt-launcher pods of any VMI.

A VMI has two virt-launcher pods during a migration, and one more for each migration that was deleted while running.
"""


def build_budget(vmi: Resource, wait: Wait | None) -> Object:
    """Build the VMI's PodDisruptionBudget, which the VMI owns, so that both are deleted together."""
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
    """Return the name of the PodDisruptionBudget for the VMI with this uid."""
    return f"launcher-{uid}"


def build_spec(vmi: Resource) -> Object:
    """Build the spec of a VMI's PodDisruptionBudget."""
    return {
        "minAvailable": UNREACHABLE_MIN_AVAILABLE,
        "selector": {"matchLabels": {CREATED_BY_LABEL: vmi["metadata"]["uid"]}},
    }


def build_wait_annotations(wait: Wait | None) -> dict[str, str]:
    """Build the annotations that explain what the pod waits for; their values are "" if `wait` is None."""
    fields = wait._asdict() if wait else dict.fromkeys(Wait._fields, "")
    return {
        f"{WAIT_ANNOTATION_PREFIX}{name}": truncate(value, MAX_MESSAGE_CHARACTERS) for name, value in fields.items()
    }


def build_spec_patch(budget: Budget, vmi: Resource) -> list[Object]:
    """Build the JSON patch that restores the spec of a PDB that this project created; [] if the spec is correct."""
    desired = build_spec(vmi)
    is_unchanged = all(
        budget["spec"].get(name) == desired.get(name) for name in ("minAvailable", "maxUnavailable", "selector")
    )
    return [] if is_unchanged else [{"op": "replace", "path": "/spec", "value": desired}]


def build_annotations_patch(budget: Budget, wait: Wait | None) -> Object:
    """Build the merge patch that updates the PDB's wait annotations to `wait`; {} if they are up to date."""
    desired, annotations = build_wait_annotations(wait), budget["metadata"].get("annotations") or {}
    changed = {name: value for name, value in desired.items() if annotations.get(name, "") != value}
    return {"metadata": {"annotations": changed}} if changed else {}


def get_annotated_node(budget: Budget) -> str:
    """Return the node where the virt-launcher pod waits according to the PDB's annotations, "" if there is none."""
    return str((budget["metadata"].get("annotations") or {}).get(f"{WAIT_ANNOTATION_PREFIX}node") or "")


def is_own_budget(budget: Budget) -> bool:
    """Return whether this project created the PDB; its name must match, because any client may set the label."""
    uid = str((budget["metadata"].get("labels") or {}).get(VMI_UID_LABEL) or "")
    return bool(uid) and budget["metadata"]["name"] == build_budget_name(uid)


def index_own_budgets(budgets: Iterable[Budget]) -> dict[VmiUidKey, Budget]:
    """Return the PodDisruptionBudgets that this project created, by namespace and VMI uid."""
    return {
        (budget["metadata"]["namespace"], budget["metadata"]["labels"][VMI_UID_LABEL]): budget
        for budget in budgets
        if is_own_budget(budget)
    }


def get_vmi_uid_key(vmi: Resource) -> VmiUidKey:
    """Return the VMI's namespace and uid, the key of its PodDisruptionBudget."""
    return vmi["metadata"]["namespace"], vmi["metadata"]["uid"]


def index_kubevirt_budgets(budgets: Iterable[Budget]) -> dict[VmiUidKey, Budget]:
    """Return the PodDisruptionBudgets that KubeVirt created for virt-launcher pods, by namespace and VMI uid."""
    return {
        (budget["metadata"]["namespace"], owner["uid"]): budget
        for budget in budgets
        for owner in budget["metadata"].get("ownerReferences") or []
        if owner["kind"] == VMI_KIND and not is_own_budget(budget)
    }


def build_budget_path(budget: Budget) -> str:
    """Return the API path of the PodDisruptionBudget."""
    metadata = budget["metadata"]
    return f"{build_namespace_budgets_path(metadata['namespace'])}/{encode_path_segment(metadata['name'])}"
