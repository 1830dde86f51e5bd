"""Identifies the caller of a request, and selects the identity that the console acts under.

The console starts in one of three modes:

- On a loopback address without a proxy, every caller acts as the kubeconfig's user.

- On any other address without a proxy, each request carries a bearer token. The caller is the token's owner, and the
  API server authorizes every request.

- With an authenticating proxy, a header names the user. The proxy also sends a secret that only it and the console
  know. The console asks the API server what the user may do. It then impersonates the user if its account may do so,
  else it acts under its own account.

Touches: subjectaccessreviews create; nodes get; pods get, list; poddisruptionbudgets get;
nodemaintenances get, list, create, delete;
mutexrunconfigs get, list; mutexrules get; mutextargets get; virtualmachines get; virtualmachineinstances get;
virtualmachineinstancemigrations list; kubevirts list.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from flask import Request

from kube.client.access_reviews import Right, may, refusal, whoami
from kube.client.api import Api
from kube.client.api_errors import Denied
from kube.client.concurrent_requests import together
from kube.maintenance.groups import Group
from kube.mutex.objects import PLURALS, ROOT, RUN

NODES_LIST = Right("list", "nodes")
NODES_GET = Right("get", "nodes")
PODS_GET = Right("get", "pods")
BUDGETS_GET = Right("get", "poddisruptionbudgets", "policy")
MUTEX_GROUP = ROOT.split("/")[2]
RUNS_LIST = Right("list", PLURALS[RUN], MUTEX_GROUP)
MACHINES_READ = (
    Right("list", "pods"),
    *(Right("get", kind, "kubevirt.io") for kind in ("virtualmachineinstances", "virtualmachines")),
    *(Right("list", kind, "kubevirt.io") for kind in ("virtualmachineinstancemigrations", "kubevirts")),
)
"""Permissions for reading the virtual machines of a node."""
AUTHENTICATED = "system:authenticated"
"""Group of all users that the API server authenticates; the proxy does not send it."""
SERVICE_ACCOUNT = "system:serviceaccount:"
"""Prefix of ServiceAccount user names, which the permission to impersonate users does not cover."""


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        api: The API client for the request; its credentials are the caller's unless `user` is set.
        user, groups: User and groups as the proxy names them; empty if the API server knows them from the credentials.
    """

    api: Api
    user: str = ""
    groups: tuple[str, ...] = ()

    async def name(self) -> str:
        """Return the user name."""
        return self.user or await whoami(self.api)

    async def require(self, rights: Iterable[Right]) -> None:
        """Raise `Denied`, which names the first missing permission, unless the caller has all of these."""
        groups = (*self.groups, *({AUTHENTICATED} - {*self.groups}))
        for right in rights:
            if not await may(self.api, right, self.user, groups):
                raise refusal(await self.name(), right)

    async def door(self) -> Api:
        """Return the client that acts for the caller: impersonating the caller if possible, else the console's own.

        With impersonation, the API server authorizes each request again, and its audit log names the caller.
        """
        if not self.user or self.user.startswith(SERVICE_ACCOUNT):
            return self.api
        groups = [group for group in self.groups if group != AUTHENTICATED]  # the API server adds it by itself
        named = [Right("impersonate", "users", name=self.user)]
        named += [Right("impersonate", "groups", name=group) for group in groups]
        granted = await together(*(may(self.api, right) for right in named))
        return self.api.impersonating(self.user, groups) if all(granted) else self.api


Identify = Callable[[Request], Caller]
"""Returns the caller of a request; raises `Denied` (401) if the request identifies no user."""


def as_owner(api: Api) -> Identify:
    """Identify every caller as the kubeconfig's user; only for a console on a loopback address."""
    return lambda request: Caller(api)


def by_token(api: Api) -> Identify:
    """Identify callers by their bearer token; `api` is a client without credentials (`Api.nameless`)."""

    def identify(request: Request) -> Caller:
        given = request.authorization
        if given is None or given.type != "bearer" or not given.token:
            raise Denied(HTTPStatus.UNAUTHORIZED, "no bearer token came with the request: sign in at the proxy before")
        return Caller(api.bearing(given.token))

    return identify


def networks(addresses: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """Parse addresses and networks. Raises `ValueError` naming the first invalid one."""
    return [ip_network(address) for address in addresses]


@dataclass(frozen=True)
class Proxy:
    """An authenticating proxy: how it proves its identity, and the headers that name the user.

    Attributes:
        secret: The secret that only the proxy and the console know.
        secret_header, user_header, groups_header: The headers with the secret, the user's name and the groups. Commas
            separate the groups; groups_header is "" if the proxy sends none.
        addresses: The addresses or networks that the proxy connects from.
    """

    secret: str
    secret_header: str
    user_header: str
    groups_header: str
    addresses: Sequence[str]


def by_header(api: Api, proxy: Proxy) -> Identify:
    """Identify callers by the proxy's headers, which count only with the secret and from the proxy's addresses.

    An address alone proves nothing: a user of kubectl port-forward also connects from 127.0.0.1. Raises `ValueError`
    for an invalid address.
    """
    known, secret = networks(proxy.addresses), proxy.secret.encode()

    def identify(request: Request) -> Caller:
        sender = ip_address(request.remote_addr or "0.0.0.0")  # noqa: S104 - nobody's address
        given = request.headers.get(proxy.secret_header, "").encode()
        if not (hmac.compare_digest(given, secret) and any(sender in network for network in known)):
            raise Denied(
                HTTPStatus.UNAUTHORIZED, f"{sender} is not the authenticating proxy: name it, or go through it"
            )
        user = request.headers.get(proxy.user_header, "")
        if not user:
            message = f"the proxy named nobody in {proxy.user_header}: sign in at the proxy"
            raise Denied(HTTPStatus.UNAUTHORIZED, message)
        groups = request.headers.get(proxy.groups_header, "") if proxy.groups_header else ""
        return Caller(api, user, tuple(group.strip() for group in groups.split(",") if group.strip()))

    return identify


def to_see(groups: Iterable[Group]) -> list[Right]:
    """Return the permissions for viewing the pages: to list nodes, and maintenances of every served API group."""
    return [NODES_LIST, *(_of("list", group) for group in groups)]


def to_start(group: Group, served: Iterable[Group]) -> list[Right]:
    """Return the permissions for starting a maintenance."""
    return [NODES_GET, _of("create", group), *(_of("list", each) for each in served)]


def to_stop(groups: Iterable[Group]) -> list[Right]:
    """Return the permissions for ending maintenances of these API groups."""
    return [_of("delete", group) for group in groups]


def to_read_mutex(kind: str) -> list[Right]:
    """Return the permission for a recorded object of the upgrade mutex; for a run, the one that its page needs."""
    return [RUNS_LIST if kind == RUN else Right("get", PLURALS[kind], MUTEX_GROUP)]


def to_replay(groups: Iterable[Group]) -> list[Right]:
    """Return the permissions for the current objects of a recording: nodes, pods, budgets and maintenances."""
    return [NODES_GET, PODS_GET, BUDGETS_GET, *(_of("get", group) for group in groups)]


def to_replay_a_run() -> list[Right]:
    """Return the additional permissions for a recording of the upgrade mutex."""
    return [Right("get", plural, MUTEX_GROUP) for plural in PLURALS.values()]


def _of(verb: str, group: Group) -> Right:
    return Right(verb, "nodemaintenances", group.api_version.split("/")[0])
