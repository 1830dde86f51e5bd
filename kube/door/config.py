"""How to reach an API server, and as whom: by a kubeconfig or as the pod's own account. Alone imports `kubernetes`.

Of that package it imports what is used here. The rest (the synchronous client, typed models, and five libraries for
them) would be two thirds of the time in which a function starts.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import kube.door.http  # noqa: F401  # before the library imports aiohttp
from kube.door.postponing import postpone

for package in ("kubernetes", "kubernetes.aio", "kubernetes.aio.config", "kubernetes.aio.utils"):
    postpone(package)

import kubernetes.aio.client as library  # noqa: E402
from kubernetes.aio.client.configuration import Configuration  # noqa: E402
from kubernetes.aio.client.rest import RESTClientObject  # noqa: E402
from kubernetes.aio.config.config_exception import ConfigException  # noqa: E402
from kubernetes.aio.config.incluster_config import load_incluster_config  # noqa: E402

__all__ = [
    "ConfigException",
    "Configuration",
    "RESTClientObject",
    "load_incluster_config",
    "load_kube_config",
    "proxy_of",
]


async def load_kube_config(configuration: Configuration, file: str | None, context: str | None) -> None:
    """Fill in what `file` (None: the usual one) says of `context` (None: the current one).

    Raises `ConfigException` when that is no kubeconfig, or names what is not there.
    """
    from yaml import YAMLError

    # What the library raises of a file that is something else: it looks inside before it looks.
    no_kubeconfig = (YAMLError, ValueError, TypeError, AttributeError, KeyError)
    try:
        await _loader()(file, context, configuration, persist_config=False)
    except no_kubeconfig as error:
        raise ConfigException(str(error)) from error


def _loader() -> Any:
    """The library's own reader of kubeconfigs, without the typed client, which it imports and we never ask it for."""
    vars(library)["ApiClient"] = _typed_client
    try:
        from kubernetes.aio.config.kube_config import load_kube_config
    finally:
        vars(library).pop("ApiClient", None)  # the library imports it anew for whoever asks
    return load_kube_config


def _typed_client(**settings: Any) -> Any:
    """The typed client, imported when one is made."""
    from kubernetes.aio.client.api_client import ApiClient

    return ApiClient(**settings)


def proxy_of(host: str) -> str | None:
    """The proxy that the environment names for this URL (`HTTPS_PROXY`, `NO_PROXY`), None for none.

    Asked for once. The HTTP client would ask at every request, in another thread: a tenth of what a request costs.
    """
    parts = urlsplit(host)
    if proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return getproxies().get(parts.scheme)
