"""Starts and stops maintenances from the console, after a confirmation dialog (OSV-7, OSV-8).

A request without the dialog's form field `confirm` only shows the dialog, even if it is a POST request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from flask import flash, make_response, redirect, render_template, request, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response as AnyResponse

from console.operations import maintenance_actions
from console.operations.errors import OperationError, Refusal
from console.operations.maintenance_preview import preview_maintenance
from console.operations.node_vmis import return_no_vmis
from console.operations.preview_snapshot import ReadNodeVmis
from console.operations.preview_summary import summarize_preview
from console.web.audit import ActionOutcome, create_outcome_writer, get_http_status
from console.web.callers import (
    NEW_MAINTENANCE_GROUP,
    PREVIEW_RIGHTS,
    Caller,
    list_maintenance_rights,
    list_start_rights,
    list_view_rights,
)
from console.web.cluster_state import ClusterState
from console.web.context import ConsoleContext
from console.web.node_rows import START, STOP, build_row
from kube.client.access_reviews import Permission
from kube.client.api import Api, gather_all
from kube.client.api_errors import ApiError
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import get_node_name
from kube.pods import DEFAULT_DRAIN_OPTIONS
from kube.text_limits import format_first_names

MAX_REASON_CHARACTERS = 1000
"""Maximum length of a maintenance's reason; a longer reason is truncated."""
MAX_PREVIEWED_NODES = 30
"""Maximum number of nodes for which the dialog shows the API server's warnings, with one request per node."""
MAX_NODES_PER_REQUEST = 500
"""Maximum number of nodes in one form, because the response page lists each node's outcome."""
MAX_CONCURRENT_NODES = 20
"""Maximum number of nodes to process concurrently, because all users of the console share its connections."""
MAX_STATE_WAIT_SECONDS = 3.0
"""Maximum time until the response to an action, in seconds, while the console's state does not contain its effect."""
VERBS = {START: "Start", STOP: "Stop"}


@dataclass(frozen=True)
class Actor:
    """The caller of a request with the resolved API client and user name, which all nodes of the request share.

    Attributes:
        api: The API client that acts for the caller.
        user_name: The caller's user name.
    """

    caller: Caller
    api: Api
    user_name: str


@dataclass(frozen=True)
class NodePreview:
    """The API server's response to a dry-run creation of a maintenance for one node: warnings, or a refusal."""

    warnings: Sequence[str] = ()
    refusal: Refusal | None = None


