"""Disruption budgets that protect the virt-launcher pod of a VMI with `LiveMigrate` until it has migrated (DRN-9).

They are created by us or by KubeVirt. Either kind has annotations that state what the pod waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.budgets import CREATED_BY, WAITS, Budget, budgets_in
from kube.paths import Object, segment
from kube.virtualization.evacuation import LONGEST_MESSAGE, Wait
from kube.virtualization.vmis import API_VERSION, INSTANCE, Item
from kube.text_limits import shortened

LABEL = "nodemaintenance.dev/launcher"
"""Label of our budgets: the uid of the VMI."""
Kept = tuple[str, str]
"""Key of a budget: namespace and uid of the VMI that it protects."""
MORE_THAN_EVER = 100
"""Value of `minAvailable` that exceeds any number of virt-launcher pods of one VMI.

During a migration, a VMI has two virt-launcher pods, and one more for each migration that was deleted while it ran.
"""


def budget_of(vmi: Item, wait: Wait | None) -> Object:
    """Build the VMI's budget; the VMI owns the budget, so both are deleted together."""
    metadata = vmi["metadata"]
    uid = metadata["uid"]
    owner = {"apiVersion": API_VERSION, "kind": INSTANCE, "name": metadata["name"], "uid": uid}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name_of(uid),
            "namespace": metadata["namespace"],
            "labels": {LABEL: uid},
            "ownerReferences": [owner],
            "annotations": said(wait),
        },
        "spec": spec_of(vmi),
    }


def name_of(uid: str) -> str:
    """Return the name of the budget for the VMI with this uid."""
    return f"launcher-{uid}"


def spec_of(vmi: Item) -> Object:
    """Return the spec of a VMI's budget."""
    return {"minAvailable": MORE_THAN_EVER, "selector": {"matchLabels": {CREATED_BY: vmi["metadata"]["uid"]}}}


def said(wait: Wait | None) -> dict[str, str]:
    """Return the annotations that state what the pod waits for; their values are "" if it waits for nothing."""
    told = wait._asdict() if wait else dict.fromkeys(Wait._fields, "")
    return {f"{WAITS}{name}": shortened(value, LONGEST_MESSAGE) for name, value in told.items()}


def spec_patch(budget: Budget, vmi: Item) -> list[Object]:
    """Build the JSON patch that restores the spec of our budget, [] if the spec is correct."""
    wanted = spec_of(vmi)
    is_so = all(budget["spec"].get(name) == wanted.get(name) for name in ("minAvailable", "maxUnavailable", "selector"))
    return [] if is_so else [{"op": "replace", "path": "/spec", "value": wanted}]


def words_patch(budget: Budget, wait: Wait | None) -> Object:
    """Build the merge patch that makes the budget's annotations state `wait`, {} if they already do."""
    wanted, told = said(wait), budget["metadata"].get("annotations") or {}
    changed = {name: value for name, value in wanted.items() if told.get(name, "") != value}
    return {"metadata": {"annotations": changed}} if changed else {}


def told_of(budget: Budget) -> str:
    """Return the node where the pod waits according to the budget's annotations, "" for none."""
    return str((budget["metadata"].get("annotations") or {}).get(f"{WAITS}node") or "")


def is_ours(budget: Budget) -> bool:
    """Return whether we created the budget; the label alone does not prove it, since any client may set it."""
    uid = str((budget["metadata"].get("labels") or {}).get(LABEL) or "")
    return bool(uid) and budget["metadata"]["name"] == name_of(uid)


def ours(budgets: Iterable[Budget]) -> dict[Kept, Budget]:
    """Return the budgets that we created, by key."""
    return {
        (budget["metadata"]["namespace"], budget["metadata"]["labels"][LABEL]): budget
        for budget in budgets
        if is_ours(budget)
    }


def kept(vmi: Item) -> Kept:
    """Return the key of the VMI's budget."""
    return vmi["metadata"]["namespace"], vmi["metadata"]["uid"]


def of_kubevirt(budgets: Iterable[Budget]) -> dict[Kept, Budget]:
    """Return the budgets that KubeVirt created for virt-launcher pods, by key."""
    return {
        (budget["metadata"]["namespace"], owner["uid"]): budget
        for budget in budgets
        for owner in budget["metadata"].get("ownerReferences") or []
        if owner["kind"] == INSTANCE and not is_ours(budget)
    }


def path_of(budget: Budget) -> str:
    """Return the API path of a budget."""
    metadata = budget["metadata"]
    return f"{budgets_in(metadata['namespace'])}/{segment(metadata['name'])}"
