"""The caller of a request, and in whose name the console acts: one of three ways, chosen at its start.

- the kubeconfig's user, for a console that only this machine can reach;
- the owner of the bearer token that comes with the request: the API server judges every request;
- the user whom an authenticating proxy names in a header: the console asks the API server what that user may do, and
  then acts under its own account.

Touches: subjectaccessreviews create; nodes get; pods get; nodemaintenances get, list, create, delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from flask import Request

from kube.door.api import Api
from kube.door.errors import Denied
from kube.door.reviews import Right, may, refusal, whoami
from kube.maintenance.groups import Group

NODES_LIST = Right("list", "nodes")
NODES_GET = Right("get", "nodes")
PODS_GET = Right("get", "pods")


@dataclass(frozen=True)
class Caller:
    """Somebody who asks.

    Attributes:
        api: through which is acted; its owner is the caller, unless `user` names another.
        user, groups: as the proxy says; "" and none where the API server knows the owner of `api` by itself.
    """

    api: Api
    user: str = ""
    groups: tuple[str, ...] = ()

    async def name(self) -> str:
        """The user name."""
        return self.user or await whoami(self.api)

    async def require(self, rights: Iterable[Right]) -> None:
        """Return when the caller has all of these rights; `Denied` names the first that is missing."""
        for right in rights:
            if not await may(self.api, right, self.user, self.groups):
                raise refusal(await self.name(), right)


Identify = Callable[[Request], Caller]
"""From a request to who sent it; raises `Denied` (401) when nobody is named."""


def as_owner(api: Api) -> Identify:
    """Everybody is the kubeconfig's user: only for a console that listens on this machine alone."""
    return lambda request: Caller(api)


def by_token(api: Api) -> Identify:
    """The owner of the bearer token; `api` is one without credentials (`Api.nameless`)."""

    def identify(request: Request) -> Caller:
        given = request.authorization
        if given is None or given.type != "bearer" or not given.token:
            raise Denied(HTTPStatus.UNAUTHORIZED, "no bearer token came with the request: sign in at the proxy before")
        return Caller(api.bearing(given.token))

    return identify


def networks(addresses: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """Addresses and networks, parsed; `ValueError` names the one that is neither."""
    return [ip_network(address) for address in addresses]


def by_header(api: Api, user_header: str, groups_header: str, proxies: Iterable[str]) -> Identify:
    """Whom the proxy names; a header from any address but one of `proxies` (addresses or networks) counts for nothing.

    Groups are separated by commas. Raises `ValueError` for a proxy that is no address.
    """
    known = networks(proxies)

    def identify(request: Request) -> Caller:
        sender = ip_address(request.remote_addr or "0.0.0.0")  # noqa: S104 - nobody's address
        if not any(sender in network for network in known):
            raise Denied(
                HTTPStatus.UNAUTHORIZED, f"{sender} is not the authenticating proxy: name it, or go through it"
            )
        user = request.headers.get(user_header, "")
        if not user:
            raise Denied(HTTPStatus.UNAUTHORIZED, f"the proxy named nobody in {user_header}: sign in at the proxy")
        groups = request.headers.get(groups_header, "") if groups_header else ""
        return Caller(api, user, tuple(group.strip() for group in groups.split(",") if group.strip()))

    return identify


def to_see(groups: Iterable[Group]) -> list[Right]:
    """What a caller must be allowed who sees the console's pages: nodes, and maintenances of every group served."""
    return [NODES_LIST, *(_of("list", group) for group in groups)]


def to_start(group: Group, served: Iterable[Group]) -> list[Right]:
    """What starting a maintenance needs."""
    return [NODES_GET, _of("create", group), *(_of("list", each) for each in served)]


def to_stop(groups: Iterable[Group]) -> list[Right]:
    """What ending maintenances of these groups needs."""
    return [_of("delete", group) for group in groups]


def to_replay(groups: Iterable[Group]) -> list[Right]:
    """What looking at the objects of a recording needs: what became of nodes, pods and maintenances."""
    return [NODES_GET, PODS_GET, *(_of("get", group) for group in groups)]


def _of(verb: str, group: Group) -> Right:
    return Right(verb, "nodemaintenances", group.api_version.split("/")[0])
