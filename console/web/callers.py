"""Identifies the caller of a request, and selects the identity that the console acts under.

The console starts in one of three modes:

- On a loopback address without a proxy, every caller acts as the kubeconfig's user.

- On any other address without a proxy, each request carries a bearer token. The caller is the token's owner, and the
  API server authorizes every request.

- With an authenticating proxy, a header names the user. The proxy also sends a secret that only it and the console
  know. The console asks the API server what the user may do. It then impersonates the user if its account may do so;
  otherwise it acts under its own account.

Touches: subjectaccessreviews create; nodes get; pods get, list; poddisruptionbudgets get;
nodemaintenances get, list, create, patch, delete; requesters assert;
mutexrunconfigs get, list; mutexrules get; mutextargets get; virtualmachines get; virtualmachineinstances get;
virtualmachineinstancemigrations list; kubevirts list; configmaps list; hyperconvergeds list.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address, ip_network

from flask import Request

from console.operations.drain_preview import NodeVmis, read_vmis
from kube.client.access_reviews import Permission, build_forbidden_error, is_allowed, whoami
from kube.client.api import Api, gather_all
from kube.client.api_errors import Denied
from kube.maintenance.groups import MEDIK8S, ApiGroup
from kube.mutex.objects import API_PATH, PLURALS, RUN_KIND

NEW_MAINTENANCE_GROUP = MEDIK8S
"""API group of new maintenances, the same as the default of `kubectl maintenance start`."""
LIST_NODES = Permission("list", "nodes")
GET_NODES = Permission("get", "nodes")
GET_PODS = Permission("get", "pods")
GET_BUDGETS = Permission("get", "poddisruptionbudgets", "policy")
MUTEX_GROUP = API_PATH.split("/")[2]
LIST_RUNS = Permission("list", PLURALS[RUN_KIND], MUTEX_GROUP)
READ_VMS = (
    Permission("list", "pods"),
    *(Permission("get", kind, "kubevirt.io") for kind in ("virtualmachineinstances", "virtualmachines")),
    *(Permission("list", kind, "kubevirt.io") for kind in ("virtualmachineinstancemigrations", "kubevirts")),
)
"""Permissions to read the virtual machines on a node."""
LIST_CERTIFICATES = (Permission("list", "configmaps"),)
"""Permissions to list the certificates, which the renewal function publishes in ConfigMaps."""
READ_CPU_LABELS = (
    *(LIST_NODES, Permission("list", "configmaps")),
    *(Permission("list", "hyperconvergeds", "hco.kubevirt.io"), Permission("list", "kubevirts", "kubevirt.io")),
)
"""Permissions to read the CPU labels of all nodes, and what determines them."""
AUTHENTICATED_GROUP = "system:authenticated"
"""Group of all users that the API server authenticates; the proxy does not send it."""
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
"""Prefix of ServiceAccount user names, which the permission to impersonate users does not cover."""


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        api: The API client for the request; its credentials are the caller's unless `user` is set.
        user, groups: User and groups that the proxy sent; empty if the API server derives them from the credentials.
    """

    api: Api
    user: str = ""
    groups: tuple[str, ...] = ()

    async def get_name(self) -> str:
        """Return the user name."""
        return self.user or await whoami(self.api)

    async def require(self, permissions: Iterable[Permission]) -> None:
        """Raise `Denied`, naming the first missing permission, unless the caller has all these permissions."""
        groups = (*self.groups, *({AUTHENTICATED_GROUP} - {*self.groups}))
        for permission in permissions:
            if not await is_allowed(self.api, permission, self.user, groups):
                raise build_forbidden_error(await self.get_name(), permission)

    async def get_api(self) -> Api:
        """Return the client that acts for the caller: impersonating the caller if allowed, otherwise the console's own.

        With impersonation, the API server authorizes each request again, and its audit log names the caller.
        """
        if not self.user or self.user.startswith(SERVICE_ACCOUNT_PREFIX):
            return self.api
        groups = [group for group in self.groups if group != AUTHENTICATED_GROUP]  # The API server adds this group.
        required = [Permission("impersonate", "users", name=self.user)]
        required += [Permission("impersonate", "groups", name=group) for group in groups]
        allowed = await gather_all(*(is_allowed(self.api, permission) for permission in required))
        return self.api.with_impersonation(self.user, groups) if all(allowed) else self.api

    async def read_vmis(self, node: str) -> NodeVmis:
        """Return the node's virtual machines that the caller may see, or the missing permission as `error`."""
        try:
            await self.require(READ_VMS)
        except Denied as error:
            return NodeVmis([], f'cannot show the virtual machines of node "{node}": {error.message}')
        return await read_vmis(await self.get_api(), node)


