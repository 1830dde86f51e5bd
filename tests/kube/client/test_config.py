"""Tests of the API client's configuration: server, credentials, certificates and proxy."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import ssl
import tempfile
import tracemalloc
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.client import api as door
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.client.config import Configuration, proxy_of
from kube.nodes import NODES
from kube.paths import Object
from localcluster import certificates
from localcluster.cluster import LocalCluster

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
        ("https://127.0.0.1:6443", None),
        ("https://localhost:6443", None),
        ("https://[::1]:6443", None),
    ],
)
def test_the_environment_names_the_proxy(host: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the proxy by the URL's scheme, except for the hosts and domains in `NO_PROXY`.

    Loopback addresses never use a proxy, as with kubectl.
    """
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


def kubeconfig(file: Path, name: str) -> Path:
    """Write a kubeconfig with one context, whose server does not exist."""
    content = {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"token": name}}],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a pod with a ServiceAccount, and return the home directory of its user."""

    def as_the_pod(*, client_configuration: Configuration) -> None:
        client_configuration.host = "https://pods-own.example"

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(door, "load_incluster_config", as_the_pod)
    return tmp_path


async def _host(file: str | None, context: str | None) -> str:
    api = await Api.connect(file, context)
    await api.close()
    return str(api._configuration.host)


def host(file: Path | None = None, context: str | None = None) -> str:
    """Return the URL of the server that the API client uses."""
    return asyncio.run(_host(str(file) if file else None, context))


def test_a_pods_own_account_is_for_who_names_nothing(pod: Path) -> None:
    """Use the pod's ServiceAccount without a kubeconfig, as kubectl does, so that a function needs no file."""
    assert host() == "https://pods-own.example"


