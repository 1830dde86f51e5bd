"""Options of the commands: parameter types, shared options, and kubectl's syntax for boolean flags (switches).

As in kubectl, a switch is written as `--force`, `--force=true` or `--force=false`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from console.operations.descriptions import parse_time_or_age
from console.terminal.output_templates import JSONPATH, TemplateError, check_template, is_template
from eventing.endpoints import is_url
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import DEFAULT_NAMESPACE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
UNIT_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION_PART_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")
"""Matches a surrogate, to which Python decodes a command-line byte that is not valid UTF-8."""
NODE_PREFIX_PATTERN = re.compile(r"^(?:nodes?|no)/")
CONTROL_PATTERN = re.compile(r"[\x00-\x1f\x7f]")
MAX_LIMIT = 2**63 - 1
DRY_RUN_VALUES = {"server": True, "client": True, "none": False}
"""Map from kubectl's values of `--dry-run` to whether they request a dry run; `client` is treated like `server`."""
SWITCH_VALUES = frozenset((*click.types.BoolParamType.bool_states, *DRY_RUN_VALUES)) - {""}
"""Lower-case values that switches accept."""
GROUPS_BY_NAME = {"medik8s": MEDIK8S, "kubevirt": KUBEVIRT}
AFTER_SWITCH_KEY = "console.arguments_after_switches"
"""Key in click's context for a map from each argument that directly follows a switch to that switch."""
JSONPATH_FILE = "jsonpath-file="
TEMPLATE_HELP = "Also jsonpath=TEMPLATE, jsonpath-file=FILE or custom-columns=HEADING:PATH,... as in kubectl."
Completer = Callable[[click.Context, click.Parameter, str], list[str]]
"""Function that returns the completion candidates for an option or argument."""


class Duration(click.ParamType[float]):
    """Parameter type for a duration in kubectl's notation, such as `90s`, `5m` or `1h30m`; `0` means no limit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds, or fail with a usage error."""
        if isinstance(value, float):
            return value
        parts = DURATION_PART_PATTERN.findall(str(value))
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not a duration such as 90s, 5m or 1h30m", param, ctx)
        return sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)


class TimeOrAge(click.ParamType[datetime]):
    """Parameter type for a time: an age such as `10m`, `2h` or `1d`, or an ISO 8601 time (by default, local time)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the timezone-aware time, or fail with a usage error."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_time_or_age(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Utf8Text(click.ParamType[str]):
    """Parameter type for text in valid UTF-8, as the API server requires."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged, or fail with a usage error if it is not UTF-8."""
        if SURROGATE_PATTERN.search(str(value)):
            self.fail("the value is not valid UTF-8", param, ctx)
        return str(value)


class NonEmptyText(Utf8Text):
    """Parameter type for an object's name, or for another value that selects objects; the default "" means none.

    An empty value on the command line is an error, because it probably comes from an unset shell variable and must not
    select all objects.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged, or fail with a usage error if it is empty or not UTF-8."""
        if not str(value).strip():
            name = param.name if param else None
            if not (ctx and name and ctx.get_parameter_source(name) is ParameterSource.DEFAULT):
                self.fail("the value is empty: check whether a shell variable is unset", param, ctx)
        return super().convert(value, param, ctx)


class NodeName(NonEmptyText):
    """Parameter type for a node's name, which may have the prefix `node/`, as in kubectl's output."""

    name = "node"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name without the prefix, or fail with a usage error if it is empty or not UTF-8."""
        return super().convert(NODE_PREFIX_PATTERN.sub("", str(value)), param, ctx)


class Seconds(click.ParamType[int]):
    """Parameter type for a whole number of seconds, at least `minimum`.

    `minimum_meaning` describes the minimum's special meaning in the error message.
    """

    name = "seconds"

    def __init__(self, minimum: int, minimum_meaning: str) -> None:
        self._minimum, self._minimum_meaning = minimum, minimum_meaning

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of seconds, or fail with a usage error that describes the valid values."""
        try:
            number = int(value)
        except ValueError:
            number = self._minimum - 1
        if number < self._minimum:
            valid = f"write a number such as 30, or {self._minimum} for {self._minimum_meaning}"
            self.fail(f"{value!r} is not a valid number of seconds: {valid}", param, ctx)
        return number


class AccountName(NonEmptyText):
    """Parameter type for the name of a user or group, which is sent in an HTTP header."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged, or fail with a usage error if it is empty, not UTF-8 or has control characters."""
        if CONTROL_PATTERN.search(str(value)):
            self.fail("the name of a user or group must not contain control characters", param, ctx)
        return super().convert(value, param, ctx)


