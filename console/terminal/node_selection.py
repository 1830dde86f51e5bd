"""Determines the nodes that a command line selects, runs the command for them, and reports one outcome per node.

As with kubectl, users name nodes (`node-1` or `node/node-1`), select them with `-l`, or select all with `--all`. If one
node is named, its object is not printed in a list, and an error ends the command with the error's own exit status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any, TypeVar

import click

from console.operations.errors import OperationError, Refusal
from console.operations.maintenance_actions import list_served_maintenances
from console.terminal.completion import complete_names_of_nodes_in_maintenance, complete_nodes
from console.terminal.connection import format_api_error, run_with_api
from console.terminal.options import AFTER_SWITCH_KEY, NodeName, NonEmptyText, combine_options
from console.terminal.output import confirm, escape, show_object
from kube.client.api import METADATA_ONLY, Api, get_or_none
from kube.client.api_errors import ApiError, Rejected
from kube.maintenance.objects import get_node_name, select_unreleased
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from kube.text_limits import format_count

T = TypeVar("T")
MAX_NAMES_IN_QUESTION = 5
SELECTOR_OPTION = click.option(
    "-l",
    "--selector",
    type=NonEmptyText(),
    default="",
    help="Select the nodes that match this label selector, such as pool=blue.",
)
ALL_OPTIONS = (
    click.option("--all", "selects_all", is_flag=True, help="Select all nodes, after a question."),
    click.option("-y", "--yes", "is_confirmed", is_flag=True, help="Skip the question."),
)


@dataclass(frozen=True)
class NodeSelection:
    """The nodes that the command line selects.

    Attributes:
        names: The named nodes, without repetitions.
        selector: A label selector, "" for none.
        selects_all: Whether `--all` is set.
        is_confirmed: Whether `--yes` is set, so that the command does not ask for confirmation.
    """

    names: tuple[str, ...] = ()
    selector: str = ""
    selects_all: bool = False
    is_confirmed: bool = False

    @property
    def is_one_node(self) -> bool:
        """Return whether the command line names exactly one node."""
        return len(self.names) == 1

    @property
    def is_empty(self) -> bool:
        """Return whether the command line selects no node."""
        return not (self.names or self.selector or self.selects_all)


def _build_selection(
    nodes: tuple[str, ...], selector: str, *, selects_all: bool, is_confirmed: bool, is_required: bool
) -> NodeSelection:
    """Build the selection.

    Raises `UsageError` if the command line combines names, `-l` and `--all`, or if it contains none of them although
    `is_required` is true.
    """
    if sum((bool(nodes), bool(selector), selects_all)) > 1:
        raise click.UsageError("nodes are selected by their names, with -l or with --all: use only one of these")
    selection = NodeSelection(tuple(dict.fromkeys(nodes)), selector, selects_all, is_confirmed)
    if is_required and selection.is_empty:
        raise click.UsageError("no nodes selected: name them, or select them with -l SELECTOR or --all")
    return selection


def node_selection_options(
    *, has_all_option: bool = True, offers_maintained_nodes: bool = False
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Build a decorator that adds the node options, and passes their values as the parameter `selection`.

    If `has_all_option` is false, a command line without nodes is valid and means all nodes. If
    `offers_maintained_nodes` is true, the shell completion offers only nodes in maintenance.
    """
    completer = complete_names_of_nodes_in_maintenance if offers_maintained_nodes else complete_nodes
    nodes_argument = click.argument("nodes", type=NodeName(), nargs=-1, metavar="[NODE]...", shell_complete=completer)

    def add_options(command: Callable[..., T]) -> Callable[..., T]:
        @wraps(command)
        def pass_selection(
            *,
            nodes: tuple[str, ...],
            selector: str,
            selects_all: bool = False,
            is_confirmed: bool = False,
            **values: Any,
        ) -> T:
            selection = _build_selection(
                nodes, selector, selects_all=selects_all, is_confirmed=is_confirmed, is_required=has_all_option
            )
            return command(selection=selection, **values)

        return combine_options(nodes_argument, SELECTOR_OPTION, *(ALL_OPTIONS if has_all_option else ()))(
            pass_selection
        )

    return add_options


def run_for_nodes(
    selection: NodeSelection,
    operation: Callable[[Api, list[str]], Awaitable[T]],
    question: str = "",
    *,
    only_in_maintenance: bool = False,
) -> T:
    """Run `operation` with an API client and the names of the selected nodes, and return its result.

    `question` is the verb of the confirmation prompt for `--all`; if it is "", the function does not ask. If
    `only_in_maintenance` is true, `-l` and `--all` select only nodes in maintenance. Raises `Refusal` if no node is
    selected, and `NoResult` if the user does not confirm.
    """
    nodes = select_nodes(selection, only_in_maintenance=only_in_maintenance)
    if question and selection.selects_all and not selection.is_confirmed:
        confirm_nodes(question, nodes)
    return run_with_api(lambda api: operation(api, nodes))


