"""Reads what there is of certificates in a namespace: labelled Secrets and ConfigMaps, and who asks for a CA bundle."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kube.certificates import holders
from kube.certificates.announcements import FAILED, FOREIGN, UNKNOWN, Notice
from kube.certificates.components import COMPONENTS, LABEL, Component
from kube.certificates.holders import CERT_MANAGER, Held, name_of
from kube.certificates.injection import CARRIERS, LARGE, asked_from, carrier_path
from kube.certificates.state import State
from kube.door.api import JSON, METADATA, Api, absent_ok
from kube.door.api_errors import Unavailable
from kube.door.concurrent_requests import together
from kube.door.paging import listed, pages
from kube.paths import Object

PATIENCE_SECONDS, CARRIERS_SECONDS = 0.6, 1.2
"""For all lists of them: so long a look waits before it goes on without, as repairs can; and so long a tick, which
looks once more with what has come by then, or waits for it first where the last one had no time left for that. Both
have the rest of a look's 1.6."""

MOST_SECRETS = 50
"""Of a component's servers, beyond which none is made again: who may write the ConfigMap could name any number."""


@dataclass(frozen=True)
class Found:
    """What a namespace has: the state of each component, and Secrets that are left alone, each with why."""

    states: tuple[State, ...]
    skipped: tuple[Notice, ...]


async def carriers(api: Api, namespaces: Collection[str]) -> list[Object]:
    """What asks by the annotation for the bundle of a Secret in one of these, of all kinds that may. A server that
    aggregates no APIs has none of the last. Raises `Unavailable` when that takes more than `CARRIERS_SECONDS`."""
    calls = together(*(_carriers(api, kind, path, namespaces) for kind, path in CARRIERS.items()))
    try:
        lists = await asyncio.wait_for(calls, CARRIERS_SECONDS)
    except asyncio.TimeoutError:
        raise Unavailable(0, f"not all lists came within {CARRIERS_SECONDS} s") from None
    return [item for items in lists for item in items]


async def _carriers(api: Api, kind: str, path: str, namespaces: Collection[str]) -> list[Object]:
    items = await listed(api, path, accept=METADATA if kind in LARGE else JSON)
    asking = [{**item, "kind": kind} for item in items if asked_from(item)[0] in namespaces]
    if kind not in LARGE:
        return asking
    whole = await together(*(absent_ok(api.get(carrier_path(item))) for item in asking))
    return [{**item, "kind": kind} for item in whole if item]


async def reread(api: Api, carriers: Iterable[Object]) -> list[Object]:
    """These as they are now, without those that are gone: each by a list of one name, which takes no right to get."""
    named = (
        pages(api, CARRIERS[item["kind"]], fields=f"metadata.name={item['metadata']['name']}") for item in carriers
    )
    return [item for found in await together(*named) for item in found.items]


async def found(api: Api, namespace: str, asking: Iterable[Object] | None) -> Found:
    """What there is in a namespace; `asking` are the carriers of the cluster, None where nobody can tell."""
    lists = (holders.secrets_path(namespace), holders.publications_path(namespace))
    secrets, maps = await together(*(pages(api, path, labels=LABEL) for path in lists))
    skipped = [notice for secret in secrets.items if (notice := _why_skipped(secret))]
    ours = [secret for secret in secrets.items if not _why_skipped(secret)]
    wanted = {holders.component_of(item) for item in [*ours, *maps.items]}
    states = [
        replace(
            await _state(api, COMPONENTS[name], namespace, ours, maps.items, list(asking or ())),
            is_blind=asking is None,
        )
        for name in COMPONENTS
        if name in wanted
    ]
    return Found(tuple(states), tuple(skipped))


async def _state(
    api: Api, component: Component, namespace: str, secrets: list[Object], maps: list[Object], asking: list[Object]
) -> State:
    of = [secret for secret in secrets if holders.component_of(secret) == component.name]
    of_name = {name_of(item): item for item in maps if holders.component_of(item) == component.name}
    publication = of_name.get(component.publication)
    servers = tuple(secret for secret in of if name_of(secret) != component.authority)
    known = holders.remembered(publication)
    there = {*map(name_of, secrets), component.authority}
    missing = [held for name, held in known.items() if held.names and name not in there]
    most = max(MOST_SECRETS - len(servers), 0)
    gone = await _gone(api, namespace, missing[:most])
    names = {(namespace, name) for name in (*map(name_of, servers), *(held.secret for held in gone))}
    carrying = tuple(carrier for carrier in asking if asked_from(carrier) in names)
    authority = next((secret for secret in of if name_of(secret) == component.authority), None)
    is_cut = len(missing) > most
    return State(component, namespace, authority, publication, servers, gone, carrying, is_cut=is_cut)


async def _gone(api: Api, namespace: str, missing: list[Held]) -> tuple[Held, ...]:
    """Those that are not there. One that has lost its label is: nobody wants it renewed any more."""
    secrets = [absent_ok(api.get(holders.secrets_path(namespace, held.secret))) for held in missing]
    there = await together(*secrets)
    return tuple(held for held, secret in zip(missing, there, strict=True) if secret is None)


def _why_skipped(secret: Object) -> Notice | None:
    of, name = ("Secret", name_of(secret)), holders.component_of(secret)
    if name not in COMPONENTS:
        known = ", ".join(COMPONENTS)
        return Notice(of, UNKNOWN, f"{LABEL} is {name!r}, which is no component ({known}): it is not renewed")
    others = {component.authority: component.name for component in COMPONENTS.values() if component.name != name}
    if of[1] in others:
        return Notice(of, FAILED, f"its name is that of the authority of {others[of[1]]}: give it another one")
    if holders.annotation(secret, CERT_MANAGER):
        return Notice(of, FOREIGN, "cert-manager renews it: take either its Certificate away, or our label")
    return None