class MaintenanceViews:
    """Views that start and stop maintenances; `console.web.app` maps a URL to each public method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    def start(self) -> AnyResponse:
        """Start a maintenance for each value of the form field `node`, with the reason in the field `reason`."""
        return self._run_action(
            START,
            list_start_rights(self._context.watcher.get_state(0).groups),
            _start_maintenance,
        )

    def stop(self) -> AnyResponse:
        """Stop the maintenances of each value of the form field `node`."""
        return self._run_action(STOP, list_view_rights(self._context.watcher.get_state(0).groups), _stop_maintenances)

    def _run_action(
        self, action: str, rights: Sequence[Permission], act_on_node: Callable[[Actor, str], Awaitable[None]]
    ) -> AnyResponse:
        """Render the confirmation dialog, or, in a confirmed request, call `act_on_node` for each node.

        Raises `Denied` if the caller lacks one of the permissions `rights`.
        """
        names = _parse_nodes()
        if request.method != "POST" or request.form.get("confirm") != "yes":
            return self._render_confirmation(action, names)
        actor = self._context.client.run(_build_actor(self._context.get_caller(), rights))
        outcomes = self._context.client.run(
            act_on_nodes(names, partial(act_on_node, actor), create_outcome_writer(self._context))
        )
        self._wait_for_outcomes(action, [outcome.name for outcome in outcomes if outcome.status == HTTPStatus.OK])
        return _build_outcomes_response(action, outcomes)

    def _wait_for_outcomes(self, action: str, names: Sequence[str]) -> None:
        """Wait until the console's state contains the action's effect on these nodes.

        The next page and a subsequent action of the same user then see the effect. After `MAX_STATE_WAIT_SECONDS`, the
        response is sent without it: the page updates itself as soon as the watch delivers the change.
        """
        self._context.watcher.wait_for_state(
            lambda state: all(_find_action_refusal(state, action, name) for name in names), MAX_STATE_WAIT_SECONDS
        )

    def _render_confirmation(self, action: str, names: list[str]) -> AnyResponse:
        """Render the confirmation dialog, which lists the affected nodes, and the excluded nodes with the reasons."""
        state, user = self._context.read_state()
        refusals = {name: refusal for name in names if (refusal := _find_action_refusal(state, action, name))}
        offered = [name for name in names if name not in refusals]
        previews = self._preview_nodes(offered[:MAX_PREVIEWED_NODES]) if action == START else {}
        refusals |= {name: item.refusal for name, item in previews.items() if item.refusal}
        accepted = [name for name in offered if name not in refusals]
        if not accepted:
            raise next(iter(refusals.values()))
        preview = self._summarize_preview([name for name in previews if name in accepted])
        shown_maintenances = (item for item in state.maintenances if get_node_name(item) in accepted)
        page = render_template(
            "confirm.html",
            **{"action": action, "verb": VERBS[action], "user": user, "at": _get_form_fields().get("at", "")},
            **{"names": accepted, "refusals": [*refusals.values()], "max_reason_characters": MAX_REASON_CHARACTERS},
            warnings={name: item.warnings for name, item in previews.items() if item.warnings},
            preview=[line for line in preview if not any(line in item.warnings for item in previews.values())],
            not_previewed=len(offered) - len(previews) if action == START else 0,
            uids=[maintenance["metadata"]["uid"] for maintenance in shown_maintenances],
            denials=self._context.read_action_denials(state),
        )
        return make_response(page)

    def _preview_nodes(self, names: list[str]) -> dict[str, NodePreview]:
        """Return the API server's warnings or refusal for a new maintenance of each node."""
        caller = self._context.get_caller()
        calls = (self._preview_node(caller, name) for name in names)
        previews = self._context.client.gather_all(*calls)
        return dict(zip(names, previews, strict=True))

    def _summarize_preview(self, names: Sequence[str]) -> list[str]:
        """Return the preview of a maintenance of all these nodes as lines, or a line with the error."""
        if not names:
            return []
        caller = self._context.get_caller()
        read_node_vmis = caller.read_vmis if self._context.has_vms() else return_no_vmis
        try:
            return self._context.client.run(_summarize_preview(caller, names, read_node_vmis))
        except (ApiError, OperationError) as error:
            return [f"cannot preview the pods: {error.message}"]

    async def _preview_node(self, caller: Caller, name: str) -> NodePreview:
        """Preview the creation of a maintenance for one node; report a failed request as a warning."""
        try:
            return NodePreview(await _get_warnings_or_error(name, self._list_creation_warnings(caller, name)))
        except Refusal as refusal:
            return NodePreview(refusal=refusal)

    async def _list_creation_warnings(self, caller: Caller, name: str) -> list[str]:
        await caller.require(list_start_rights(self._context.watcher.get_state(0).groups))
        return await maintenance_actions.preview_maintenance_creation(
            await caller.get_api(), NEW_MAINTENANCE_GROUP, name
        )


async def _summarize_preview(caller: Caller, names: Sequence[str], read_node_vmis: ReadNodeVmis) -> list[str]:
    """Return the preview's warnings, followed by lines about the effects on pods and virtual machines.

    The preview does not check the capacity of other nodes, because that requires a list of all pods in the cluster.
    """
    await caller.require(PREVIEW_RIGHTS)
    preview = await preview_maintenance(
        await caller.get_api(),
        names,
        DEFAULT_DRAIN_OPTIONS,
        NEW_MAINTENANCE_GROUP,
        read_node_vmis=read_node_vmis,
        reads_other_nodes=False,
    )
    return [*preview.warnings, *summarize_preview(preview)]


def _parse_nodes() -> list[str]:
    """Return the values of the form field `node`. Raises `Refusal` for no values, too many values or an empty value."""
    names = list(dict.fromkeys(_get_form_fields().getlist("node")))
    if not names:
        raise Refusal(HTTPStatus.BAD_REQUEST, "no node selected, nothing was changed", "select at least one")
    if not all(names):
        raise Refusal(HTTPStatus.BAD_REQUEST, "a value of node is empty, nothing was changed", "name each node")
    if len(names) > MAX_NODES_PER_REQUEST:
        message = f"{len(names)} nodes selected, at most {MAX_NODES_PER_REQUEST} are allowed, nothing was changed"
        raise Refusal(HTTPStatus.BAD_REQUEST, message, "select fewer")
    return names


def _get_form_fields() -> MultiDict[str, str]:
    """Return the form fields of a POST request, or else the query parameters.

    A GET request only opens the dialog, and the audit log contains only POST requests.
    """
    return request.form if request.method == "POST" else request.args


