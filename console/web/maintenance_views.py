"""Starts and stops maintenances from the console, after a confirmation dialog (OSV-7, OSV-8).

A request without the dialog's field `confirm` changes nothing, whatever its method.
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
from console.web.audit import Ended, written_as_made
from console.web.callers import Caller, to_see, to_start, to_stop
from console.web.context import Context
from console.web.error_pages import status_of
from console.web.cluster_state import State
from console.web.vmis import foretold
from console.web.node_rows import START, STOP, row
from kube.client.access_reviews import Right
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.concurrent_requests import together
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.maintenance.objects import node_name

NEW_GROUP = MEDIK8S
"""API group of new maintenances, the same as the default of `kubectl maintenance start`."""
LONGEST_REASON = 1000
"""Maximum length of a reason in characters."""
MOST_FORESEEN = 30
"""Maximum number of nodes for which the dialog shows the API server's warnings; each needs a request."""
MOST_NODES = 500
"""Maximum number of nodes in one request, because the user reads a page with the outcome of each."""
AT_ONCE = 20
"""Maximum number of nodes processed concurrently, because all users of the console share its connections."""
VERBS = {START: "Start", STOP: "Stop"}


@dataclass(frozen=True)
class Actor:
    """The user who acts in one request; the identity is resolved once, for all nodes of the request.

    Attributes:
        door: The API client that acts for the caller.
        name: The user name.
    """

    caller: Caller
    door: Api
    name: str


@dataclass(frozen=True)
class Foreseen:
    """The preview of a new maintenance for one node: the warnings, or the refusal of the API server."""

    warnings: Sequence[str] = ()
    refusal: Refusal | None = None


class Acting:
    """The views that start and stop maintenances; `console.web.app` maps a URL to each method."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def start(self) -> AnyResponse:
        """Start maintenance of every `node` in the form, with `reason` as the reason."""
        return self._act(START, to_start(NEW_GROUP, self._context.live.now(0).groups), _begin)

    def stop(self) -> AnyResponse:
        """Stop maintenance of every `node` in the form."""
        return self._act(STOP, to_see(self._context.live.now(0).groups), _end)

    def _act(self, action: str, rights: Sequence[Right], work: Callable[[Actor, str], Awaitable[None]]) -> AnyResponse:
        """Ask for confirmation, then run `work` for each node; `rights` are the permissions that every node needs."""
        names = _chosen()
        if request.method != "POST" or request.form.get("confirm") != "yes":
            return self._window(action, names)
        actor = self._context.cluster.run(_actor(self._context.caller(), rights))
        ended = self._context.cluster.run(carried_out(names, partial(work, actor), written_as_made(self._context)))
        return _answer(action, ended)

    def _window(self, action: str, names: list[str]) -> AnyResponse:
        """Render the confirmation dialog: the affected nodes, and the excluded nodes with the reasons."""
        state, user = self._context.viewed()
        listed = [(name, _objection(state, action, name)) for name in names]
        possible = [name for name, objection in listed if objection is None]
        refused = [objection for _, objection in listed if objection]
        foreseen = self._foreseen(possible[:MOST_FORESEEN]) if action == START else {}
        unasked = len(possible) - len(foreseen) if action == START else 0
        refused += [said.refusal for said in foreseen.values() if said.refusal]
        warned = {name: said.warnings for name, said in foreseen.items() if said.warnings}
        possible = [name for name in possible if name not in foreseen or not foreseen[name].refusal]
        if not possible:
            raise refused[0]
        page = render_template(
            "confirm.html",
            **{"action": action, "verb": VERBS[action], "names": possible, "refused": refused, "user": user},
            **{"at": _given().get("at", ""), "longest": LONGEST_REASON, "warned": warned, "unasked": unasked},
            uids=[item["metadata"]["uid"] for item in state.maintenances if node_name(item) in possible],
        )
        return make_response(page)

    def _foreseen(self, names: list[str]) -> dict[str, Foreseen]:
        """Return the preview for each node."""
        caller, has_machines = self._context.caller(), self._context.has_machines()
        asked = (self._asked(caller, name, has_machines=has_machines) for name in names)
        found = self._context.cluster.together(*asked)
        return dict(zip(names, found, strict=True))

    async def _asked(self, caller: Caller, name: str, *, has_machines: bool) -> Foreseen:
        """Preview one node, with its virtual machines; if a request fails, a warning gives the reason."""
        try:
            warnings = await _told(name, self._warned(caller, name))
        except Refusal as refusal:
            return Foreseen(refusal=refusal)
        of_machines = await _told(name, foretold(caller, name, NEW_GROUP)) if has_machines else []
        return Foreseen(list(dict.fromkeys([*warnings, *of_machines])))

    async def _warned(self, caller: Caller, name: str) -> list[str]:
        await caller.require(to_start(NEW_GROUP, self._context.live.now(0).groups))
        return await maintenance_actions.foreseen(await caller.door(), NEW_GROUP, name)


def _chosen() -> list[str]:
    """Return the nodes that the request names. Raises `Refusal` for none, for too many, and for an empty name."""
    names = list(dict.fromkeys(_given().getlist("node")))
    if not names:
        raise Refusal(HTTPStatus.BAD_REQUEST, "no node was chosen: nothing was changed", "choose at least one")
    if not all(names):
        raise Refusal(HTTPStatus.BAD_REQUEST, "node: one is without a name: nothing was changed", "name each node")
    if len(names) > MOST_NODES:
        message = f"node: at most {MOST_NODES} at a time, not {len(names)}: nothing was changed"
        raise Refusal(HTTPStatus.BAD_REQUEST, message, "choose fewer")
    return names


def _given() -> MultiDict[str, str]:
    """Return the fields of the form, or the query parameters of a link, which only opens the dialog.

    The audit log covers only the form.
    """
    return request.form if request.method == "POST" else request.args


async def _begin(actor: Actor, node: str) -> None:
    reason = " ".join(request.form.get("reason", "").split())[:LONGEST_REASON]
    await maintenance_actions.create(actor.door, NEW_GROUP, node, node, reason, actor.name)


async def _end(actor: Actor, node: str) -> None:
    """Delete the maintenances of a node: exactly those that were checked, not those created later.

    Raises `Refusal` if one of them is not among the `uid`s of the form: the user has not seen it in the dialog.
    """
    found, shown = await maintenance_actions.to_end(actor.door, node), request.form.getlist("uid")
    if shown and any(item["metadata"]["uid"] not in shown for item in found):
        raise Refusal(HTTPStatus.CONFLICT, f"{node} is in another maintenance since: load the page again", "")
    await actor.caller.require(to_stop(GROUPS[item["apiVersion"]] for item in found))
    await maintenance_actions.delete(actor.door, found)


async def _actor(caller: Caller, rights: Iterable[Right]) -> Actor:
    """Return the actor. Raises `Denied` if the caller lacks one of the permissions."""
    await caller.require(rights)
    return Actor(caller, await caller.door(), await caller.name())


async def carried_out(
    names: Iterable[str], work: Callable[[str], Awaitable[None]], told: Callable[[Ended], None]
) -> list[Ended]:
    """Run `work` for each node, some concurrently, and return each outcome; `told` is called with each at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Ended:
        async with places:
            ended = await _ended(name, work(name))
        told(ended)
        return ended

    return await together(*map(one, names))


