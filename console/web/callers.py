"""The caller of a request, and in whose name the console acts: one of three ways, chosen at its start.

- the kubeconfig's user, for a console that only this machine can reach;
- the owner of the bearer token that comes with the request: the API server judges every request;
- the user whom an authenticating proxy names in a header, beside a secret that only the two of them know: the console
  asks the API server what that user may do. Then it acts as that user where its account may impersonate him, else under
  its own account.

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

from kube.door.access_reviews import Right, may, refusal, whoami
from kube.door.api import Api
from kube.door.api_errors import Denied
from kube.door.concurrent_requests import together
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
"""What it takes to see the virtual machines of a node."""
AUTHENTICATED = "system:authenticated"
"""The group of everybody whom the API server knows, which no proxy names."""
SERVICE_ACCOUNT = "system:serviceaccount:"
"""What the names of ServiceAccounts begin with; the right to impersonate users does not cover these."""


@dataclass(frozen=True)
class Caller:
    """Somebody who asks.

    Attributes:
        api: the door that the caller came to; its owner is the caller, unless `user` names another.
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
        groups = (*self.groups, *({AUTHENTICATED} - {*self.groups}))
        for right in rights:
            if not await may(self.api, right, self.user, groups):
                raise refusal(await self.name(), right)

    async def door(self) -> Api:
        """Through which the caller acts: as himself where the console may impersonate him, else under its account.

        Where it may, the API server judges each request once more, and its audit log names the caller.
        """
        if not self.user or self.user.startswith(SERVICE_ACCOUNT):
            return self.api
        groups = [group for group in self.groups if group != AUTHENTICATED]  # the API server adds it by itself
        named = [Right("impersonate", "users", name=self.user)]
        named += [Right("impersonate", "groups", name=group) for group in groups]
        granted = await together(*(may(self.api, right) for right in named))
        return self.api.impersonating(self.user, groups) if all(granted) else self.api


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


@dataclass(frozen=True)
class Proxy:
    """An authenticating proxy: how it proves that it is the one, and where it names who asks.

    Attributes:
        secret: what only the proxy and the console know.
        secret_header, user_header, groups_header: the headers with the secret, the user's name and the groups, which
            are separated by commas; groups_header "" for none.
        addresses: those, or networks, that it asks from.
    """

    secret: str
    secret_header: str
    user_header: str
    groups_header: str
    addresses: Sequence[str]


def by_header(api: Api, proxy: Proxy) -> Identify:
    """Whom the proxy names. From any other address, or without the secret, its headers count for nothing.

    An address alone proves nothing: whoever may forward a port of the pod comes from 127.0.0.1, too. Raises
    `ValueError` for an address that is none.
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
    """What a caller must be allowed who sees the console's pages: nodes, and maintenances of every group served."""
    return [NODES_LIST, *(_of("list", group) for group in groups)]


def to_start(group: Group, served: Iterable[Group]) -> list[Right]:
    """What starting a maintenance needs."""
    return [NODES_GET, _of("create", group), *(_of("list", each) for each in served)]


def to_stop(groups: Iterable[Group]) -> list[Right]:
    """What ending maintenances of these groups needs."""
    return [_of("delete", group) for group in groups]


def to_read_mutex(kind: str) -> list[Right]:
    """What reading a recorded object of the upgrade mutex needs: of a run what its page does."""
    return [RUNS_LIST if kind == RUN else Right("get", PLURALS[kind], MUTEX_GROUP)]


def to_replay(groups: Iterable[Group]) -> list[Right]:
    """What looking at the objects of a recording needs: what became of nodes, pods, budgets and maintenances."""
    return [NODES_GET, PODS_GET, BUDGETS_GET, *(_of("get", group) for group in groups)]


def to_replay_a_run() -> list[Right]:
    """What it needs beside where the recording is of the upgrade mutex."""
    return [Right("get", plural, MUTEX_GROUP) for plural in PLURALS.values()]


def _of(verb: str, group: Group) -> Right:
    return Right(verb, "nodemaintenances", group.api_version.split("/")[0])
