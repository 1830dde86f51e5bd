"""Reads the labelled Secrets and ConfigMaps of a namespace, and the CA injection targets of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from kube.certificates import certificate_objects
from kube.certificates.kubernetes_events import FAILED, FOREIGN, UNKNOWN, Notice
from kube.certificates.components import COMPONENTS, LABEL, Component
from kube.certificates.certificate_objects import CERT_MANAGER, Held, name_of
from kube.certificates.ca_injection import CARRIERS, LARGE, asked_from, carrier_path
from kube.certificates.state import State
from kube.client.api import JSON, METADATA, Api, absent_ok
from kube.client.api_errors import Unavailable
from kube.client.concurrent_requests import together
from kube.client.paging import listed, pages
from kube.paths import Object

PATIENCE_SECONDS, CARRIERS_SECONDS = 0.6, 1.2
"""Timeouts for listing all CA injection targets, in seconds; a pass has 1.6 s in total.

After the first timeout, a pass goes on without the lists, because repairs do not need them. A tick waits until the
second timeout and then makes another pass with the lists. If the previous tick had no time left for that pass, the tick
waits for the lists before its first pass.
"""

MOST_SECRETS = 50
"""Maximum number of a component's server Secrets up to which missing ones are created again.

Without this limit, a client that may write the ConfigMap could cause the creation of any number of Secrets.
"""


@dataclass(frozen=True)
class Found:
    """The content of a namespace: the state of each component, and a notice for each Secret that is skipped."""

    states: tuple[State, ...]
    skipped: tuple[Notice, ...]


async def carriers(api: Api, namespaces: Collection[str]) -> list[Object]:
    """List the objects of all kinds that request the bundle of a Secret in one of these namespaces.

    A server without API aggregation has no APIServices. Raises `Unavailable` if the lists take longer than
    `CARRIERS_SECONDS`.
    """
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
    """Read these objects again, without those that no longer exist.

    The function lists each object by its name, which needs no `get` permission.
    """
    named = (
        pages(api, CARRIERS[item["kind"]], fields=f"metadata.name={item['metadata']['name']}") for item in carriers
    )
    return [item for found in await together(*named) for item in found.items]


async def found(api: Api, namespace: str, asking: Iterable[Object] | None) -> Found:
    """Read the certificates of a namespace; `asking` are the CA injection targets of the cluster, None if unknown."""
    lists = (certificate_objects.secrets_path(namespace), certificate_objects.publications_path(namespace))
    secrets, maps = await together(*(pages(api, path, labels=LABEL) for path in lists))
    skipped = [notice for secret in secrets.items if (notice := _why_skipped(secret))]
    ours = [secret for secret in secrets.items if not _why_skipped(secret)]
    wanted = {certificate_objects.component_of(item) for item in [*ours, *maps.items]}
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
    of = [secret for secret in secrets if certificate_objects.component_of(secret) == component.name]
    of_name = {name_of(item): item for item in maps if certificate_objects.component_of(item) == component.name}
    publication = of_name.get(component.publication)
    servers = tuple(secret for secret in of if name_of(secret) != component.authority)
    known = certificate_objects.remembered(publication)
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
    """Return the entries whose Secret does not exist.

    A Secret that has only lost its label still exists: a user excluded it from renewal.
    """
    secrets = [absent_ok(api.get(certificate_objects.secrets_path(namespace, held.secret))) for held in missing]
    there = await together(*secrets)
    return tuple(held for held, secret in zip(missing, there, strict=True) if secret is None)


def _why_skipped(secret: Object) -> Notice | None:
    of, name = ("Secret", name_of(secret)), certificate_objects.component_of(secret)
    if name not in COMPONENTS:
        known = ", ".join(COMPONENTS)
        return Notice(of, UNKNOWN, f"{LABEL} is {name!r}, which is no component ({known}): it is not renewed")
    others = {component.authority: component.name for component in COMPONENTS.values() if component.name != name}
    if of[1] in others:
        return Notice(of, FAILED, f"its name is that of the authority of {others[of[1]]}: give it another one")
    if certificate_objects.annotation(secret, CERT_MANAGER):
        return Notice(of, FOREIGN, "cert-manager renews it: take either its Certificate away, or our label")
    return None