async def _told(name: str, asking: Awaitable[list[str]]) -> list[str]:
    """Return the lines of warnings, or a line with the reason why they could not be read."""
    try:
        return await asking
    except ApiError as error:
        return [f"what it means for {name} could not be asked: {error.message}"]


async def _ended(name: str, work: Awaitable[None]) -> Ended:
    """Return the outcome for one node; a refusal for one node does not stop the others."""
    try:
        await work
    except OperationError as error:
        return Ended(name, error.http_status, error.message)
    except ApiError as error:
        return Ended(name, status_of(error), error.message)
    return Ended(name, HTTPStatus.OK)


def _objection(state: State, action: str, name: str) -> Refusal | None:
    """Return why the action does not apply to the node, judged by the console's current state.

    The API server makes the final decision.
    """
    found = [item for item in state.maintenances if node_name(item) == name]
    facts = state.nodes.get(name)
    if facts is None and not found:
        return maintenance_actions.unknown(name)
    shown = row(name, facts, found)
    if shown.offers == action:
        return None
    message = shown.note or f"{name} is {'in maintenance already' if shown.offers == STOP else 'not in maintenance'}"
    return Refusal(HTTPStatus.CONFLICT, message, f"kubectl maintenance status {name}")


def _answer(action: str, ended: Iterable[Ended]) -> AnyResponse:
    """Build the response: a redirect or a message if all nodes succeeded, else a page with the failures.

    If no node succeeded, the response has the HTTP status of the first failure.
    """
    succeeded = [each.name for each in ended if not each.error]
    failed = [each for each in ended if each.error]
    word = {START: "Maintenance of {} begins.", STOP: "Maintenance of {} ends."}[action]
    message = word.format(", ".join(succeeded[:5]) + (f" and {len(succeeded) - 5} more" if len(succeeded) > 5 else ""))
    if failed:
        page = render_template("outcomes.html", verb=VERBS[action], message=message if succeeded else "", failed=failed)
        return make_response(page, HTTPStatus.OK if succeeded else failed[0].status)
    if "HX-Request" in request.headers:
        return make_response(render_template("done.html", message=message))
    flash(message)
    at = request.form.get("at", "")
    return redirect(url_for("node", name=at) if at else url_for("nodes"), HTTPStatus.SEE_OTHER)