def test_whoever_names_a_cluster_gets_that_one_in_a_pod_too(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefer the option, then `KUBECONFIG`, then the kubeconfig in the home directory."""
    kubeconfig(pod / ".kube" / "config", "home")
    assert host() == "https://home.example:6443"
    assert host(context="home") == "https://home.example:6443"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(pod / "other", "environment")))
    assert host() == "https://environment.example:6443"
    assert host(kubeconfig(pod / "third", "option")) == "https://option.example:6443"


def test_a_context_never_leads_to_the_pods_own_cluster(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise an error for a missing context or kubeconfig, because a drain in the wrong cluster would be worse."""
    with pytest.raises(Unavailable, match="there is no kubeconfig"):
        host(context="staging")
    kubeconfig(pod / ".kube" / "config", "home")
    with pytest.raises(Unavailable, match="staging"):
        host(context="staging")


def test_a_kubeconfig_of_the_environment_that_is_not_there_is_an_error(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise an error instead of using the pod's ServiceAccount."""
    monkeypatch.setenv("KUBECONFIG", str(pod / "nowhere"))
    with pytest.raises(Unavailable, match="there is no kubeconfig"):
        host()


async def _kept_by(connections: int, kubeconfig: Path) -> int:
    api = await Api.connect(str(kubeconfig))
    await api.get(NODES)
    before, _ = tracemalloc.get_traced_memory()
    await asyncio.gather(*(api.get(f"{NODES}/node-1") for _ in range(connections)))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    await api.close()
    return after - before


def test_a_warm_connection_takes_little_memory(cluster: LocalCluster) -> None:
    """Limit the memory per connection: a function has up to a hundred, PodSource one per node under maintenance."""
    tracemalloc.start()
    try:
        kept = asyncio.run(_kept_by(30, cluster.kubeconfig))
    finally:
        tracemalloc.stop()

    assert kept / 30 < 100_000


@pytest.fixture
def mutual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a certificate and key in PEM, for server and client; temporary files go to the directory `temporary`."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    certificates.write_serving(tmp_path / "cert", tmp_path / "key")
    return {"client-certificate": (tmp_path / "cert").read_text(), "client-key": (tmp_path / "key").read_text()}


def with_a_client(file: Path, server: str, pems: dict[str, str], held: Container[str]) -> str:
    """Write a kubeconfig that embeds the PEMs in `held` and refers to files for the others; return its path."""
    entry: dict[str, Any] = {}
    for name, pem in {**pems, "certificate-authority": pems["client-certificate"]}.items():
        (file.parent / name).write_text(pem)
        entry |= {f"{name}-data": base64.b64encode(pem.encode()).decode()} if name in held else {name: name}
    content = yaml.safe_load(kubeconfig(file, "local").read_text())
    content["clusters"][0]["cluster"] = {"server": server, "certificate-authority-data": "", **authority(entry)}
    content["users"][0]["user"] = {name: value for name, value in entry.items() if name not in authority(entry)}
    file.write_text(yaml.safe_dump(content))
    return str(file)


def authority(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that belong to the cluster, not to the user."""
    return {name: value for name, value in entry.items() if name.startswith("certificate-authority")}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond with the serial number of the client's certificate."""
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps({"serial": writer.get_extra_info("peercert")["serialNumber"]}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


async def ask_as_client(directory: Path, pems: dict[str, str], held: Container[str]) -> tuple[Object, Object]:
    """Request `/version` from a server that requires a client certificate, with and without verifying the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "cert"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "cert", directory / "key")
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        api = await Api.connect(with_a_client(directory / "config", f"https://127.0.0.1:{port}", pems, held))
        try:
            return await api.get("/version"), await (await api.unverified()).get("/version")
        finally:
            await api.close()


NAMED = ("certificate-authority", "client-certificate", "client-key")


@pytest.mark.parametrize("held", [NAMED, NAMED[:2], ()], ids=["all", "all but the key", "none"])
def test_certificates_that_a_kubeconfig_holds_are_in_no_file(
    tmp_path: Path, mutual: dict[str, str], held: Container[str]
) -> None:
    """Keep embedded certificates and keys in memory: a temporary file would remain after a signal.

    A kubeconfig may also refer to files next to it.
    """
    verified, unverified = asyncio.run(ask_as_client(tmp_path, mutual, held))

    assert verified == unverified
    assert verified["serial"]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("where", "field", "said"),
    [
        ("clusters", {"certificate-authority-data": "!!!"}, "Only base64 data is allowed"),
        ("clusters", {"certificate-authority-data": "bm90aGluZw=="}, "certificate-authority-data holds no PEM"),
        ("users", {"client-certificate-data": "bm90aGluZw=="}, "client-certificate-data holds no PEM"),
        ("users", {"client-certificate": "cert"}, "PEM lib"),
    ],
    ids=["no base64", "no PEM", "no certificate", "no key"],
)
def test_a_certificate_that_cannot_be_used_is_named(
    tmp_path: Path, mutual: dict[str, str], where: str, field: dict[str, str], said: str
) -> None:
    """Raise an error for an invalid CA: without it, any CA of the system could vouch for the server."""
    content = yaml.safe_load(kubeconfig(tmp_path / "config", "local").read_text())
    content[where][0][where[:-1]] = {**content[where][0][where[:-1]], **field}
    (tmp_path / "config").write_text(yaml.safe_dump(content))

    with pytest.raises(Unavailable, match=f"no usable kubeconfig at .*{said}.*; set KUBECONFIG"):
        asyncio.run(Api.connect(str(tmp_path / "config")))


def test_a_key_without_a_certificate_is_left_alone(tmp_path: Path, mutual: dict[str, str]) -> None:
    """Ignore the key as kubectl does; the user's token authenticates."""
    content = yaml.safe_load(kubeconfig(tmp_path / "config", "local").read_text())
    content["users"][0]["user"] = {"token": "mine", "client-key": "key"}
    (tmp_path / "config").write_text(yaml.safe_dump(content))

    async def connected() -> bool:
        api = await Api.connect(str(tmp_path / "config"))
        await api.close()
        return True

    assert asyncio.run(connected())
