"""The budget that keeps the launcher pod of a VMI with `LiveMigrate` until it has migrated (DRN-9). Pure.

Ours, or KubeVirt's: either says in annotations what the pod waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from kube.budgets import CREATED_BY, WAITS, Budget, budgets_in
from kube.paths import Object, segment
from kube.virtualization.evacuation import LONGEST_MESSAGE, Wait
from kube.virtualization.machines import API_VERSION, INSTANCE, Item
from kube.words import shortened

LABEL = "nodemaintenance.dev/launcher"
"""On our budgets: the uid of the VMI."""
Kept = tuple[str, str]
"""What a budget keeps: namespace and uid of a VMI."""
MORE_THAN_EVER = 100
"""While it migrates a VMI has two launcher pods, and one more of each migration that was deleted amid its work: so many
as to let one go it never has."""


def budget_of(vmi: Item, wait: Wait | None) -> Object:
    """Its budget; it goes when the VMI goes, since that owns it."""
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
    """Name of the budget of the VMI with this uid."""
    return f"launcher-{uid}"


def spec_of(vmi: Item) -> Object:
    """What the budget of a VMI asks for."""
    return {"minAvailable": MORE_THAN_EVER, "selector": {"matchLabels": {CREATED_BY: vmi["metadata"]["uid"]}}}


def said(wait: Wait | None) -> dict[str, str]:
    """The annotations by which a drain knows what the pod waits for; "" for nothing but the budget."""
    told = wait._asdict() if wait else dict.fromkeys(Wait._fields, "")
    return {f"{WAITS}{name}": shortened(value, LONGEST_MESSAGE) for name, value in told.items()}


def spec_patch(budget: Budget, vmi: Item) -> list[Object]:
    """JSON patch that gives one of our budgets its spec again; [] when it keeps what it is to keep."""
    wanted = spec_of(vmi)
    is_so = all(budget["spec"].get(name) == wanted.get(name) for name in ("minAvailable", "maxUnavailable", "selector"))
    return [] if is_so else [{"op": "replace", "path": "/spec", "value": wanted}]


def words_patch(budget: Budget, wait: Wait | None) -> Object:
    """Merge patch that makes the budget say this; {} when it does."""
    wanted, told = said(wait), budget["metadata"].get("annotations") or {}
    changed = {name: value for name, value in wanted.items() if told.get(name, "") != value}
    return {"metadata": {"annotations": changed}} if changed else {}


def told_of(budget: Budget) -> str:
    """The node of which it says that its pod waits there, "" for none."""
    return str((budget["metadata"].get("annotations") or {}).get(f"{WAITS}node") or "")


def is_ours(budget: Budget) -> bool:
    """Whether we have made it: a label alone says nothing, since anybody may set one."""
    uid = str((budget["metadata"].get("labels") or {}).get(LABEL) or "")
    return bool(uid) and budget["metadata"]["name"] == name_of(uid)


def ours(budgets: Iterable[Budget]) -> dict[Kept, Budget]:
    """Those that we have made, by what they keep."""
    return {
        (budget["metadata"]["namespace"], budget["metadata"]["labels"][LABEL]): budget
        for budget in budgets
        if is_ours(budget)
    }


def kept(vmi: Item) -> Kept:
    """What keeps it is known by."""
    return vmi["metadata"]["namespace"], vmi["metadata"]["uid"]


def of_kubevirt(budgets: Iterable[Budget]) -> dict[Kept, Budget]:
    """Those that KubeVirt has made for launcher pods, by what they keep."""
    return {
        (budget["metadata"]["namespace"], owner["uid"]): budget
        for budget in budgets
        for owner in budget["metadata"].get("ownerReferences") or []
        if owner["kind"] == INSTANCE and not is_ours(budget)
    }


def path_of(budget: Budget) -> str:
    """Path of a budget."""
    metadata = budget["metadata"]
    return f"{budgets_in(metadata['namespace'])}/{segment(metadata['name'])}"
