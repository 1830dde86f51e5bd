"""Groups blocked pods by their cause, and suggests remedies. Pure functions.

The CLI, the web pages, the metrics and the Kubernetes Events all use these groups and remedies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, NamedTuple

from kube.budgets import LOOSER_BUDGET_PATTERN
from kube.paths import Object
from kube.text_limits import format_count, format_first_names
from kube.times import parse_time, parse_time_or_none

BlockedPodEntry = Mapping[str, Any]
"""An entry of `status.blockedPods`."""
OPTION_CHANGES: Mapping[str, tuple[str, bool | None]] = {
    "Force": ("force", True),
    "DeleteEmptyDirData": ("deleteEmptyDirData", True),
    "IgnoreDaemonSets": ("ignoreDaemonSets", True),
    "PodSelector": ("podSelector", None),
    "DisableEviction": ("disableEviction", None),
}
"""Field and value of `spec.drain` that unblock pods with a given reason; with the value None, the field is removed."""


class Remedy(NamedTuple):
    """A change that would unblock a pod, and the command that makes the change, "" if there is none."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        """Return the text and the command on one line, as shown to the administrator."""
        return f"{self.text}: {self.command}" if self.command else self.text


@dataclass(frozen=True)
class BlockedGroup:
    """Pods that are blocked by the same cause.

    Attributes:
        namespace: The namespace of the first pod, and of the PodDisruptionBudget (PDB) if there is one.
        pods: The pods as `namespace/name`.
        message: The first pod's message.
        budget: The name of the PDB, several names for `MultipleBudgets`, "" if no PDB is the cause.
        counts: The PDB's numbers of healthy and required pods, such as `2/2`; "" if unknown.
        since: Time since which the first blocked pod of the group is blocked, "" if unknown.
        retry_after: UTC time of the next eviction attempt, such as `12:01:05`; "" if an event triggers it.
        remedies: Alternative remedies; empty if only the message states what unblocks the pods.
    """

    namespace: str
    pods: tuple[str, ...]
    reason: str
    message: str
    budget: str
    counts: str
    since: str
    retry_after: str
    remedies: tuple[Remedy, ...]

    @property
    def budget_key(self) -> str:
        """Return `namespace/name` of the PodDisruptionBudget, "" if no PDB is the cause."""
        return f"{self.namespace}/{self.budget}" if self.budget else ""

    @property
    def advice(self) -> tuple[Remedy, ...]:
        """Return the remedies, preceded by the message unless the PDB's counts already state its content."""
        has_counts = self.reason == "DisruptionBudget" and self.remedies
        return self.remedies if has_counts else (Remedy(self.message), *self.remedies)

    def add_scale_command(self, command: str) -> BlockedGroup:
        """Return the group with the command for the remedy that asks for more ready pods, "" if it is unknown."""
        if not command or self.reason != "DisruptionBudget" or self.remedies[0].command:
            return self
        first, *others = self.remedies
        return replace(self, remedies=(first._replace(command=command), *others))

    def format_pods(self, max_count: int = 1) -> str:
        """Return the names of the first pods, and the number of the other pods."""
        return format_first_names(self.pods, max_count)


def group_blocked_pods(blocked_pods: Iterable[BlockedPodEntry], maintenance_name: str = "") -> list[BlockedGroup]:
    """Return one group per cause, the groups with the most pods first.

    A cause is a PodDisruptionBudget, or else a reason with its message, which may block pods in several namespaces.
    With `maintenance_name`, such as `nodemaintenance.nodemaintenance.medik8s.io/node-1`, the remedies also contain the
    commands that change `spec.drain`.
    """
    by_cause: dict[tuple[str, ...], list[BlockedPodEntry]] = {}
    for pod in blocked_pods:
        budget, message = str(pod.get("budget") or ""), str(pod.get("message") or "")
        cause = (pod["namespace"] if budget else "", pod["reason"], budget, "" if budget else message)
        by_cause.setdefault(cause, []).append(pod)
    return [_build_blocked_group(pods, maintenance_name) for pods in sorted(by_cause.values(), key=len, reverse=True)]


def _build_blocked_group(pods: Sequence[BlockedPodEntry], maintenance_name: str) -> BlockedGroup:
    first = pods[0]
    retry_times = [time for pod in pods if (time := parse_time_or_none(pod.get("retryAfter")))]
    return BlockedGroup(
        namespace=first["namespace"],
        pods=tuple(f"{pod['namespace']}/{pod['name']}" for pod in pods),
        reason=first["reason"],
        message=str(first.get("message") or "see the events of the pod"),
        budget=str(first.get("budget") or ""),
        counts=f"{first['healthy']}/{first['needed']}" if "healthy" in first and "needed" in first else "",
        since=min((pod["since"] for pod in pods if parse_time_or_none(pod.get("since"))), key=parse_time, default=""),
        retry_after=f"{min(retry_times):%H:%M:%S}" if retry_times else "",
        remedies=suggest_remedies(pods, maintenance_name),
    )


