"""Start and stop maintenances from the console, behind a confirmation window (OSV-7, OSV-8).

A request without the window's `confirm` changes nothing, whatever its method.
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

from console.operations import maintaining
from console.operations.errors import OperationError, Refusal
from console.web.audit import Ended, written_as_made
from console.web.callers import Caller, to_see, to_start, to_stop
from console.web.context import Context
from console.web.faults import status_of
from console.web.live import State
from console.web.machines import foretold
from console.web.rows import START, STOP, row
from kube.door.access_reviews import Right
from kube.door.api import Api
from kube.door.api_errors import ApiError
from kube.door.concurrent_requests import together
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.maintenance.objects import node_name

NEW_GROUP = MEDIK8S
"""The group of new maintenances, as with `kubectl maintenance start`."""
LONGEST_REASON = 1000
"""Characters."""
MOST_FORESEEN = 30
"""Nodes of which the window says what the API server warns of: each is a request, and a person reads no more."""
MOST_NODES = 500
"""In one request: a page with what became of each is read by a person."""
AT_ONCE = 20
"""Nodes whose requests are under way: the others who look at the console share its connections."""
VERBS = {START: "Start", STOP: "Stop"}


@dataclass(frozen=True)
class Actor:
    """Who acts in one request: what is asked once, however many nodes it is about.

    Attributes:
        door: through which the caller acts.
        name: the user name.
    """

    caller: Caller
    door: Api
    name: str


@dataclass(frozen=True)
class Foreseen:
    """What is said before one node's maintenance is created: warnings, or why the API server refuses."""

    warnings: Sequence[str] = ()
    refusal: Refusal | None = None


class Acting:
    """The views; each method is one, listed in `console.web.app`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def start(self) -> AnyResponse:
        """Start maintenance of every `node`; `reason` says why."""
        return self._act(START, to_start(NEW_GROUP, self._context.live.now(0).groups), _begin)

    def stop(self) -> AnyResponse:
        """Stop maintenance of every `node`."""
        return self._act(STOP, to_see(self._context.live.now(0).groups), _end)

    def _act(self, action: str, rights: Sequence[Right], work: Callable[[Actor, str], Awaitable[None]]) -> AnyResponse:
        """Do the work for each node; `rights` are those without which it could be done for none."""
        names = _chosen()
        if request.method != "POST" or request.form.get("confirm") != "yes":
            return self._window(action, names)
        actor = self._context.cluster.run(_actor(self._context.caller(), rights))
        ended = self._context.cluster.run(carried_out(names, partial(work, actor), written_as_made(self._context)))
        return _answer(action, ended)

    def _window(self, action: str, names: list[str]) -> AnyResponse:
        """The confirmation window: whom it concerns, and who is left out and why."""
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
        """What the API server warns of, or why it would refuse, by node."""
        caller, has_machines = self._context.caller(), self._context.has_machines()
        asked = (self._asked(caller, name, has_machines=has_machines) for name in names)
        found = self._context.cluster.together(*asked)
        return dict(zip(names, found, strict=True))

    async def _asked(self, caller: Caller, name: str, *, has_machines: bool) -> Foreseen:
        """That of one node, and what becomes of its virtual machines; of what could not be asked, why."""
        try:
            warnings = await _told(name, self._warned(caller, name))
        except Refusal as refusal:
            return Foreseen(refusal=refusal)
        of_machines = await _told(name, foretold(caller, name, NEW_GROUP)) if has_machines else []
        return Foreseen(list(dict.fromkeys([*warnings, *of_machines])))

    async def _warned(self, caller: Caller, name: str) -> list[str]:
        await caller.require(to_start(NEW_GROUP, self._context.live.now(0).groups))
        return await maintaining.foreseen(await caller.door(), NEW_GROUP, name)


def _chosen() -> list[str]:
    """The nodes that the request names. Raises `Refusal` for none, for too many, and for one without a name."""
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
    """The fields of the form, of which alone the audit line speaks; of a link, which changes nothing, the query's."""
    return request.form if request.method == "POST" else request.args


async def _begin(actor: Actor, node: str) -> None:
    reason = " ".join(request.form.get("reason", "").split())[:LONGEST_REASON]
    await maintaining.create(actor.door, NEW_GROUP, node, node, reason, actor.name)


async def _end(actor: Actor, node: str) -> None:
    """What is deleted is what was checked: the objects found now, none that comes meanwhile.

    And what the window showed, by the `uid`s in its form: who reads it an hour later knows of no other maintenance.
    """
    found, shown = await maintaining.to_end(actor.door, node), request.form.getlist("uid")
    if shown and any(item["metadata"]["uid"] not in shown for item in found):
        raise Refusal(HTTPStatus.CONFLICT, f"{node} is in another maintenance since: load the page again", "")
    await actor.caller.require(to_stop(GROUPS[item["apiVersion"]] for item in found))
    await maintaining.delete(actor.door, found)


async def _actor(caller: Caller, rights: Iterable[Right]) -> Actor:
    """Who acts; `Denied` where the caller lacks one of the rights."""
    await caller.require(rights)
    return Actor(caller, await caller.door(), await caller.name())


async def carried_out(
    names: Iterable[str], work: Callable[[str], Awaitable[None]], told: Callable[[Ended], None]
) -> list[Ended]:
    """Do the work for each node, some at a time, and return what became of each, which `told` hears as soon as it is
    known."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Ended:
        async with places:
            ended = await _ended(name, work(name))
        told(ended)
        return ended

    return await together(*map(one, names))


async def _told(name: str, asking: Awaitable[list[str]]) -> list[str]:
    """The lines of warnings, or the one that says why there is none."""
    try:
        return await asking
    except ApiError as error:
        return [f"what it means for {name} could not be asked: {error.message}"]


async def _ended(name: str, work: Awaitable[None]) -> Ended:
    """What became of one node: one that is refused does not stop the others."""
    try:
        await work
    except OperationError as error:
        return Ended(name, error.http_status, error.message)
    except ApiError as error:
        return Ended(name, status_of(error), error.message)
    return Ended(name, HTTPStatus.OK)


def _objection(state: State, action: str, name: str) -> Refusal | None:
    """Why the action makes no sense for the node, as far as the console knows; the API server has the last word."""
    found = [item for item in state.maintenances if node_name(item) == name]
    facts = state.nodes.get(name)
    if facts is None and not found:
        return maintaining.unknown(name)
    shown = row(name, facts, found)
    if shown.offers == action:
        return None
    message = shown.note or f"{name} is {'in maintenance already' if shown.offers == STOP else 'not in maintenance'}"
    return Refusal(HTTPStatus.CONFLICT, message, f"kubectl maintenance status {name}")


def _answer(action: str, ended: Iterable[Ended]) -> AnyResponse:
    """The answer: where it came from with a message, or what went wrong with the first refusal's status."""
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
