"""Configuration and connections of the API client; the only module that imports `kubernetes`.

The configuration comes from a kubeconfig or the pod's ServiceAccount. No connection outlives its event loop.

The module imports only those parts of `kubernetes` that it uses. The other parts (the synchronous client, the typed
models and their five dependencies) would take two thirds of a function's startup time.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import socket
from asyncio import sslproto
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp

from kube.client.lazy_imports import defer_import
from kube.loopback import is_loopback_url

for package in ("kubernetes", "kubernetes.aio", "kubernetes.aio.config", "kubernetes.aio.utils"):
    defer_import(package)

import kubernetes.aio.client as library  # noqa: E402
from kubernetes.aio.client.configuration import Configuration as LibraryConfiguration  # noqa: E402
from kubernetes.aio.client.rest import RESTClientObject  # noqa: E402
from kubernetes.aio.config.config_exception import ConfigException  # noqa: E402
from kubernetes.aio.config.incluster_config import load_incluster_config  # noqa: E402

__all__ = [
    "ConfigException",
    "Configuration",
    "ContextNotFound",
    "RestClient",
    "find_proxy",
    "load_incluster_config",
    "load_kube_config",
]

CLOSE_TIMEOUT_SECONDS = 1.0
"""Maximum seconds to wait for the closing of TLS connections; it takes one round trip if the server responds."""
CLOSE_POLL_SECONDS = 0.001
KEEPALIVE_SECONDS = 60.0
"""Seconds after which an idle connection is closed; aiohttp's default is 15.

The value is below the API server's 90 s, so that no request uses a connection that the server is closing. It is above
the default because a TLS handshake costs client and server more than a request.
"""
sslproto.SSLProtocol.max_size = 32 * 1024
"""Size of the read buffer of a TLS connection, in bytes; a TLS record has at most 16 KiB.

asyncio's default is eight times as large, which would be 25 MiB for a hundred connections.
"""


class ContextNotFound(ConfigException):
    """Error for a kubeconfig without the requested context; its message contains the remedy."""


class Configuration(LibraryConfiguration):
    """The address, TLS settings and credentials for an API server.

    Attributes:
        client_pem: The client certificate and its key in PEM format, b"" if there is none. The `cert_file` of a
            credential plugin takes precedence.
    """

    client_pem = b""


class RestClient(RESTClientObject):
    """The library's HTTP client, extended to track each of its sockets until the socket is closed.

    A request that is cancelled between its TLS handshake and its first byte leaves a closing connection that no pool
    tracks. Without this class, a command's event loop could end before that connection is closed.
    """

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        if configuration.client_pem and not configuration.cert_file:
            with NamedTemporaryFile() as file:  # OpenSSL loads a certificate chain only from a file
                file.write(configuration.client_pem)
                file.flush()
                self.ssl_context.load_cert_chain(file.name)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._unverified_client: RestClient | None = None

    def get_unverified_client(self) -> RestClient:
        """Return a client of the same server that skips certificate verification; `close` closes both clients."""
        if self._unverified_client is None:
            settings = copy.copy(self.configuration)
            settings.verify_ssl = False
            self._unverified_client = RestClient(settings)
        return self._unverified_client

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=self.maxsize,
            ssl=self.ssl_context,
            socket_factory=self._create_socket,
            keepalive_timeout=KEEPALIVE_SECONDS,
        )

    def _create_socket(self, address: tuple[Any, ...]) -> socket.socket:
        new_socket = socket.socket(*address[:3])
        self._sockets.add(new_socket)
        return new_socket

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed."""
        if self._unverified_client is not None:
            await self._unverified_client.close()
        if self.pool_manager and self.pool_manager.connector:
            await self.pool_manager.connector.close(abort_ssl=True)
        await super().close()
        deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_SECONDS
        while self.has_open_sockets and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(CLOSE_POLL_SECONDS)

    @property
    def has_open_sockets(self) -> bool:
        """Return whether any of the client's sockets is still open."""
        return any(tracked_socket.fileno() >= 0 for tracked_socket in self._sockets)


async def load_kube_config(configuration: Configuration, file: str, context: str | None) -> None:
    """Fill `configuration` with the settings of `context` in `file`; None means the current context.

    Certificates and keys stay in memory. The library would write each to a temporary file, which remains if a signal
    ends the process. Raises `ContextNotFound`, or `ConfigException` if the file is not a kubeconfig or refers to
    missing files.
    """
    from yaml import YAMLError

    # The library does not validate a kubeconfig, so a malformed one raises these errors.
    parse_errors = (YAMLError, ValueError, KeyError, OSError)
    structure_errors = (TypeError, AttributeError)
    try:
        merger, loader = _import_kubeconfig_readers()
        merged = merger(file).config
        if context and not merged["contexts"].get_with_name(context, safe=True):
            raise ContextNotFound(
                f'context "{context}" not found in kubeconfig {file}: `kubectl config get-contexts` lists the contexts'
            )
        reader = loader(merged, context, config_base_path=None)
        context_settings = reader.current_context["context"]
        cluster = merged["clusters"].get_with_name(context_settings["cluster"])["cluster"]
        configuration.ca_cert_data = _pop_pem(cluster, "certificate-authority").decode("ascii", "ignore") or None
        if user := merged["users"].get_with_name(context_settings.get("user"), safe=True):
            certificate, key = (_pop_pem(user["user"], name) for name in ("client-certificate", "client-key"))
            configuration.client_pem = b"\n".join(filter(None, (certificate, key))) if certificate else b""
        await reader.load_and_set(configuration)
    except structure_errors as error:
        raise ConfigException("its content is not a kubeconfig") from error
    except parse_errors as error:
        raise ConfigException(str(error)) from error


def _pop_pem(cluster_or_user: Any, name: str) -> bytes:
    """Remove a certificate or key from a kubeconfig's cluster or user, and return it; b"" if there is none.

    Raises `ValueError` if the data is not base64 or contains no PEM, because the client would otherwise trust the
    system's CAs. Raises `OSError` if a file cannot be read.
    """
    data, file = cluster_or_user.value.pop(f"{name}-data", None), cluster_or_user.value.pop(name, None)
    if not (data or file):
        return b""
    pem = (
        base64.b64decode("".join(data.split()), validate=True)
        if data
        else _resolve_path(cluster_or_user.path, file).read_bytes()
    )
    if b"-----BEGIN " not in pem:
        raise ValueError(f"{name}{'-data' if data else f' {file}'} contains no PEM data")
    return pem


def _resolve_path(kubeconfig: str, file: str) -> Path:
    return Path(kubeconfig).parent / file


def _import_kubeconfig_readers() -> tuple[Any, Any]:
    """Return the library's kubeconfig classes without importing the typed client to which they refer."""
    vars(library)["ApiClient"] = _create_typed_client
    try:
        from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger
    finally:
        vars(library).pop("ApiClient", None)  # `_create_typed_client` imports the class when it is needed
    return KubeConfigMerger, KubeConfigLoader


def _create_typed_client(**settings: Any) -> Any:
    """Create a typed client; its module is imported only when this function is called."""
    from kubernetes.aio.client.api_client import ApiClient

    return ApiClient(**settings)


def find_proxy(url: str) -> str | None:
    """Return the proxy for this URL from the environment (`HTTPS_PROXY`, `NO_PROXY`), None for no proxy.

    As in Go and thus kubectl, loopback URLs never use a proxy, whatever `NO_PROXY` contains. The proxy is determined
    once per client. The HTTP client would determine it for every request, in another thread, which takes a tenth of the
    request's CPU time.
    """
    parts = urlsplit(url)
    if is_loopback_url(url) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(parts.scheme)
