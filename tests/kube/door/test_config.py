"""Which proxy a door goes through."""

from __future__ import annotations

import asyncio

import pytest

from kube.door.api import Api
from kube.door.config import Configuration, proxy_of

NAMES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("host", "proxy"),
    [
        ("https://cluster.example.com:6443", "http://proxy.example.com:3128"),
        ("https://10.0.0.1", None),
        ("https://10.0.0.1:6443", None),
        ("https://api.inside.example.com", None),
        ("http://127.0.0.1:8001", None),
    ],
)
def test_the_environment_names_the_proxy(host: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every tool reads it: by scheme, but for the hosts that NO_PROXY names, and what is below them."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.1,.inside.example.com")

    assert proxy_of(host) == proxy


async def _proxy_of_a_door(configuration: Configuration) -> str | None:
    api = Api(configuration)
    await api.close()
    return configuration.proxy


@pytest.mark.parametrize(
    ("own", "used"), [(None, "http://of-all:3128"), ("http://its-own:3128", "http://its-own:3128")]
)
def test_a_kubeconfigs_own_proxy_comes_first(own: str | None, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://of-all:3128")
    configuration = Configuration(host="https://cluster.example.com")
    configuration.proxy = own

    assert asyncio.run(_proxy_of_a_door(configuration)) == used
