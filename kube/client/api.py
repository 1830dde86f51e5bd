"""Asynchronous API client: HTTP verbs on paths, plain dicts as input and output, five error classes.

The event sources and the CLI use it directly; the functions use it through `sync_client.Cluster`.
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

from kube.client.api_errors import NotFound, Unavailable, error_of
from kube.client.config import (
    ConfigException,
    Configuration,
    Connections,
    NoContext,
    load_incluster_config,
    load_kube_config,
    proxy_of,
)
from kube.client.deadline import REQUEST_SECONDS, seconds_left
from kube.client.decoding import ANY, decoded, dropped, hear, lines
from kube.client.lazy_aiohttp import aiohttp
from kube.paths import Object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accept header for a list without spec and status of its items (API concepts, "metadata-only fetches")."""
APPLY_PATCH = "application/apply-patch+yaml"
WATCH_SECONDS = 300
"""The API server ends a watch after this time; `list_watch` then starts another one where it ended."""
SILENCE_SECONDS = 150.0
"""Read timeout: a watch gets a bookmark about every minute, so a longer silence means a dead connection."""
IMPERSONATE_USER, IMPERSONATE_GROUP = "Impersonate-User", "Impersonate-Group"
CONNECTIONS = 100
"""Maximum connections: each eviction waits about 0.1 s in the API server, so many must run concurrently."""
SERVER_SETTINGS = (
    *("host", "verify_ssl", "ssl_ca_cert", "ca_cert_data", "disable_strict_ssl_verification"),
    *("assert_hostname", "tls_server_name", "proxy", "proxy_headers"),
)
"""The settings of a configuration that describe the server, without any that hold credentials."""


class Api:
    """Client of one API server on one event loop, with a connection pool; close it with `await api.close()`.

    At most `connections` are open at the same time, 0 for no limit. Above the limit, requests wait for a free
    connection within their timeout, and watches wait without a timeout.
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
        """Return a client for a kubeconfig, or for the pod's ServiceAccount inside a cluster.

        The kubeconfig is `kubeconfig`, else `$KUBECONFIG`, else the default file. As with kubectl, the ServiceAccount
        is used only if the caller names neither a file nor a context and the default file does not exist. With
        `as_user`, the client impersonates that user and `as_groups`, which the credentials must permit. Raises
        `Unavailable` with the remedy if no configuration is usable.
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
        """Return a client of the same server with separate connections and without certificate, token or cookies.

        `bearing` needs such a client: the API server would prefer a client certificate to the token.
        """
        bare = Configuration()
        for name in SERVER_SETTINGS:
            setattr(bare, name, getattr(self._configuration, name))
        other = Api(bare)
        bare.client_session_kwargs = {**(bare.client_session_kwargs or {}), "cookie_jar": aiohttp.DummyCookieJar()}
        return other

    def bearing(self, token: str) -> Api:
        """Return a client on the same connections that authenticates with `token`; only the original closes them."""
        other = copy.copy(self)
        other._token = f"Bearer {token}"
        return other

    async def unverified(self) -> Api:
        """Return a client with the same credentials that does not verify the server's certificate.

        Closing the original client also closes the connections of this one.
        """
        other = copy.copy(self)
        other._rest = self._rest.unverified()
        return other

    def impersonating(self, user: str, groups: Sequence[str] = ()) -> Api:
        """Return a client on the same connections that impersonates a user and groups in every request.

        The API server denies such requests unless the owner of the credentials may impersonate them.
        """
        other = copy.copy(self)
        named = ((IMPERSONATE_USER, user), *((IMPERSONATE_GROUP, group) for group in groups))
        other._identity = CIMultiDict(named)  # one header per group
        return other

    async def close(self) -> None:
        """Close all connections, including those that are currently opening or closing."""
        await self._rest.close()

    @property
    def is_dry_run(self) -> bool:
        """Return whether the API server discards all writes of this client."""
        return self._dry_run

    def dry_run(self) -> Api:
        """Return a client on the same connections whose writes the API server only validates."""
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
        """Send one request, and return the decoded response. Raises `ApiError`.

        `path` starts with /api or /apis.
        """
        if self._dry_run and method != "GET":
            query, body = _rehearsed(method, query, body)
        return decoded(await self._read(method, path, query, body, content_type, accept), decoder)

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Return the response body at `path` undecoded, for example a log. Raises the same errors as `request`."""
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
        """Return the object at `path` in its newest state, not from the API server's cache."""
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
        """Return the list at `path`, narrowed by field and label selectors.

        `accept=METADATA` returns only the items' metadata, and a typed `decoder` only the fields of its type.

        `version` None asks for the newest state, for which an idle API server waits up to 0.1 s. Version "0" accepts
        any state of the server's cache. Another version accepts the cache if it is at least that new (API concepts,
        "resourceVersion in list requests").

        With `limit`, the result is a page of at most that many items. The `token` of the next page is the
        `metadata.continue` of this one, and all pages show the state of the first. `paging` reads all pages.
        """
        query = {"fieldSelector": fields, "labelSelector": labels, "limit": str(limit or ""), "continue": token}
        query["resourceVersion"] = "" if token else version or ""
        if query["resourceVersion"] not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        wanted = {key: value for key, value in query.items() if value}
        return await self.request("GET", path, query=wanted, accept=accept, decoder=decoder)

    async def create(self, path: str, body: Object) -> Object:
        """Send `body` as a POST to the collection or subresource at `path`."""
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Object:
        """Send a merge patch, or with `content_type=JSON_PATCH` a list of operations."""
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(
        self, path: str, *, uid: str, version: str = "", options: Mapping[str, object] | None = None
    ) -> Object:
        """Delete the object at `path` if it has this `uid`; otherwise raise `Conflict`.

        With `version`, also raise `Conflict` if the object has changed since. `options` are additional fields of
        `DeleteOptions`.
        """
        preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        return await self.request("DELETE", path, body={"preconditions": preconditions, **(options or {})})

    async def watch(
        self, path: str, *, version: str, fields: str = "", labels: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield changes after `version` as (ADDED | MODIFIED | DELETED | BOOKMARK, object) until the watch ends.

        With version "", first yield the existing objects in their newest state, followed by a bookmark that marks their
        end. Raises `NotFound` (410) if `version` is too old, and `Unavailable` if the connection breaks.
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
            with dropped(response.response):  # free the connection when the caller stops watching
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
    """Return the query and body of a dry-run write.

    For a DELETE with a body, the API server reads its options only from the body.
    """
    options = {**(body or {}), "dryRun": ["All"]} if method == "DELETE" else body
    return {**(query or {}), "dryRun": "All"}, options


async def absent_ok(call: Any) -> Object | None:
    """Return the result of an awaitable request, or None if it raises `NotFound`."""
    try:
        result: Object = await call
    except NotFound:
        return None
    return result
