"""Options that commands share: which cluster, where the functions are, which form of output, how long to wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click

from eventing.urls import Url
from kube.maintenance.leases import NAMESPACE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
KUBECONFIG = "console.kubeconfig"
CONTEXT = "console.context"
SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


class Duration(click.ParamType[float]):
    """A length of time as kubectl writes it: `90s`, `5m`, `1h30m`; `0` is without limit. In seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Give the seconds; a usage error when it is no duration."""
        if isinstance(value, float):
            return value
        parts = PART.findall(str(value))
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration such as 90s, 5m or 1h30m", param, ctx)
        return sum(float(number) * SECONDS[unit] for number, unit in parts)


def cluster_options(command: Decorated) -> Decorated:
    """Add `--kubeconfig` and `--context`, which may stand before or after the command's name, as with kubectl."""
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=_remember(KUBECONFIG),
        help="File that says how to reach the cluster.  [default: $KUBECONFIG, then ~/.kube/config]",
    )
    context = click.option(
        "--context", expose_value=False, callback=_remember(CONTEXT), help="Which of the kubeconfig's contexts to use."
    )
    return kubeconfig(context(command))


def _remember(key: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value:
            ctx.meta[key] = value

    return remember


def namespace_option(command: Decorated) -> Decorated:
    """Add `-n`, `--namespace`."""
    return click.option(
        "-n", "--namespace", default=NAMESPACE, show_default=True, help="The namespace that the functions run in."
    )(command)


def functions_option(name: str, otherwise: str) -> Callable[[Decorated], Decorated]:
    """Add `--functions`, given to the command as `name`; `otherwise` says where functions are when nobody says it."""
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


def picked(kind: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that are fields of the dataclass `kind`: options that go together go as one."""
    return {field.name: said[field.name] for field in fields(kind) if field.name in said}


def timeout_option(default: str, what: str) -> Callable[[Decorated], Decorated]:
    """Add `--timeout`."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        help=f"How long to wait until {what}, such as 90s or 5m; 0 is without limit.",
    )