IdentifyCaller = Callable[[Request], Caller]
"""Returns the caller of a request; raises `Denied` (401) if the request identifies no user."""


def identify_by_kubeconfig(api: Api) -> IdentifyCaller:
    """Identify every caller as the kubeconfig's user; only for a console on a loopback address."""
    return lambda request: Caller(api)


def identify_by_token(api: Api) -> IdentifyCaller:
    """Identify callers by their bearer token; `api` is a client without credentials (`Api.create_anonymous`)."""

    def identify(request: Request) -> Caller:
        authorization = request.authorization
        if authorization is None or authorization.type != "bearer" or not authorization.token:
            raise Denied(HTTPStatus.UNAUTHORIZED, "the request has no bearer token: sign in at the proxy first")
        return Caller(api.with_token(authorization.token))

    return identify


@dataclass(frozen=True)
class AuthenticatingProxy:
    """An authenticating proxy: how it proves its identity, and the headers that identify the user.

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


def identify_by_header(api: Api, proxy: AuthenticatingProxy) -> IdentifyCaller:
    """Identify callers by the proxy's headers, which are trusted only with the secret and from the proxy's addresses.

    An address alone proves nothing: a user of kubectl port-forward also connects from 127.0.0.1. Raises `ValueError`
    if an address is invalid.
    """
    proxy_networks, secret = list(map(ip_network, proxy.addresses)), proxy.secret.encode()

    def identify(request: Request) -> Caller:
        sender = ip_address(request.remote_addr or "0.0.0.0")  # noqa: S104 - no client has this address
        sent_secret = request.headers.get(proxy.secret_header, "").encode()
        if not (hmac.compare_digest(sent_secret, secret) and any(sender in network for network in proxy_networks)):
            message = f"the request from {sender} does not come from the authenticating proxy"
            remedy = "connect through the proxy, or check the console's --proxy and --proxy-secret"
            raise Denied(HTTPStatus.UNAUTHORIZED, f"{message}: {remedy}")
        user = request.headers.get(proxy.user_header, "")
        if not user:
            message = f"the proxy sent no user in the header {proxy.user_header}: sign in at the proxy"
            raise Denied(HTTPStatus.UNAUTHORIZED, message)
        groups = request.headers.get(proxy.groups_header, "") if proxy.groups_header else ""
        return Caller(api, user, tuple(group.strip() for group in groups.split(",") if group.strip()))

    return identify


def list_view_rights(groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions to view the pages: list nodes, and list maintenances of every served API group."""
    return [LIST_NODES, *list_maintenance_rights("list", groups)]


def list_start_rights(served_groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions to start a maintenance."""
    return [
        GET_NODES,
        *list_maintenance_rights("create", [NEW_MAINTENANCE_GROUP]),
        *list_maintenance_rights("list", served_groups),
    ]


def list_replay_rights(served_groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions to read the current state of a maintenance, and of its node, pods and budgets."""
    return [GET_NODES, GET_PODS, GET_BUDGETS, *list_maintenance_rights("get", served_groups)]


def list_run_replay_rights() -> list[Permission]:
    """Return the permissions to read the current state of all kinds of the upgrade mutex."""
    return [Permission("get", plural, MUTEX_GROUP) for plural in PLURALS.values()]


def list_mutex_read_rights(kind: str) -> list[Permission]:
    """Return the permission to read an object of this upgrade-mutex kind; for runs, it is the permission to list."""
    return [LIST_RUNS if kind == RUN_KIND else Permission("get", PLURALS[kind], MUTEX_GROUP)]


def list_maintenance_rights(verb: str, groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions for this verb on the maintenances of these API groups."""
    return [Permission(verb, "nodemaintenances", group.api_version.split("/")[0]) for group in groups]