class OutputFormat(click.Choice[str]):
    """Parameter type for `--output`: one of the given formats, or a template that selects fields, as in kubectl.

    The value `jsonpath-file=FILE` is converted to `jsonpath=` with the template in the file.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format, or fail with a usage error that quotes the invalid part of a template."""
        text = str(value)
        if text.startswith(JSONPATH_FILE):
            text = f"{JSONPATH}{self._read_file(text.removeprefix(JSONPATH_FILE), param, ctx)}"
        if not is_template(text):
            return super().convert(value, param, ctx)
        try:
            check_template(text)
        except TemplateError as error:
            self.fail(str(error), param, ctx)
        return text

    def _read_file(self, path: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.fail(f"cannot read the template {path!r}: {reason}", param, ctx)


class Limit(click.ParamType[int]):
    """Parameter type for a maximum number of results, 0 for all; at most the largest integer of the databases."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the limit, or fail with a usage error if it is not a number or too large."""
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MAX_LIMIT:
            self.fail(f"{value!r} is not a number from 1 to {MAX_LIMIT}, or 0 for all", param, ctx)
        return number


class Url(click.ParamType[str]):
    """Parameter type for a URL; "" means none."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL unchanged, or fail with a usage error if it is invalid."""
        if value and not is_url(value):
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:8080", param, ctx)
        return str(value)


class ClusterAccess(NamedTuple):
    """The kubeconfig, its context, and the user and groups to impersonate; None or empty values mean the default."""

    kubeconfig: str | None
    context: str | None
    as_user: str
    as_groups: tuple[str, ...]


def combine_options(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Build a single decorator that adds these options to a command, in this order."""

    def add_options(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


def text_option(
    *names: str, help: str, metavar: str | None = None, completer: Completer | None = None
) -> Callable[[Decorated], Decorated]:
    """Build a decorator that adds an option for a name or another `NonEmptyText`; the default "" means none."""
    return click.option(*names, type=NonEmptyText(), default="", metavar=metavar, help=help, shell_complete=completer)


def _store_in_context(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value in click's context for `get_cluster_access`; the option may precede or follow the command."""
    if value:
        ctx.meta[f"console.{param.name}"] = value


def _cluster_option(*names: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(*names, expose_value=False, callback=_store_in_context, **attributes)


cluster_options = combine_options(
    _cluster_option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False),
        help="Path to the kubeconfig file.  [default: $KUBECONFIG, then ~/.kube/config]",
    ),
    _cluster_option("--context", type=NonEmptyText(), help="The kubeconfig context to use."),
    _cluster_option("--as", "as_user", type=AccountName(), metavar="USER", help="User to impersonate."),
    _cluster_option(
        "--as-group",
        type=AccountName(),
        multiple=True,
        metavar="GROUP",
        help="Group to impersonate, with --as; repeatable.",
    ),
)
"""Decorator that adds the options which `get_cluster_access` reads; they may precede or follow the command name."""


def get_cluster_access() -> ClusterAccess:
    """Return the cluster access options from the command line. Raises `UsageError` for `--as-group` without `--as`."""
    meta = click.get_current_context().meta
    user, groups = meta.get("console.as_user", ""), meta.get("console.as_group", ())
    if groups and not user:
        raise click.UsageError("--as-group requires a user: name one with --as")
    return ClusterAccess(meta.get("console.kubeconfig"), meta.get("console.context"), user, groups)


namespace_option = click.option(
    "-n",
    "--namespace",
    type=NonEmptyText(),
    default=DEFAULT_NAMESPACE,
    show_default=True,
    help="The namespace that the functions run in.",
)
group_option = click.option(
    "--group",
    type=click.Choice(list(GROUPS_BY_NAME)),
    default="medik8s",
    callback=lambda _context, _option, value: GROUPS_BY_NAME[value],
    show_default=True,
    help="API group of the NodeMaintenance.",
)
functions_option = click.option(
    "--functions",
    "functions_url",
    type=Url(),
    default="",
    envvar="FUNCTIONS",
    help="Base URL of the functions; each function's path is its name.  "
    "[default: $FUNCTIONS, then the subscriber addresses in the Triggers]",
)
broker_option = click.option(
    "--broker",
    type=Url(),
    default="",
    envvar="BROKER",
    help="URL to send the functions' responses to.  [default: $BROKER, then the address of the Broker]",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format: table, or json for one JSON object.",
)
object_output_option = click.option(
    "-o",
    "--output",
    type=OutputFormat(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Output format: table, wide for more columns, json or yaml for one object, "
    'or for a list in "items" if the command selects several nodes; name for the names of the objects. '
    f"{TEMPLATE_HELP}",
)
"""The option `--output` of the commands for nodes."""
template_output_option = click.option(
    "-o",
    "--output",
    type=OutputFormat(["table", "json"]),
    default="table",
    show_default=True,
    help=f"Output format: table, or json for one JSON object. {TEMPLATE_HELP}",
)
"""The option `--output` of a command that prints one object; a template may select the object's fields."""
watch_option = click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Watch for changes until Ctrl-C; a pipe receives a line with the time for each change. "
    "With -o json, print one object per line.",
)


def timeout_option(default: str, condition: str) -> Callable[[Decorated], Decorated]:
    """Build a decorator that adds `--timeout`; `condition` completes the help text "Maximum time to wait until"."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        help=f"Maximum time to wait until {condition}, such as 90s or 5m; 0 means no limit.",
    )


def check_timeout(*, wait: bool, remedy: str) -> None:
    """Raise `UsageError` with `remedy` if `--timeout` is set on the command line and the command does not wait."""
    if is_set_on_command_line("timeout") and not wait:
        raise click.UsageError(f"--timeout has no effect, because the command would not wait: {remedy}")


def is_set_on_command_line(param_name: str) -> bool:
    """Return whether the parameter is set on the command line, not by an environment variable or a default."""
    return click.get_current_context().get_parameter_source(param_name) is ParameterSource.COMMANDLINE


def pick_fields(dataclass_type: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those option values that are fields of the dataclass, as keyword arguments for its constructor."""
    return {field.name: values[field.name] for field in fields(dataclass_type) if field.name in values}


class _SwitchType(click.types.BoolParamType):
    """Click's boolean parameter type, except that an empty value is an error.

    An empty value probably comes from an unset shell variable, which must not mean false. `extra_values` maps further
    accepted values to booleans.
    """

    def __init__(self, extra_values: Mapping[str, bool]) -> None:
        self._extra_values = extra_values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the boolean, or fail with a usage error that lists the valid values."""
        valid_values = format_alternatives([*self._extra_values, "true", "false"])
        if value == "":
            self.fail(f"the value after = is empty: write {valid_values}", param, ctx)
        is_on = self._extra_values[value] if value in self._extra_values else self.str_to_bool(value)
        if is_on is None:
            self.fail(f"{value!r} is not a valid value: write {valid_values}", param, ctx)
        return is_on


class _DryRunType(_SwitchType):
    """Parameter type of `--dry-run`, which also accepts kubectl's values."""

    def __init__(self) -> None:
        super().__init__(DRY_RUN_VALUES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether to make a dry run; for the value `client`, print a note that `server` is used instead."""
        if value == "client" and not (ctx and ctx.resilient_parsing):
            note = (
                "Note: --dry-run=client has the same effect as --dry-run=server: the API server validates the request"
            )
            click.echo(f"{note} and stores nothing.", err=True)
        return super().convert(value, param, ctx)


def format_alternatives(values: Sequence[str]) -> str:
    """Join two or more values as in `a, b or c`."""
    return f"{', '.join(values[:-1])} or {values[-1]}"


def switch_option(*names: str, help: str, default: bool | None = False) -> Callable[[Decorated], Decorated]:
    """Build a boolean flag option, off by default, for a `KubectlFlagsCommand`."""
    return click.option(*names, type=_SwitchType({}), default=default, metavar="[=true|false]", help=help)


def dry_run_option(help: str) -> Callable[[Decorated], Decorated]:
    """Build the option `--dry-run` with kubectl's values, for a `KubectlFlagsCommand`."""
    return click.option("--dry-run", type=_DryRunType(), default=False, metavar="[=server|none]", help=help)


class KubectlFlagsCommand(click.Command):
    """Click command with kubectl's syntax for boolean flags: `--force` or `--force=VALUE` (DRN-1, DRN-3).

    The next argument is never taken as the value of such a flag.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add `=true` to each switch without a value, so that click does not take the next argument as its value."""
        switches = {name for option in self.params if isinstance(option.type, _SwitchType) for name in option.opts}
        after_switches = {value: arg for arg, value in pairwise(args) if arg in switches and not value.startswith("-")}
        extra_args = super().parse_args(ctx, [f"{arg}=true" if arg in switches else arg for arg in args])
        ctx.meta[AFTER_SWITCH_KEY] = after_switches
        if not ctx.resilient_parsing and len(ctx.params.get("nodes") or ()) > 1:
            for value, switch in after_switches.items():
                if value.lower() in SWITCH_VALUES:
                    ctx.fail(f"the value of {switch} must follow an equals sign: write {switch}={value}")
        return extra_args
