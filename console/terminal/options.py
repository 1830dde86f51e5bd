"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from console.terminal.param_types import Account, Duration, Name, Url
from kube.paths import NAMESPACE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
KUBECONFIG, CONTEXT = "console.kubeconfig", "console.context"
AS_USER, AS_GROUPS = "console.as", "console.as_groups"


def cluster_options(command: Decorated) -> Decorated:
    """Add the options of `access`, which are valid before and after the command's name, as with kubectl."""
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=_remember(KUBECONFIG),
        help="File that says how to reach the cluster.  [default: $KUBECONFIG, then ~/.kube/config]",
    )
    context = click.option(
        "--context",
        type=Name(),
        expose_value=False,
        callback=_remember(CONTEXT),
        help="Which of the kubeconfig's contexts to use.",
    )
    user = click.option(
        "--as",
        type=Account(),
        expose_value=False,
        callback=_remember(AS_USER),
        metavar="USER",
        help="Act as this user.",
    )
    groups = click.option(
        "--as-group",
        type=Account(),
        multiple=True,
        expose_value=False,
        callback=_remember(AS_GROUPS),
        metavar="GROUP",
        help="Act as a member of this group, with --as; repeatable.",
    )
    return kubeconfig(context(user(groups(command))))


class Access(NamedTuple):
    """How to reach the cluster, and which user to impersonate; None and empty values mean the kubeconfig's defaults."""

    kubeconfig: str | None
    context: str | None
    as_user: str
    as_groups: tuple[str, ...]


def access() -> Access:
    """Return the access options of the command line. Raises `UsageError` for `--as-group` without `--as`."""
    meta = click.get_current_context().meta
    user, groups = meta.get(AS_USER, ""), meta.get(AS_GROUPS, ())
    if groups and not user:
        raise click.UsageError("--as-group is of a user: name one by --as")
    return Access(meta.get(KUBECONFIG), meta.get(CONTEXT), user, groups)


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            ctx.meta[key] = value

    return remember


def namespace_option(command: Decorated) -> Decorated:
    """Add `-n`, `--namespace`."""
    return click.option(
        "-n",
        "--namespace",
        type=Name(),
        default=NAMESPACE,
        show_default=True,
        help="The namespace that the functions run in.",
    )(command)


def functions_option(name: str, otherwise: str) -> Callable[[Decorated], Decorated]:
    """Add `--functions`, passed to the command as `name`; `otherwise` describes the default in the help."""
    return click.option(
        "--functions",
        name,
        type=Url(),
        default="",
        envvar="FUNCTIONS",
        help=f"URL under which functions are found by name.  [default: $FUNCTIONS, then {otherwise}]",
    )


def broker_option(command: Decorated) -> Decorated:
    """Add `--broker`."""
    return click.option(
        "--broker",
        type=Url(),
        default="",
        envvar="BROKER",
        help="Where answers go.  [default: $BROKER, then the Broker's]",
    )(command)


def output_option(command: Decorated) -> Decorated:
    """Add `-o table|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For eyes, or one JSON object for programs.",
    )(command)


def watch_option(command: Decorated) -> Decorated:
    """Add `--watch`."""
    text = "Keep showing it as it changes, until Ctrl-C; JSON is then one object per line."
    return click.option("-w", "--watch", is_flag=True, help=text)(command)


def picked(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of the dataclass `kind`, so that the command can construct one."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def timeout_option(default: str, what: str) -> Callable[[Decorated], Decorated]:
    """Add `--timeout`."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        help=f"How long to wait until {what}, such as 90s or 5m; 0 is without limit.",
    )


def is_given(name: str) -> bool:
    """Return whether the command line itself sets this parameter, rather than the environment or a default."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def check_timeout(*, wait: bool, remedy: str) -> None:
    """Raise `UsageError` if the user sets `--timeout` and the command does not wait, so that it has no effect."""
    if is_given("timeout") and not wait:
        raise click.UsageError(f"--timeout limits a wait, and this command would not wait: {remedy}")


def target_options(command: Decorated) -> Decorated:
    """Add the options of `console.operations.replay_runner.Wanted`."""
    functions = click.option(
        "--function",
        "functions",
        multiple=True,
        help="To this function; repeatable.  [default: all whose Trigger lets the event pass]",
    )
    url = click.option("--url", type=Url(), default="", help="To this address, of one function.")
    base = functions_option("base", "the Triggers' own addresses")
    manifests = click.option(
        "--manifests",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        envvar="TRIGGERS",
        help="File or folder with the Triggers; repeatable.  "
        "[env: TRIGGERS; default: the cluster's, then those shipped]",
    )
    here = click.option("--in-process", is_flag=True, help="Run the function in this process, with your own rights.")
    return functions(url(base(manifests(namespace_option(here(command))))))
