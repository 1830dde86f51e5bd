"""Options for the fields of `spec.drain`: the flags of `kubectl drain` (DRN-1a).

Each option's Python parameter has the name of the field.
"""

from __future__ import annotations

import click

from console.terminal.options import NonEmptyText, Seconds, combine_options, switch_option
from kube.selectors import parse_selector


def check_selector(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the label selector unchanged. Raises `BadParameter` if the selector cannot be parsed."""
    try:
        parse_selector(value or "")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


drain_flag_options = combine_options(
    switch_option(
        "--force", default=None, help="Also evict pods without a controller; nothing recreates them.  [default: true]"
    ),
    switch_option(
        "--delete-emptydir-data",
        "--delete-local-data",
        "deleteEmptyDirData",
        default=None,
        help="Also evict pods with emptyDir volumes; their data is lost.  [default: true]",
    ),
    switch_option(
        "--ignore-daemonsets", "ignoreDaemonSets", default=None, help="Ignore pods of DaemonSets.  [default: true]"
    ),
    click.option(
        "--pod-selector",
        "podSelector",
        type=NonEmptyText(),
        callback=check_selector,
        help="Evict only pods that match this label selector, such as app=web.",
    ),
    click.option(
        "--grace-period",
        "gracePeriodSeconds",
        type=Seconds(-1, "each pod's terminationGracePeriodSeconds"),
        help="Seconds that pods have to terminate.  [default: each pod's terminationGracePeriodSeconds]",
    ),
    switch_option(
        "--disable-eviction",
        "disableEviction",
        default=None,
        help="Delete pods, regardless of their budgets.  [default: false]",
    ),
    click.option(
        "--skip-wait-for-delete-timeout",
        "skipWaitForDeleteTimeoutSeconds",
        type=Seconds(0, "no limit"),
        help="Do not wait for pods whose deletion is overdue by more than this number of seconds.  [default: wait]",
    ),
)
"""Decorator that adds the drain flags to a `KubectlFlagsCommand`; the parameter of a flag that is not set is None."""
