"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from console.terminal.param_types import AccountName, Duration, NonEmptyText, Url
from kube.paths import DEFAULT_NAMESPACE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
KUBECONFIG_KEY, CONTEXT_KEY = "console.kubeconfig", "console.context"
AS_USER_KEY, AS_GROUPS_KEY = "console.as", "console.as_groups"


def cluster_options(command: Decorated) -> Decorated:
    """Add the options that `get_cluster_access` reads. As in kubectl, they may precede or follow the command name."""
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=_build_store_callback(KUBECONFIG_KEY),
        help="Path to the kubeconfig file.  [default: $KUBECONFIG, then ~/.kube/config]",
    )
    context = click.option(
        "--context",
        type=NonEmptyText(),
        expose_value=False,
        callback=_build_store_callback(CONTEXT_KEY),
        help="The kubeconfig context to use.",
    )
    user = click.option(
        "--as",
        type=AccountName(),
        expose_value=False,
        callback=_build_store_callback(AS_USER_KEY),
        metavar="USER",
        help="User to impersonate.",
    )
    groups = click.option(
        "--as-group",
        type=AccountName(),
        multiple=True,
        expose_value=False,
        callback=_build_store_callback(AS_GROUPS_KEY),
        metavar="GROUP",
        help="Group to impersonate, with --as; repeatable.",
    )
    return kubeconfig(context(user(groups(command))))


class ClusterAccess(NamedTuple):
    """How to reach the cluster, and which user to impersonate; None and empty values mean the kubeconfig's defaults."""

    kubeconfig: str | None
    context: str | None
    as_user: str
    as_groups: tuple[str, ...]


def get_cluster_access() -> ClusterAccess:
    """Return the cluster access options from the command line. Raises `UsageError` for `--as-group` without `--as`."""
    meta = click.get_current_context().meta
    user, groups = meta.get(AS_USER_KEY, ""), meta.get(AS_GROUPS_KEY, ())
    if groups and not user:
        raise click.UsageError("--as-group requires a user: name one with --as")
    return ClusterAccess(meta.get(KUBECONFIG_KEY), meta.get(CONTEXT_KEY), user, groups)


def _build_store_callback(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store_value(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            ctx.meta[key] = value

    return store_value


def namespace_option(command: Decorated) -> Decorated:
    """Add `-n`, `--namespace` to a command."""
    return click.option(
        "-n",
        "--namespace",
        type=NonEmptyText(),
        default=DEFAULT_NAMESPACE,
        show_default=True,
        help="The namespace that the functions run in.",
    )(command)


def functions_option(param_name: str, default_text: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds `--functions`, passed as `param_name`; its help describes the default."""
    return click.option(
        "--functions",
        param_name,
        type=Url(),
        default="",
        envvar="FUNCTIONS",
        help="Base URL of the functions; each function's path is its name.  "
        f"[default: $FUNCTIONS, then {default_text}]",
    )


def broker_option(command: Decorated) -> Decorated:
    """Add `--broker` to a command."""
    return click.option(
        "--broker",
        type=Url(),
        default="",
        envvar="BROKER",
        help="URL to send the functions' responses to.  [default: $BROKER, then the address of the Broker]",
    )(command)


def output_option(command: Decorated) -> Decorated:
    """Add `-o table|json` to a command."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format: table, or json for one JSON object.",
    )(command)


def watch_option(command: Decorated) -> Decorated:
    """Add `--watch` to a command."""
    help_text = "Watch for changes until Ctrl-C; with -o json, print one object per line."
    return click.option("-w", "--watch", is_flag=True, help=help_text)(command)


def pick_fields(dataclass_type: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option values that are fields of the dataclass `dataclass_type`, as keyword arguments for it."""
    return {field.name: values[field.name] for field in fields(dataclass_type) if field.name in values}


def timeout_option(default: str, condition: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds `--timeout`; its help states the condition that the command waits for."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        help=f"Maximum time to wait until {condition}, such as 90s or 5m; 0 means no limit.",
    )


def is_set_on_command_line(param_name: str) -> bool:
    """Return whether the command line itself sets this parameter, rather than the environment or a default."""
    return click.get_current_context().get_parameter_source(param_name) is ParameterSource.COMMANDLINE


def check_timeout(*, wait: bool, remedy: str) -> None:
    """Raise `UsageError` if the user sets `--timeout` for a command that does not wait."""
    if is_set_on_command_line("timeout") and not wait:
        raise click.UsageError(f"--timeout has no effect, because the command would not wait: {remedy}")


def target_options(command: Decorated) -> Decorated:
    """Add the options of `console.operations.replay_runner.TargetOptions` to a command."""
    functions = click.option(
        "--function",
        "functions",
        multiple=True,
        help="Function to replay to; repeatable.  [default: all whose Trigger selects the event]",
    )
    url = click.option("--url", type=Url(), default="", help="Address of a single function to replay to.")
    functions_url = functions_option("functions_url", "the subscriber addresses in the Triggers")
    manifests = click.option(
        "--manifests",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        envvar="TRIGGERS",
        help="File or directory with Triggers; repeatable.  "
        "[env: TRIGGERS; default: the cluster's Triggers, then the shipped Triggers]",
    )
    in_process = click.option(
        "--in-process", is_flag=True, help="Run the function in this process, with your own rights."
    )
    return functions(url(functions_url(manifests(namespace_option(in_process(command))))))
