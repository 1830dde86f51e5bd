"""A client of the API server: HTTP verbs on paths, plain dicts in and out, five errors.

Used asynchronously by the sources and the CLI, and through `cluster.Cluster` by the functions.
"""

from __future__ import annotations

import asyncio
import copy
import os
import ssl
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from multidict import CIMultiDict

from kube.door.api_errors import NotFound, Unavailable, error_of
from kube.door.config import (
    ConfigException,
    Configuration,
    Connections,
    NoContext,
    load_incluster_config,
    load_kube_config,
    proxy_of,
)
from kube.door.deadline import REQUEST_SECONDS, seconds_left
from kube.door.decoding import ANY, decoded, dropped, hear, lines
from kube.door.lean_aiohttp import aiohttp
from kube.paths import Object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Has a list answered without spec and status of its items (API concepts, "metadata-only fetches")."""
APPLY_PATCH = "application/apply-patch+yaml"
WATCH_SECONDS = 300
"""The server ends a watch after this long; the follower resumes where it ended."""
SILENCE_SECONDS = 150.0
"""A watch gets a bookmark about every minute; a connection that is silent for longer is dead."""
IMPERSONATE_USER, IMPERSONATE_GROUP = "Impersonate-User", "Impersonate-Group"
CONNECTIONS = 100
"""Evictions wait about 0.1 s each inside the server: many at a time hide it."""
SERVER_SETTINGS = (
    *("host", "verify_ssl", "ssl_ca_cert", "ca_cert_data", "disable_strict_ssl_verification"),
    *("assert_hostname", "tls_server_name", "proxy", "proxy_headers"),
)
"""The settings of a configuration that concern the server, and none that concern who asks."""


class Api:
    """Requests to one API server on one event loop. Keeps its connections warm; close it with `await api.close()`.

    At most `connections` are open at once, 0 for no limit; a request beyond that waits, and a watch waits for ever.
    """

    def __init__(self, configuration: Configuration, connections: int = CONNECTIONS) -> None:
        configuration.connection_pool_maxsize = connections
        configuration.client_session_kwargs = {"timeout": aiohttp.ClientTimeout(total=None), "trust_env": False}
        configuration.proxy = configuration.proxy or proxy_of(configuration.host)
        self._configuration = configuration
        self._dry_run = False
        self._rest = Connections(configuration)
        self._token = ""
        self._identity: MutableMapping[str, str] = {}

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        as_user: str = "",
        as_groups: Sequence[str] = (),
        *,
        connections: int = CONNECTIONS,
    ) -> Api:
        """An Api for `kubeconfig` (default: `$KUBECONFIG`, then the usual file), or the pod's own account in a cluster.

        It acts as `as_user` and a member of `as_groups`, if the owner of the credentials may impersonate them.
        As with kubectl, a pod's own account is for who names nothing: neither a file nor a context. Raises
        `Unavailable` naming the remedy when there is neither.
        """
        configuration = Configuration()
        wanted = kubeconfig or os.environ.get("KUBECONFIG")
        where = wanted or str(Path("~/.kube/config").expanduser())
        is_there = any(Path(file).is_file() for file in where.split(os.pathsep))
        try:
            if not (wanted or context or is_there) and os.environ.get("KUBERNETES_SERVICE_HOST"):
                load_incluster_config(client_configuration=configuration)
            elif not is_there:
                raise Unavailable(0, f"there is no kubeconfig at {where}: set KUBECONFIG")
            else:
                await load_kube_config(configuration, where, context)
            api = cls(configuration, connections)
        except NoContext as error:
            raise Unavailable(0, str(error)) from None
        except (ConfigException, ssl.SSLError) as error:
            reason = " ".join(str(error).split())
            raise Unavailable(0, f"no usable kubeconfig at {where}: {reason}; set KUBECONFIG") from None
        return api.impersonating(as_user, as_groups) if as_user else api

    async def nameless(self) -> Api:
        """The same server on connections of its own, which carry nobody's certificate, token or cookie.

        The start of `bearing`: a client certificate would speak before any token does.
        """
        bare = Configuration()
        for name in SERVER_SETTINGS:
            setattr(bare, name, getattr(self._configuration, name))
        other = Api(bare)
        bare.client_session_kwargs = {**(bare.client_session_kwargs or {}), "cookie_jar": aiohttp.DummyCookieJar()}
        return other

    def bearing(self, token: str) -> Api:
        """The same connections with the credentials of whoever owns `token`; the original closes them."""
        other = copy.copy(self)
        other._token = f"Bearer {token}"
        return other

    async def unverified(self) -> Api:
        """The same credentials on connections that verify no certificate; the original closes them."""
        other = copy.copy(self)
        other._rest = self._rest.unverified()
        return other

    def impersonating(self, user: str, groups: Sequence[str] = ()) -> Api:
        """The same connections, whose every request is made as this user and a member of these groups.

        The API server refuses it unless the owner of the credentials may impersonate them.
        """
        other = copy.copy(self)
        named = ((IMPERSONATE_USER, user), *((IMPERSONATE_GROUP, group) for group in groups))
        other._identity = CIMultiDict(named)  # a header for each group
        return other

    async def close(self) -> None:
        """Close all connections, those that are just being made or closed as well."""
        await self._rest.close()

    @property
    def is_dry_run(self) -> bool:
        """No write of it is kept."""
        return self._dry_run

    def dry_run(self) -> Api:
        """The same door, on the same connections, whose every write the API server checks and does not keep."""
        view = copy.copy(self)
        view._dry_run = True
        return view

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        decoder: msgspec.json.Decoder[Any] = ANY,
    ) -> Object:
        """One request. `path` starts with /api or /apis; returns the decoded answer, raises an `ApiError`."""
        if self._dry_run and method != "GET":
            query, body = _rehearsed(method, query, body)
        return decoded(await self._read(method, path, query, body, content_type, accept), decoder)

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """What is at `path` as it is: logs are no JSON. Raises as `request` does."""
        return await self._read("GET", path, query, None, JSON)

    async def _read(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str = JSON,
    ) -> bytes:
        try:
            response = await self._open(method, path, query, body, content_type, seconds_left(), accept)
            raw: bytes = await response.read()
            hear(response.response.headers.getall("Warning", ()))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable(0, f"no answer from the API server: {str(error) or type(error).__name__}") from error
        if response.status >= 400:
            raise error_of(response.status, decoded(raw), patch=content_type == JSON_PATCH)
        return raw

    async def get(self, path: str) -> Object:
        """The object at `path`, read from the store itself (never stale)."""
        return await self.request("GET", path)

    async def list(
        self,
        path: str,
        *,
        fields: str = "",
        labels: str = "",
        version: str | None = None,
        limit: int = 0,
        token: str = "",
        accept: str = JSON,
        decoder: msgspec.json.Decoder[Any] = ANY,
    ) -> Object:
        """The list at `path`, narrowed by field and label selectors; with `accept=METADATA` only metadata of its items.

        With a `decoder` of a type only the fields of that.

        `version` None asks for the newest state, for which a quiet server waits up to 0.1 s; "0" takes what the
        server's cache has; another version takes the cache once it is no older than that (API concepts,
        "resourceVersion in list requests"). With `limit` it is a page of so many; the page that follows has the one's
        `metadata.continue` for its `token`, and the version of the first (`paging` reads them all).
        """
        query = {"fieldSelector": fields, "labelSelector": labels, "limit": str(limit or ""), "continue": token}
        query["resourceVersion"] = "" if token else version or ""
        if query["resourceVersion"] not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        wanted = {key: value for key, value in query.items() if value}
        return await self.request("GET", path, query=wanted, accept=accept, decoder=decoder)

    async def create(self, path: str, body: Object) -> Object:
        """POST `body` to the collection or subresource at `path`."""
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Object:
        """PATCH by merge, or with `content_type=JSON_PATCH` by a list of operations."""
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(
        self, path: str, *, uid: str, version: str = "", options: Mapping[str, object] | None = None
    ) -> Object:
        """DELETE the object at `path` if it is still the one with `uid`; `Conflict` when it is another.

        With `version` also when somebody has written it since. `options` are more fields of `DeleteOptions`.
        """
        preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        return await self.request("DELETE", path, body={"preconditions": preconditions, **(options or {})})

    async def watch(
        self, path: str, *, version: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after `version` as (ADDED | MODIFIED | DELETED | BOOKMARK, object), until the server ends the watch.

        With version "" what is there in the newest state comes first, and a bookmark behind it that says so.
        Raises `NotFound` (410) when `version` is too old, `Unavailable` when the connection breaks.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            **({} if version else {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}),
            "timeoutSeconds": str(WATCH_SECONDS),
            "fieldSelector": fields,
            "labelSelector": labels,
        }
        wanted = {key: value for key, value in query.items() if value}
        try:
            response = await self._open("GET", path, wanted, None, JSON, None)
            with dropped(response.response):  # whoever stops watching must not keep the connection
                if response.status >= 400:
                    raise error_of(response.status, decoded(await response.read()))
                async for line in lines(response.response):
                    change = ANY.decode(line)
                    if change["type"] == "ERROR":
                        raise error_of(int(change["object"].get("code") or 500), change["object"])
                    yield change["type"], change["object"]
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable(0, f"the watch on {path} broke: {str(error) or type(error).__name__}") from error

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        seconds: float | None,
        accept: str = JSON,
    ) -> Any:
        headers = copy.copy(self._identity)
        headers.update({"Accept": accept, "Content-Type": content_type, "User-Agent": "nodemaintenance"})
        token = self._token or await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
        return await self._rest.request(method, url, headers=headers, body=body, _request_timeout=timeout)


def _rehearsed(method: str, query: Mapping[str, str] | None, body: Any) -> tuple[Mapping[str, str], Any]:
    """Query and body of a write that must not be kept. A DELETE with a body takes its options from there alone."""
    options = {**(body or {}), "dryRun": ["All"]} if method == "DELETE" else body
    return {**(query or {}), "dryRun": "All"}, options


async def absent_ok(call: Any) -> Object | None:
    """The result of an awaitable request, or None when it raises `NotFound`."""
    try:
        result: Object = await call
    except NotFound:
        return None
    return result
