"""Asynchronous API client: sends HTTP requests, with plain dicts as bodies, and raises five classes of errors.

The event sources and the CLI use it directly; the functions use it through `sync_client.SyncClient`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict

from kube.client.api_errors import NotFound, Unavailable, build_api_error
from kube.client.config import (
    ConfigException,
    Configuration,
    ContextNotFound,
    RestClient,
    find_proxy,
    load_incluster_config,
    load_kube_config,
)
from kube.client.deadline import REQUEST_TIMEOUT_SECONDS, get_seconds_left
from kube.client.decoding import ANY_DECODER, abort_on_exit, decode_response, iterate_lines, record_warnings
from kube.paths import Object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
"""Content type of a patch that merges lists by key, such as conditions by type; only for built-in kinds."""
JSON = "application/json"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""`Accept` header for a list of the items' metadata only (Kubernetes API concepts, "metadata-only fetches")."""
APPLY_PATCH = "application/apply-patch+yaml"
WATCH_TIMEOUT_SECONDS = 300
"""Time after which the API server ends a watch; `list_watch` then resumes with a new watch."""
SOCKET_READ_TIMEOUT_SECONDS = 150.0
"""Read timeout: a watch receives a bookmark about every minute, so a longer silence means a dead connection."""
IMPERSONATE_USER, IMPERSONATE_GROUP = "Impersonate-User", "Impersonate-Group"
MAX_CONNECTIONS = 100
"""Maximum number of connections; an eviction takes about 0.1 s in the API server, so many must run concurrently."""
SERVER_SETTINGS = (
    *("host", "verify_ssl", "ssl_ca_cert", "ca_cert_data", "disable_strict_ssl_verification"),
    *("assert_hostname", "tls_server_name", "proxy", "proxy_headers"),
)
"""Configuration settings that describe the server and contain no credentials."""


