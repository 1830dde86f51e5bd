"""How to reach an API server, and as whom: by a kubeconfig or as the pod's own account. Alone imports `kubernetes`.

And the connections to it, none of which outlives the event loop that it is on.

Of that package it imports what is used here. The rest (the synchronous client, typed models, and five libraries for
them) would be two thirds of the time in which a function starts.
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

from kube.door.lazy_imports import postpone
from kube.door.lean_aiohttp import aiohttp  # before the library imports it
from kube.loopback import is_loopback

for package in ("kubernetes", "kubernetes.aio", "kubernetes.aio.config", "kubernetes.aio.utils"):
    postpone(package)

import kubernetes.aio.client as library  # noqa: E402
from kubernetes.aio.client.configuration import Configuration as LibraryConfiguration  # noqa: E402
from kubernetes.aio.client.rest import RESTClientObject  # noqa: E402
from kubernetes.aio.config.config_exception import ConfigException  # noqa: E402
from kubernetes.aio.config.incluster_config import load_incluster_config  # noqa: E402

__all__ = [
    "ConfigException",
    "Configuration",
    "Connections",
    "NoContext",
    "load_incluster_config",
    "load_kube_config",
    "proxy_of",
]

FAREWELL_SECONDS = 1.0
"""A TLS farewell takes a round trip; a server that does not answer one is not waited for longer."""
LOOK_SECONDS = 0.001
IDLE_SECONDS = 60.0
"""For so long an idle connection is kept: less than the API server keeps it (90 s), or a request would meet its end. A
handshake costs both sides more than a request (15, if not said)."""
sslproto.SSLProtocol.max_size = 32 * 1024
"""Bytes that each TLS connection has for what it reads; a record has 16 KiB at most. By default they are eight times as
many, 25 MiB for a hundred connections."""


class NoContext(ConfigException):
    """The kubeconfig has no context of the name that was asked for; the text has the remedy."""


class Configuration(LibraryConfiguration):
    """How to reach an API server, and as whom.

    Attributes:
        client_pem: the client's certificate and its key, b"" for none; that of a plugin (`cert_file`) comes before it.
    """

    client_pem = b""


class Connections(RESTClientObject):
    """The library's HTTP client, which knows each of its sockets until it is closed.

    A request that is cancelled between its handshake and its first byte leaves a connection that no pool knows of and
    that is just saying farewell. A command's loop would be gone by the answer.
    """

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        if configuration.client_pem and not configuration.cert_file:
            with NamedTemporaryFile() as file:  # OpenSSL takes no other
                file.write(configuration.client_pem)
                file.flush()
                self.ssl_context.load_cert_chain(file.name)
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._unverified: Connections | None = None

    def unverified(self) -> Connections:
        """Connections to the same server that do not verify its certificate; closed with these."""
        if self._unverified is None:
            settings = copy.copy(self.configuration)
            settings.verify_ssl = False
            self._unverified = Connections(settings)
        return self._unverified

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=self.maxsize, ssl=self.ssl_context, socket_factory=self._socket, keepalive_timeout=IDLE_SECONDS
        )

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        self._sockets.add(made)
        return made

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed."""
        if self._unverified is not None:
            await self._unverified.close()
        if self.pool_manager and self.pool_manager.connector:
            await self.pool_manager.connector.close(abort_ssl=True)
        await super().close()
        deadline = asyncio.get_running_loop().time() + FAREWELL_SECONDS
        while self.is_open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether any of them is."""
        return any(made.fileno() >= 0 for made in self._sockets)


async def load_kube_config(configuration: Configuration, file: str, context: str | None) -> None:
    """Fill in what `file` says of `context` (None: the current one).

    Certificates and keys that it holds stay in memory; the library would leave each in a file of its own where the
    process is ended by a signal. Raises `NoContext`, and `ConfigException` when that is no kubeconfig, or names what is
    not there.
    """
    from yaml import YAMLError

    # What the library raises of a file that is something else: it looks inside before it looks.
    no_kubeconfig = (YAMLError, ValueError, TypeError, AttributeError, KeyError, OSError)
    try:
        merger, loader = _library()
        merged = merger(file).config
        if context and not merged["contexts"].get_with_name(context, safe=True):
            raise NoContext(
                f"there is no context {context} in {file}: `kubectl config get-contexts` lists those there are"
            )
        reader = loader(merged, context, config_base_path=None)
        named = reader.current_context["context"]
        cluster = merged["clusters"].get_with_name(named["cluster"])["cluster"]
        configuration.ca_cert_data = _taken(cluster, "certificate-authority").decode("ascii", "ignore") or None
        if user := merged["users"].get_with_name(named.get("user"), safe=True):
            certificate, key = (_taken(user["user"], name) for name in ("client-certificate", "client-key"))
            configuration.client_pem = b"\n".join(filter(None, (certificate, key))) if certificate else b""
        await reader.load_and_set(configuration)
    except no_kubeconfig as error:
        raise ConfigException(str(error)) from error


def _taken(node: Any, name: str) -> bytes:
    """Take a certificate or key out of a cluster or user of a kubeconfig, also one in a file; gives b"" for none.

    Raises `ValueError` for data that is not in base64, and for what is named and holds no PEM (without an authority
    those of the system would be trusted), `OSError` for a file that is not to be read.
    """
    data, file = node.value.pop(f"{name}-data", None), node.value.pop(name, None)
    if not (data or file):
        return b""
    read = base64.b64decode("".join(data.split()), validate=True) if data else _beside(node.path, file).read_bytes()
    if b"-----BEGIN " not in read:
        raise ValueError(f"{name}{'-data' if data else f' {file}'} holds no PEM")
    return read


def _beside(kubeconfig: str, file: str) -> Path:
    return Path(kubeconfig).parent / file


def _library() -> tuple[Any, Any]:
    """The library's own readers of kubeconfigs, without the typed client, which it imports and we never ask it for."""
    vars(library)["ApiClient"] = _typed_client
    try:
        from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger
    finally:
        vars(library).pop("ApiClient", None)  # the library imports it anew for whoever asks
    return KubeConfigMerger, KubeConfigLoader


def _typed_client(**settings: Any) -> Any:
    """The typed client, imported when one is made."""
    from kubernetes.aio.client.api_client import ApiClient

    return ApiClient(**settings)


def proxy_of(host: str) -> str | None:
    """The proxy that the environment names for this URL (`HTTPS_PROXY`, `NO_PROXY`), None for none.

    None for this machine, too, whatever `NO_PROXY` says: so does Go, and with it kubectl.
    Asked for once. The HTTP client would ask at every request, in another thread: a tenth of what a request costs.
    """
    parts = urlsplit(host)
    if is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(parts.scheme)
