"""Identifies the caller of an HTTP request, and selects the credentials with which the console acts for the caller.

The console runs in one of three modes:

- On a loopback address without a proxy, every caller acts as the kubeconfig's user.

- On any other address without a proxy, each request must contain a bearer token. The console uses the token, so the
  API server authenticates the caller and authorizes every request.

- Behind an authenticating proxy, a header names the user. The proxy also sends a secret that only the proxy and the
  console know. The console checks the user's permissions with SubjectAccessReviews. It then impersonates the user if
  its own account is allowed to; otherwise it acts under its own account.

Touches: subjectaccessreviews create; nodes get; pods get, list; poddisruptionbudgets get, list; daemonsets get;
deployments get; replicasets get; statefulsets get;
nodemaintenances get, list, create, patch, delete; requesters assert;
mutexrunconfigs get, list; mutexrules get; mutextargets get; virtualmachines get; virtualmachineinstances get;
virtualmachineinstancemigrations list; kubevirts list; configmaps list; hyperconvergeds list.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address, ip_network

from flask import Request

from console.operations.budget_hints import SCALABLE_KINDS, read_scale_commands
from console.operations.node_vmis import NodeVmis, read_vmis
from kube.client.access_reviews import Permission, build_forbidden_error, is_allowed, whoami
from kube.client.api import Api, gather_all
from kube.client.api_errors import Denied
from kube.maintenance.blocked_groups import BlockedGroup
from kube.maintenance.groups import MEDIK8S, ApiGroup
from kube.mutex.objects import API_PATH, PLURALS, RUN_KIND

NEW_MAINTENANCE_GROUP = MEDIK8S
"""API group of new maintenances, equal to the default of `kubectl maintenance start`."""
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
READ_WORKLOADS = (
    *(GET_PODS, GET_BUDGETS),
    *(Permission("get", plural, "apps") for plural in SCALABLE_KINDS.values()),
)
"""Permissions to read the workloads of blocked pods, and the PodDisruptionBudgets that block the pods."""
LIST_CERTIFICATES = (Permission("list", "configmaps"),)
"""Permissions to list the certificates, which `renew-certificates` publishes in ConfigMaps."""
READ_CPU_LABELS = (
    *(LIST_NODES, Permission("list", "configmaps")),
    *(Permission("list", "hyperconvergeds", "hco.kubevirt.io"), Permission("list", "kubevirts", "kubevirt.io")),
)
"""Permissions to read the nodes' CPU labels, and the objects that determine the labels."""
PREVIEW_RIGHTS = (
    Permission("list", "pods"),
    Permission("list", "poddisruptionbudgets", "policy"),
    Permission("get", "daemonsets", "apps"),
)
"""Permissions to preview a maintenance, without its virtual machines."""
AUTHENTICATED_GROUP = "system:authenticated"
"""Group to which the API server adds all authenticated users; the proxy does not send it."""
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
"""Prefix of ServiceAccounts' user names, which the permission to impersonate users does not cover."""


@dataclass(frozen=True)
class ActionDenials:
    """Why a caller may not start or stop a maintenance: the title of the disabled action, "" if it is permitted.

    All callers with the same permissions have equal instances, and share the rendered parts of a page.
    """

    start: str = ""
    stop: str = ""


@dataclass(frozen=True)
class Caller:
    """The caller of an HTTP request.

    Attributes:
        api: The API client; it has the caller's credentials, or, if `user` is set, the console's own.
        user, groups: User and groups in the proxy's headers; empty if the API server derives them from the credentials.
    """

    api: Api
    user: str = ""
    groups: tuple[str, ...] = ()

    async def get_name(self) -> str:
        """Return the caller's user name."""
        return self.user or await whoami(self.api)

    async def require(self, permissions: Iterable[Permission]) -> None:
        """Raise a `Denied` that names the first missing permission, unless the caller has all these permissions."""
        if missing := await self._find_missing(permissions):
            raise build_forbidden_error(await self.get_name(), missing)

    async def explain_denial(self, permissions: Iterable[Permission]) -> str:
        """Return the title of a disabled action, which names the missing permission; "" if none of these is missing."""
        missing = await self._find_missing(permissions)
        return f"You cannot {missing.describe()}: ask for the ClusterRole maintenance-operator" if missing else ""

    async def explain_action_denials(self, served_groups: Sequence[ApiGroup]) -> ActionDenials:
        """Return which actions on maintenances a caller who may view the pages may not use.

        The permission to delete the maintenances of one API group is sufficient to stop maintenances of this group.
        """
        start, *stops = await gather_all(
            self.explain_denial(list_start_rights([])),
            *(self.explain_denial(list_maintenance_rights("delete", [group])) for group in served_groups),
        )
        return ActionDenials(start, stops[0] if all(stops) else "")

    async def _find_missing(self, permissions: Iterable[Permission]) -> Permission | None:
        """Return the first of these permissions that the caller lacks, None if the caller has all of them."""
        checked = list(permissions)
        groups = (*self.groups, *({AUTHENTICATED_GROUP} - {*self.groups}))
        allowed = await gather_all(*(is_allowed(self.api, permission, self.user, groups) for permission in checked))
        return next((permission for permission, has in zip(checked, allowed, strict=True) if not has), None)

    async def get_api(self) -> Api:
        """Return an API client that acts for the caller; it impersonates the proxy's user if the console may do so.

        With impersonation, the API server authorizes each request again, and its audit log contains the user.
        """
        if not self.user or self.user.startswith(SERVICE_ACCOUNT_PREFIX):
            return self.api
        groups = [group for group in self.groups if group != AUTHENTICATED_GROUP]  # The API server itself adds it.
        required = [Permission("impersonate", "users", name=self.user)]
        required += [Permission("impersonate", "groups", name=group) for group in groups]
        allowed = await gather_all(*(is_allowed(self.api, permission) for permission in required))
        return self.api.with_impersonation(self.user, groups) if all(allowed) else self.api

    async def read_vmis(self, node: str) -> NodeVmis:
        """Read the node's virtual machines, or return the missing permission as `error` if the caller may not."""
        try:
            await self.require(READ_VMS)
        except Denied as error:
            return NodeVmis([], f'cannot show the virtual machines of node "{node}": {error.message}')
        return await read_vmis(await self.get_api(), node)

    async def read_scale_commands(self, groups: Collection[BlockedGroup]) -> dict[str, str]:
        """Return the commands that `read_scale_commands` finds, or none if the caller may not read all workloads."""
        try:
            await self.require(READ_WORKLOADS)
        except Denied:
            return {}
        return await read_scale_commands(await self.get_api(), groups)


