"""What a person should know before a node is drained, and what is no reason to refuse it. Pure.

It is found in the node's own pods and their budgets. What needs every pod of the cluster, such as whether there is
room elsewhere, is not for the door.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from kube.budgets import Blocked, Budget, allows_none, budget_key, never_admits, plan
from kube.maintenance.drain_flags import going, options_of, sorted_for
from kube.maintenance.objects import Maintenance
from kube.pods import Pod, controller, is_terminating, key, tolerates_everything, uid
from kube.words import counted

NAMED = 3
"""Pods that a warning names: the API server cuts what is longer than 256 characters once there is much of it."""


def warnings(maintenance: Maintenance, pods: Iterable[Pod], budgets: Iterable[Budget], now: datetime) -> list[str]:
    """What is lost, and what will hold the drain up, with what helps; none of pods that stay, or are on their way."""
    options = options_of(maintenance)
    found = sorted_for(pods, options, now)
    leaving = [pod for pod in going(found, options) if not is_terminating(pod)]
    known = list(budgets)
    result = [
        *_about(_among(found.bare, leaving), "{} that no controller makes again will be gone for good: {}"),
        *_about(_among(found.local, leaving), "emptyDir data of {} will be lost: {}"),
    ]
    planned = plan(leaving, known, options)
    result += _behind_budgets(planned.blocked, known, admitting=planned.queues.keys())
    returning = [pod for pod in leaving if controller(pod) and tolerates_everything(pod)]
    words = "{} may come back here after eviction, tolerating every taint; narrow the tolerations: {}"
    return [*result, *_about([key(pod) for pod in returning], words)]


def sole_control_plane(node: str) -> str:
    """There is no other node for the API server and etcd."""
    return (
        f"node {node} is the only control-plane node: while it is down there is no API server, "
        "and what runs elsewhere runs on unattended"
    )


def _behind_budgets(blocked: Iterable[Blocked], budgets: Iterable[Budget], *, admitting: Collection[str]) -> list[str]:
    """Of budgets that let no pod of the node go, those that ever will apart; and of pods under two of them."""
    by_key = {budget_key(budget): budget for budget in budgets}
    waiting: dict[str, list[str]] = defaultdict(list)
    between: list[str] = []
    for item in blocked:
        if item.reason == "MultipleBudgets":
            between.append(item.key)
        else:
            waiting[f"{item.pod['namespace']}/{item.budget}"].append(item.key)
    closed = {name: pods for name, pods in waiting.items() if name not in admitting}
    lines = [line for name, pods in sorted(closed.items()) for line in _about(pods, _words(by_key[name]))]
    words = "{} under two disruption budgets cannot be evicted, delete or narrow one of them: {}"
    return [*lines, *_about(between, words)]


def _words(budget: Budget) -> str:
    name, status = budget_key(budget), budget.get("status") or {}
    if never_admits(budget):
        remedy = "change it, no replica helps" if allows_none(budget) else "add replicas or change it"
        words = f"asks for all of its pods and never lets one go, {remedy}"
        return f"budget {name} {words}; it keeps {{}} here: {{}}"
    healthy, needed = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    words = f"needs {needed} healthy pods and has {healthy}, so it lets none go now"
    return f"budget {name} {words}; it keeps {{}} waiting: {{}}"


def _about(pods: Collection[str], words: str) -> Iterator[str]:
    """The line about these pods, none without any: how many, and the first of them by name."""
    if pods:
        names = sorted(pods)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield words.format(counted(len(names), "pod"), ", ".join(names[:NAMED]) + more)


def _among(pods: Iterable[Pod], leaving: Iterable[Pod]) -> list[str]:
    uids = {uid(pod) for pod in leaving}
    return [key(pod) for pod in pods if uid(pod) in uids]