async def _start_maintenance(actor: Actor, node: str) -> None:
    reason = " ".join(request.form.get("reason", "").split())[:MAX_REASON_CHARACTERS]
    await maintenance_actions.create_maintenance(actor.api, NEW_MAINTENANCE_GROUP, node, node, reason, actor.user_name)


async def _stop_maintenances(actor: Actor, node: str) -> None:
    """Delete the node's maintenances that the confirmation dialog has shown.

    Raises `Refusal` if the node has a maintenance whose uid is not in the form field `uid`, because it was created
    after the dialog was shown.
    """
    maintenances = await maintenance_actions.list_maintenances_to_end(actor.api, node)
    shown_uids = request.form.getlist("uid")
    if shown_uids and any(maintenance["metadata"]["uid"] not in shown_uids for maintenance in maintenances):
        raise Refusal(HTTPStatus.CONFLICT, f'node "{node}" has a new maintenance now: load the page again', "")
    groups = [GROUPS[maintenance["apiVersion"]] for maintenance in maintenances]
    await actor.caller.require(list_maintenance_rights("delete", groups))
    await maintenance_actions.delete_maintenances(actor.api, maintenances, actor.user_name)


async def _build_actor(caller: Caller, rights: Iterable[Permission]) -> Actor:
    """Check the caller's permissions and return the actor. Raises `Denied` if the caller lacks one of them."""
    await caller.require(rights)
    return Actor(caller, await caller.get_api(), await caller.get_name())


async def act_on_nodes(
    names: Iterable[str], act_on_node: Callable[[str], Awaitable[None]], on_outcome: Callable[[ActionOutcome], None]
) -> list[ActionOutcome]:
    """Call `act_on_node` for all nodes concurrently, pass each outcome to `on_outcome`, and return all outcomes."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_NODES)

    async def act_on_one(name: str) -> ActionOutcome:
        async with semaphore:
            outcome = await _await_outcome(name, act_on_node(name))
        on_outcome(outcome)
        return outcome

    return await gather_all(*map(act_on_one, names))


async def _get_warnings_or_error(name: str, call: Awaitable[list[str]]) -> list[str]:
    """Await and return the warnings; if the request fails, return a single warning with the error."""
    try:
        return await call
    except ApiError as error:
        return [f'cannot preview the maintenance of node "{name}": {error.message}']


async def _await_outcome(name: str, call: Awaitable[None]) -> ActionOutcome:
    """Await `call` and return its outcome for one node; an error must not stop the processing of other nodes."""
    try:
        await call
    except OperationError as error:
        return ActionOutcome(name, error.http_status, error.message)
    except ApiError as error:
        return ActionOutcome(name, get_http_status(error), error.message)
    return ActionOutcome(name, HTTPStatus.OK)


def _find_action_refusal(state: ClusterState, action: str, name: str) -> Refusal | None:
    """Return the refusal if the action is not possible for the node in the console's current state, else None.

    The API server makes the final decision.
    """
    maintenances = [maintenance for maintenance in state.maintenances if get_node_name(maintenance) == name]
    facts = state.nodes.get(name)
    if facts is None and not maintenances:
        return maintenance_actions.build_unknown_node_refusal(name)
    row = build_row(name, facts, maintenances)
    if row.offered_action == action:
        return None
    fallback = f'node "{name}" is {"already" if row.offered_action == STOP else "not"} in maintenance'
    return Refusal(HTTPStatus.CONFLICT, row.note or fallback, f"see kubectl maintenance status {name}")


def _build_outcomes_response(action: str, outcomes: Iterable[ActionOutcome]) -> AnyResponse:
    """Build the response: a redirect or a message if the action succeeded for all nodes, else a page with the failures.

    If the action failed for all nodes, the response has the HTTP status of the first failure.
    """
    succeeded = [outcome.name for outcome in outcomes if not outcome.error]
    failed = [outcome for outcome in outcomes if outcome.error]
    template = {START: "Maintenance of {} begins.", STOP: "Maintenance of {} ends."}[action]
    message = template.format(format_first_names(succeeded, 5))
    if failed:
        page = render_template("outcomes.html", verb=VERBS[action], message=message if succeeded else "", failed=failed)
        return make_response(page, HTTPStatus.OK if succeeded else failed[0].status)
    if "HX-Request" in request.headers:
        return make_response(render_template("done.html", message=message))
    flash(message)
    at = request.form.get("at", "")
    return redirect(url_for("node", name=at) if at else url_for("nodes"), HTTPStatus.SEE_OTHER)