IdentifyCaller = Callable[[Request], Caller]
"""Function that returns the caller of an HTTP request. Raises `Denied` (401) if the request identifies no user."""


def identify_by_kubeconfig(api: Api) -> IdentifyCaller:
    """Build a function that identifies every caller as the kubeconfig's user, for a console on a loopback address."""
    return lambda request: Caller(api)


def identify_by_token(api: Api) -> IdentifyCaller:
    """Build a function that identifies callers by their bearer token; `api` is a client without credentials."""

    def identify(request: Request) -> Caller:
        authorization = request.authorization
        if authorization is None or authorization.type != "bearer" or not authorization.token:
            raise Denied(HTTPStatus.UNAUTHORIZED, "the request has no bearer token: sign in at the proxy first")
        return Caller(api.with_token(authorization.token))

    return identify


@dataclass(frozen=True)
class AuthenticatingProxy:
    """Settings of the authenticating proxy: how it proves its identity, and the headers that identify the user.

    Attributes:
        secret: The secret that only the proxy and the console know.
        secret_header, user_header, groups_header: Names of the headers with the secret, the user's name, and the
            comma-separated list of groups; `groups_header` is "" if the proxy sends no groups.
        addresses: The addresses or networks from which the proxy connects.
    """

    secret: str
    secret_header: str
    user_header: str
    groups_header: str
    addresses: Sequence[str]


def identify_by_header(api: Api, proxy: AuthenticatingProxy) -> IdentifyCaller:
    """Build a function that identifies callers by the authenticating proxy's headers.

    The function trusts the headers only with the secret and from the proxy's addresses. The address alone would prove
    nothing, because a user of kubectl port-forward also connects from 127.0.0.1. Raises `ValueError` if an address is
    invalid.
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
    """Return the permissions to view the pages: to list nodes, and maintenances of these API groups."""
    return [LIST_NODES, *list_maintenance_rights("list", groups)]


def list_start_rights(served_groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions to start a maintenance from the console."""
    return [
        GET_NODES,
        *list_maintenance_rights("create", [NEW_MAINTENANCE_GROUP]),
        *list_maintenance_rights("list", served_groups),
    ]


def list_replay_rights(served_groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions for a replay: to start a maintenance, and to read maintenances, pods and budgets."""
    get_rights = list_maintenance_rights("get", served_groups)
    return [*list_start_rights(served_groups), GET_PODS, GET_BUDGETS, *get_rights]


def list_run_replay_rights() -> list[Permission]:
    """Return the permissions for a replay of an upgrade run's events, to read all kinds of the upgrade mutex."""
    return [Permission("get", plural, MUTEX_GROUP) for plural in PLURALS.values()]


def list_mutex_read_rights(kind: str) -> list[Permission]:
    """Return the permission to read an object of this upgrade-mutex kind; for MutexRunConfigs, it is `list`."""
    return [LIST_RUNS if kind == RUN_KIND else Permission("get", PLURALS[kind], MUTEX_GROUP)]


def list_maintenance_rights(verb: str, groups: Iterable[ApiGroup]) -> list[Permission]:
    """Return the permissions to use `verb` on the NodeMaintenances of these API groups."""
    return [Permission(verb, "nodemaintenances", group.api_version.split("/")[0]) for group in groups]