def select_nodes(selection: NodeSelection, *, only_in_maintenance: bool = False) -> list[str]:
    """Return the names of the selected nodes (see `resolve_nodes`); for a single named node, send no request."""
    if selection.is_one_node:
        return list(selection.names)
    return run_with_api(lambda api: resolve_nodes(api, selection, only_in_maintenance=only_in_maintenance))


def confirm_nodes(verb: str, nodes: Sequence[str], alternative: str = "use --yes, or name the nodes") -> None:
    """Ask for confirmation, such as `Drain 2 nodes (node-1, node-2)?`.

    Raises `NoResult` with the text `alternative` if the user does not confirm.
    """
    shown = ", ".join(nodes[:MAX_NAMES_IN_QUESTION]) + (", ..." if len(nodes) > MAX_NAMES_IN_QUESTION else "")
    confirm(escape(f"{verb} {format_count(len(nodes), 'node')} ({shown})?"), alternative)


async def resolve_nodes(api: Api, selection: NodeSelection, *, only_in_maintenance: bool = False) -> list[str]:
    """Return the names of the selected nodes. Raises `Refusal` if there are none.

    Named nodes are returned even if they do not exist, because the command reports an error for each of them. However,
    a node name directly after a boolean flag must exist, because otherwise it is probably meant as the flag's value, as
    in `--force maybe`.
    """
    if selection.names:
        await _check_arguments_after_switches(api, selection.names)
        return list(selection.names)
    needs_list = not (only_in_maintenance and selection.selects_all)
    nodes = await _list_node_names(api, selection.selector) if needs_list else []
    if only_in_maintenance:
        maintained = {get_node_name(item) for item in select_unreleased(await list_served_maintenances(api))}
        nodes = sorted(maintained if selection.selects_all else maintained.intersection(nodes))
    if not nodes:
        condition = f' that matches "{selection.selector}"' if selection.selector else ""
        state = " in maintenance" if only_in_maintenance else ""
        remedy = "see kubectl maintenance status" if only_in_maintenance else "see kubectl get nodes --show-labels"
        raise Refusal(HTTPStatus.NOT_FOUND, f"found no node{state}{condition}", remedy)
    return nodes


async def _list_node_names(api: Api, selector: str) -> list[str]:
    try:
        response = await api.list(NODES_PATH, label_selector=selector, accept=METADATA_ONLY)
    except Rejected as error:
        raise click.BadParameter(error.message, param_hint="--selector") from None
    return sorted(
        node["metadata"]["name"] for node in response["items"] or []
    )  # The items are null if no node matches.


async def _check_arguments_after_switches(api: Api, names: Iterable[str]) -> None:
    after_switches: Mapping[str, str] = click.get_current_context().meta.get(AFTER_SWITCH_KEY, {})
    for name, switch in after_switches.items():
        if name in names and await get_or_none(api.get(build_node_path(name))) is None:
            remedy = f"the value of {switch} must follow an equals sign: write {switch}=true or {switch}=false"
            raise click.UsageError(f'node "{name}" not found: {remedy}')


class NodeOutcomes:
    """Outcomes of a command: an object or an error for each node.

    Attributes:
        reports: The objects to print, by node name.
    """

    def __init__(self, selection: NodeSelection) -> None:
        self.reports: dict[str, Object] = {}
        self._is_one_node = selection.is_one_node
        self._errors: list[click.ClickException | OperationError] = []

    @contextmanager
    def collect_error(self, node: str) -> Iterator[None]:
        """Store an error in the `with` block, so that the command continues with the other nodes.

        For several nodes, the error is printed immediately. A `UsageError` is not stored but raised, because it applies
        to all nodes.
        """
        try:
            yield
        except click.UsageError:
            raise
        except ApiError as error:
            self._add_error(node, click.ClickException(format_api_error(error)))
        except (click.ClickException, OperationError) as error:
            self._add_error(node, error)

    def _add_error(self, node: str, error: click.ClickException | OperationError) -> None:
        self._errors.append(error)
        if not self._is_one_node:
            message = error.message if isinstance(error, click.ClickException) else str(error)
            click.echo(f"Error: {escape(self.add_node_name(node, message))}", err=True)

    def add_node_name(self, node: str, text: str) -> str:
        """Return the text, prefixed with the node's name if several nodes are selected and the text omits the name."""
        return text if self._is_one_node or f'"{node}"' in text else f'node "{node}": {text}'

    def finish(self, output: str, get_names: Callable[[Object], Iterable[str]]) -> None:
        """Print the objects if `output` is a format for scripts, and raise an error if an error was stored.

        `get_names` returns the names that `-o name` prints for an object. For a single named node, raises the stored
        error; for several nodes, raises `Exit` with status 1.
        """
        reports = list(self.reports.values())
        if not self._is_one_node:
            show_object({"items": reports}, output, (name for report in reports for name in get_names(report)))
        elif reports:
            show_object(reports[0], output, get_names(reports[0]))
        if self._errors and self._is_one_node:
            raise self._errors[0]
        if self._errors:
            raise click.exceptions.Exit(1)


def get_node_reference(report: Object) -> list[str]:
    """Return the name that `-o name` prints for a report on a node: `node/NAME`."""
    return [f"node/{report['node']}"]