def suggest_remedies(pods: Sequence[BlockedPodEntry], maintenance_name: str = "") -> tuple[Remedy, ...]:
    """Return alternative remedies for pods with the same cause; empty if only their message states the remedy.

    A command for a single pod names the first pod.
    """
    reason = pods[0]["reason"]
    if reason in OPTION_CHANGES:
        return _suggest_drain_option(*OPTION_CHANGES[reason], maintenance_name)
    suggest = REMEDIES_BY_REASON.get(reason)
    return suggest(pods) if suggest else ()


def _suggest_drain_option(field: str, value: bool | None, maintenance_name: str) -> tuple[Remedy, ...]:
    """Return the change of `spec.drain` that unblocks the pods; empty if `maintenance_name` is ""."""
    text = f"{'omit' if value is None else 'set'} spec.drain.{field}"
    patch = _format_patch({"spec": {"drain": {field: value}}})
    return (Remedy(text, f"kubectl patch {maintenance_name} --type merge -p {patch}"),) if maintenance_name else ()


def _suggest_for_single_budget(pods: Sequence[BlockedPodEntry]) -> tuple[Remedy, ...]:
    """Suggest more ready pods, unless the PodDisruptionBudget never allows an eviction, and a looser PDB."""
    first = pods[0]
    if not first.get("budget"):
        return ()
    commands = _build_budget_commands(pods)
    if first.get("allowsNone"):
        text = "a looser budget (this one allows no eviction, however many pods are ready)"
        return tuple(Remedy(text, command) for command in commands)
    lacking = max(1, _get_count(first, "needed") + 1 - _get_count(first, "healthy"))
    more_pods = f"{format_count(lacking, 'more ready pod')} under this budget"
    return (
        Remedy(f"{more_pods} (repair unready pods, or scale up the workload)"),
        *(Remedy("or a looser budget", command) for command in commands),
    )


def _get_count(pod: BlockedPodEntry, field: str) -> int:
    """Return the number of pods in this field, 0 if unknown; another client may have written the status."""
    count = pod.get(field)
    return count if isinstance(count, int) else 0


def _build_budget_commands(pods: Sequence[BlockedPodEntry]) -> list[str]:
    """Return commands that make the PodDisruptionBudget (PDB) allow one eviction at a time.

    The commands are alternatives, because an unready pod needs a different change of the PDB than a ready pod. If no
    such change is known, the only command opens the PDB in an editor.
    """
    first = pods[0]
    target = f"kubectl -n {quote(first['namespace'])}", f"pdb {quote(str(first['budget']))}"
    changes = [str(pod.get("looserBudget")) for pod in pods]
    values = dict(change.split("=") for change in changes if LOOSER_BUDGET_PATTERN.fullmatch(change))
    specs = [{name: int(value) if value.isdecimal() else value} for name, value in sorted(values.items())]
    patches = [f"{target[0]} patch {target[1]} -p {_format_patch({'spec': spec})}" for spec in specs]
    return patches or [f"{target[0]} edit {target[1]}"]


def _suggest_for_several_budgets(pods: Sequence[BlockedPodEntry]) -> tuple[Remedy, ...]:
    first = pods[0]
    *_, last_name = str(first.get("budget") or "").split(", ")
    is_complete = bool(last_name) and " " not in last_name
    command = f"kubectl -n {quote(first['namespace'])} delete pdb {quote(last_name)}"
    return (Remedy("delete one of them", command),) if is_complete else ()


def _suggest_for_finalizers(pods: Sequence[BlockedPodEntry]) -> tuple[Remedy, ...]:
    patch = _format_patch({"metadata": {"finalizers": None}})
    command = f"kubectl -n {quote(pods[0]['namespace'])} patch pod {quote(pods[0]['name'])} --type merge -p {patch}"
    return (Remedy("if these controllers no longer exist, remove the finalizers", command),)


def _suggest_forced_deletion(pods: Sequence[BlockedPodEntry]) -> tuple[Remedy, ...]:
    namespace, name = quote(pods[0]["namespace"]), quote(pods[0]["name"])
    command = f"kubectl -n {namespace} delete pod {name} --grace-period=0 --force"
    return (Remedy("once the machine is switched off, remove the pod", command),)


def _format_patch(patch: Object) -> str:
    """Format the patch as a quoted shell argument; it must contain only field names, numbers and constants."""
    return f"'{json.dumps(patch, separators=(',', ':'))}'"


REMEDIES_BY_REASON: dict[str, Callable[[Sequence[BlockedPodEntry]], tuple[Remedy, ...]]] = {
    "DisruptionBudget": _suggest_for_single_budget,
    "MultipleBudgets": _suggest_for_several_budgets,
    "Finalizers": _suggest_for_finalizers,
    "NodeUnreachable": _suggest_forced_deletion,
    "VolumesMounted": _suggest_forced_deletion,
    "Terminating": _suggest_forced_deletion,
}
"""Functions that suggest a command for a given reason; for other reasons, the message states the remedy."""
