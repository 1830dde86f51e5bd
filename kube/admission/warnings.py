"""Warnings about the consequences of a drain, none of which is a reason to deny it. Pure functions.

They are computed from the node's own pods and their budgets. The webhook makes no checks that need every pod of the
cluster, such as whether other nodes have enough capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from kube.budgets import Blocked, Budget, allows_none, budget_key, never_admits, plan
from kube.maintenance.drain_flags import going, options_of, sorted_for
from kube.maintenance.objects import Maintenance
from kube.pods import Pod, controller, is_terminating, key, tolerates_everything, uid
from kube.text_limits import counted

NAMED = 3
"""Maximum number of pods that one warning names.

The API server cuts warnings after 256 characters if their total is large.
"""


def warnings(maintenance: Maintenance, pods: Iterable[Pod], budgets: Iterable[Budget], now: datetime) -> list[str]:
    """Return what the drain would lose and what would block it, with remedies.

    Pods that stay on the node or are already terminating cause no warnings.
    """
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
    """Return the warning that no other node runs the API server and etcd."""
    return (
        f"node {node} is the only control-plane node: while it is down there is no API server, "
        "and what runs elsewhere runs on unattended"
    )


def _behind_budgets(blocked: Iterable[Blocked], budgets: Iterable[Budget], *, admitting: Collection[str]) -> list[str]:
    """Return a warning per budget that admits no pod of the node, and one for pods under two budgets.

    The text differs for budgets that never admit an eviction.
    """
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
    """Yield the warning about these pods, with their number and the first names; nothing without pods."""
    if pods:
        names = sorted(pods)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield words.format(counted(len(names), "pod"), ", ".join(names[:NAMED]) + more)


def _among(pods: Iterable[Pod], leaving: Iterable[Pod]) -> list[str]:
    uids = {uid(pod) for pod in leaving}
    return [key(pod) for pod in pods if uid(pod) in uids]