class Api:
    """Client of one API server, for one event loop, with a connection pool; close it with `await api.close()`.

    At most `max_connections` are open at the same time; 0 means no limit. At the limit, a request waits for a free
    connection until its timeout, and a watch waits without a timeout.
    """

    def __init__(self, configuration: Configuration, max_connections: int = MAX_CONNECTIONS) -> None:
        configuration.connection_pool_maxsize = max_connections
        configuration.client_session_kwargs = {"timeout": aiohttp.ClientTimeout(total=None), "trust_env": False}
        configuration.proxy = configuration.proxy or find_proxy(configuration.host)
        self._configuration = configuration
        self._dry_run = False
        self._rest_client = RestClient(configuration)
        self._authorization = ""
        self._extra_headers: MutableMapping[str, str] = {}

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        as_user: str = "",
        as_groups: Sequence[str] = (),
        *,
        max_connections: int = MAX_CONNECTIONS,
    ) -> Api:
        """Create a client for a kubeconfig, or for the pod's ServiceAccount inside a cluster.

        The kubeconfig is `kubeconfig`, else `$KUBECONFIG`, else the default file. As with kubectl, the ServiceAccount
        is used only if the caller names neither a file nor a context and the default file does not exist. With
        `as_user`, the client impersonates that user and the groups `as_groups`, which the credentials must permit.
        Raises `Unavailable` with the remedy if no configuration is usable.
        """
        configuration = Configuration()
        chosen_path = kubeconfig or os.environ.get("KUBECONFIG")
        remedy = f"correct {'--kubeconfig' if kubeconfig else 'KUBECONFIG'}" if chosen_path else "set KUBECONFIG"
        path = chosen_path or str(Path("~/.kube/config").expanduser())
        file_exists = any(Path(file).is_file() for file in path.split(os.pathsep))
        try:
            if not (chosen_path or context or file_exists) and os.environ.get("KUBERNETES_SERVICE_HOST"):
                load_incluster_config(client_configuration=configuration)
            elif not file_exists:
                raise Unavailable(0, f"kubeconfig {path} not found: {remedy}")
            else:
                await load_kube_config(configuration, path, context)
            api = cls(configuration, max_connections)
        except ContextNotFound as error:
            raise Unavailable(0, str(error)) from None
        except (ConfigException, ssl.SSLError) as error:
            reason = " ".join(str(error).split())
            raise Unavailable(0, f"no usable kubeconfig at {path}: {reason}; {remedy}") from None
        return api.with_impersonation(as_user, as_groups) if as_user else api

    async def create_anonymous(self) -> Api:
        """Create a client of the same server with its own connections and without certificate, token or cookies.

        Use it with `with_token`, because the API server prefers a client certificate to a token.
        """
        configuration = Configuration()
        for name in SERVER_SETTINGS:
            setattr(configuration, name, getattr(self._configuration, name))
        anonymous = Api(configuration)
        configuration.client_session_kwargs = {
            **(configuration.client_session_kwargs or {}),
            "cookie_jar": aiohttp.DummyCookieJar(),
        }
        return anonymous

    def with_token(self, token: str) -> Api:
        """Return a client on the same connections that authenticates with `token`; only the original closes them."""
        other = copy.copy(self)
        other._authorization = f"Bearer {token}"
        return other

    async def without_verification(self) -> Api:
        """Return a client with the same credentials that does not verify the server's certificate.

        Closing the original client also closes the connections of this one.
        """
        other = copy.copy(self)
        other._rest_client = self._rest_client.get_unverified_client()
        return other

    def with_impersonation(self, user: str, groups: Sequence[str] = ()) -> Api:
        """Return a client on the same connections that impersonates a user and groups in every request.

        The API server denies such requests unless the credentials' user may impersonate them.
        """
        other = copy.copy(self)
        headers = ((IMPERSONATE_USER, user), *((IMPERSONATE_GROUP, group) for group in groups))
        other._extra_headers = CIMultiDict(headers)  # one header per group
        return other

    def with_header(self, name: str, value: str) -> Api:
        """Return a client on the same connections that adds a header to every request, for a reverse proxy."""
        other = copy.copy(self)
        other._extra_headers = CIMultiDict(self._extra_headers)
        other._extra_headers[name] = value
        return other

    async def close(self) -> None:
        """Close all connections, including those that are still opening or closing."""
        await self._rest_client.close()

    @property
    def is_dry_run(self) -> bool:
        """Return whether this client's writes are dry runs, which the API server validates but does not store."""
        return self._dry_run

    def with_dry_run(self) -> Api:
        """Return a client on the same connections whose writes are dry runs: validated but not stored."""
        other = copy.copy(self)
        other._dry_run = True
        return other

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        decoder: msgspec.json.Decoder[Any] = ANY_DECODER,
    ) -> Object:
        """Send one request, and return the decoded response. Raises `ApiError`.

        `path` must start with /api or /apis.
        """
        if self._dry_run and method != "GET":
            query, body = _add_dry_run(method, query, body)
        return decode_response(await self._request_raw(method, path, query, body, content_type, accept), decoder)

    async def get_raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Return the undecoded response body at `path`, for example a log. Raises the same errors as `request`."""
        return await self._request_raw("GET", path, query, None, JSON)

    async def _request_raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str = JSON,
    ) -> bytes:
        try:
            response = await self._send(method, path, query, body, content_type, get_seconds_left(), accept)
            raw: bytes = await response.read()
            record_warnings(response.response.headers.getall("Warning", ()))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable(0, f"no response from the API server: {str(error) or type(error).__name__}") from error
        if response.status >= 400:
            raise build_api_error(response.status, decode_response(raw), is_json_patch=content_type == JSON_PATCH)
        return raw

    async def get(self, path: str) -> Object:
        """Return the latest state of the object at `path`, never a state from the API server's cache."""
        return await self.request("GET", path)

    async def list(
        self,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str | None = None,
        limit: int = 0,
        continue_token: str = "",
        accept: str = JSON,
        decoder: msgspec.json.Decoder[Any] = ANY_DECODER,
    ) -> Object:
        """Return the list at `path`, filtered by field and label selectors.

        With `accept=METADATA_ONLY`, the items contain only metadata; with a typed `decoder`, only the fields of its
        type.

        `resource_version=None` requests the latest state, for which an idle API server may wait up to 0.1 s. "0"
        accepts any state in the server's cache. Another version accepts the cache if it is at least that new
        (Kubernetes API concepts, "resourceVersion in list requests").

        With `limit`, the result is a page of at most that many items. The `continue_token` of the next page is this
        page's `metadata.continue`, and all pages show the same state as the first. The `paging` module reads all pages.
        """
        query = {
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
            "limit": str(limit or ""),
            "continue": continue_token,
        }
        query["resourceVersion"] = "" if continue_token else resource_version or ""
        if query["resourceVersion"] not in ("", "0"):
            query["resourceVersionMatch"] = "NotOlderThan"
        parameters = {key: value for key, value in query.items() if value}
        return await self.request("GET", path, query=parameters, accept=accept, decoder=decoder)

    async def create(self, path: str, body: Object) -> Object:
        """Send `body` in a POST request to the collection or subresource at `path`."""
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Object:
        """Send a patch in the format of `content_type`; with `JSON_PATCH`, the body is a list of operations."""
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(
        self, path: str, *, uid: str, resource_version: str = "", options: Mapping[str, object] | None = None
    ) -> Object:
        """Delete the object at `path` if it has this `uid`; otherwise raise `Conflict`.

        With `resource_version`, also raise `Conflict` if the object has a different version. `options` are additional
        fields of `DeleteOptions`.
        """
        preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        return await self.request("DELETE", path, body={"preconditions": preconditions, **(options or {})})

    async def watch(
        self, path: str, *, resource_version: str, field_selector: str = "", label_selector: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield the changes since `resource_version` until the watch ends.

        A change is a pair of its type (ADDED, MODIFIED, DELETED or BOOKMARK) and the object. If `resource_version` is
        "", the existing objects come first, in their latest state, followed by a bookmark that marks their end. Raises
        `NotFound` (410) if `resource_version` is too old, and `Unavailable` if the connection breaks.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            **({} if resource_version else {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}),
            "timeoutSeconds": str(WATCH_TIMEOUT_SECONDS),
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        parameters = {key: value for key, value in query.items() if value}
        try:
            response = await self._send("GET", path, parameters, None, JSON, None)
            with abort_on_exit(response.response):  # releases the connection if the caller stops watching early
                if response.status >= 400:
                    raise build_api_error(response.status, decode_response(await response.read()))
                async for line in iterate_lines(response.response):
                    change = ANY_DECODER.decode(line)
                    if change["type"] == "ERROR":
                        raise build_api_error(int(change["object"].get("code") or 500), change["object"])
                    yield change["type"], change["object"]
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise Unavailable(0, f"the watch on {path} failed: {str(error) or type(error).__name__}") from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        timeout_seconds: float | None,
        accept: str = JSON,
    ) -> Any:
        headers = copy.copy(self._extra_headers)
        headers.update({"Accept": accept, "Content-Type": content_type, "User-Agent": "nodemaintenance"})
        token = self._authorization or await self._configuration.get_api_key_with_prefix(
            "BearerToken", alias="authorization"
        )
        if token:
            headers["Authorization"] = token
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = aiohttp.ClientTimeout(
            total=timeout_seconds, sock_connect=REQUEST_TIMEOUT_SECONDS, sock_read=SOCKET_READ_TIMEOUT_SECONDS
        )
        return await self._rest_client.request(method, url, headers=headers, body=body, _request_timeout=timeout)


def _add_dry_run(method: str, query: Mapping[str, str] | None, body: Any) -> tuple[Mapping[str, str], Any]:
    """Return the query and the body of a write that the API server must only validate.

    The API server ignores the query of a DELETE that has a body, so the body must contain the option, too.
    """
    options = {**(body or {}), "dryRun": ["All"]} if method == "DELETE" else body
    return {**(query or {}), "dryRun": "All"}, options


async def get_or_none(request: Any) -> Object | None:
    """Await a request; return its result, or None if it raises `NotFound`."""
    try:
        result: Object = await request
    except NotFound:
        return None
    return result


async def gather_all(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await several requests concurrently, and return their results in order.

    The first error is raised only after all requests have ended. `asyncio.gather` would raise it immediately and let
    the other requests, possibly writes, run unawaited. If the event loop then ended, their connections would leak.
    """
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
