"""Tests for the API client's configuration: server, credentials, certificates and proxy."""

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

from kube.client import api as client_api
from kube.client.api import Api
from kube.client.api_errors import Unavailable
from kube.client.config import Configuration, find_proxy
from kube.nodes import NODES_PATH
from kube.paths import Object
from localcluster import access
from localcluster.cluster import LocalCluster

PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _unset_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
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
def test_proxy_of_api_client_is_read_from_environment(
    host: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the server URL's scheme determines the proxy, except for the hosts and domains in `NO_PROXY`.

    Loopback addresses never use a proxy, as with kubectl.
    """
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.1,.inside.example.com")

    assert find_proxy(host) == proxy


async def _get_proxy_of_client(configuration: Configuration) -> str | None:
    api = Api(configuration)
    await api.close()
    return configuration.proxy


@pytest.mark.parametrize(
    ("kubeconfig_proxy", "expected_proxy"),
    [(None, "http://of-all:3128"), ("http://its-own:3128", "http://its-own:3128")],
)
def test_proxy_in_kubeconfig_overrides_environment(
    kubeconfig_proxy: str | None, expected_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://of-all:3128")
    configuration = Configuration(host="https://cluster.example.com")
    configuration.proxy = kubeconfig_proxy

    assert asyncio.run(_get_proxy_of_client(configuration)) == expected_proxy


def write_kubeconfig(file: Path, name: str) -> Path:
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
def home_directory_of_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a pod with a ServiceAccount, and return the home directory of the pod's user."""

    def load_pod_configuration(*, client_configuration: Configuration) -> None:
        client_configuration.host = "https://pods-own.example"

    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(client_api, "load_incluster_config", load_pod_configuration)
    return tmp_path


async def _get_host(file: str | None, context: str | None) -> str:
    api = await Api.connect(file, context)
    await api.close()
    return str(api._configuration.host)


def get_host(file: Path | None = None, context: str | None = None) -> str:
    """Return the server URL in the configuration that the API client loads."""
    return asyncio.run(_get_host(str(file) if file else None, context))


def test_service_account_is_used_without_a_kubeconfig(home_directory_of_pod: Path) -> None:
    """Check that the pod's ServiceAccount is used if there is no kubeconfig, as in kubectl."""
    assert get_host() == "https://pods-own.example"


def test_kubeconfig_takes_precedence_over_the_service_account(
    home_directory_of_pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the option takes precedence over `KUBECONFIG`, and that over the kubeconfig in the home directory."""
    write_kubeconfig(home_directory_of_pod / ".kube" / "config", "home")
    assert get_host() == "https://home.example:6443"
    assert get_host(context="home") == "https://home.example:6443"
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(home_directory_of_pod / "other", "environment")))
    assert get_host() == "https://environment.example:6443"
    assert get_host(write_kubeconfig(home_directory_of_pod / "third", "option")) == "https://option.example:6443"


def test_missing_context_is_error_despite_service_account(
    home_directory_of_pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a missing context or kubeconfig is an error, so that no drain starts in the wrong cluster."""
    with pytest.raises(Unavailable, match=r"kubeconfig .* not found"):
        get_host(context="staging")
    write_kubeconfig(home_directory_of_pod / ".kube" / "config", "home")
    with pytest.raises(Unavailable, match="staging"):
        get_host(context="staging")


def test_missing_file_in_kubeconfig_variable_is_error_despite_service_account(
    home_directory_of_pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a missing file in `KUBECONFIG` is an error, even if the pod has a ServiceAccount."""
    monkeypatch.setenv("KUBECONFIG", str(home_directory_of_pod / "nowhere"))
    with pytest.raises(Unavailable, match=r"kubeconfig .* not found"):
        get_host()


async def _measure_memory_of_connections(connection_count: int, kubeconfig: Path) -> int:
    api = await Api.connect(str(kubeconfig))
    await api.get(NODES_PATH)
    bytes_before, _ = tracemalloc.get_traced_memory()
    await asyncio.gather(*(api.get(f"{NODES_PATH}/node-1") for _ in range(connection_count)))
    gc.collect()
    bytes_after, _ = tracemalloc.get_traced_memory()
    await api.close()
    return bytes_after - bytes_before


def test_open_connection_uses_little_memory(cluster: LocalCluster) -> None:
    """Check the memory per connection, since PodSource opens one for each node under maintenance."""
    tracemalloc.start()
    try:
        size = asyncio.run(_measure_memory_of_connections(30, cluster.kubeconfig))
    finally:
        tracemalloc.stop()

    assert size / 30 < 100_000


@pytest.fixture
def mutual_tls_pems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return a certificate and key in PEM for server and client; let `tempfile` use the directory `temporary`."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    access.write_serving_certificate(tmp_path / "cert", tmp_path / "key")
    return {"client-certificate": (tmp_path / "cert").read_text(), "client-key": (tmp_path / "key").read_text()}


def write_client_kubeconfig(file: Path, server: str, pems: dict[str, str], embedded_fields: Container[str]) -> str:
    """Write a kubeconfig that embeds the PEMs in `embedded_fields` and names files with the others; return its path."""
    credential_fields: dict[str, Any] = {}
    for name, pem in {**pems, "certificate-authority": pems["client-certificate"]}.items():
        (file.parent / name).write_text(pem)
        credential_fields |= (
            {f"{name}-data": base64.b64encode(pem.encode()).decode()} if name in embedded_fields else {name: name}
        )
    content = yaml.safe_load(write_kubeconfig(file, "local").read_text())
    content["clusters"][0]["cluster"] = {
        "server": server,
        "certificate-authority-data": "",
        **select_cluster_fields(credential_fields),
    }
    content["users"][0]["user"] = {
        name: value for name, value in credential_fields.items() if name not in select_cluster_fields(credential_fields)
    }
    file.write_text(yaml.safe_dump(content))
    return str(file)


def select_cluster_fields(credential_fields: dict[str, Any]) -> dict[str, Any]:
    """Return the kubeconfig fields that belong to the cluster and not to the user."""
    return {name: value for name, value in credential_fields.items() if name.startswith("certificate-authority")}


async def respond_with_client_serial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to a request with the serial number of the client's certificate."""
    await reader.readuntil(b"\r\n\r\n")
    body = json.dumps({"serial": writer.get_extra_info("peercert")["serialNumber"]}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


async def request_with_client_certificate(
    directory: Path, pems: dict[str, str], embedded_fields: Container[str]
) -> tuple[Object, Object]:
    """Request `/version` from a server that requires a client certificate, with and without verifying the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "cert"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "cert", directory / "key")
    async with await asyncio.start_server(respond_with_client_serial, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        api = await Api.connect(
            write_client_kubeconfig(directory / "config", f"https://127.0.0.1:{port}", pems, embedded_fields)
        )
        try:
            return await api.get("/version"), await (await api.without_verification()).get("/version")
        finally:
            await api.close()


CREDENTIAL_FIELDS = ("certificate-authority", "client-certificate", "client-key")


@pytest.mark.parametrize(
    "embedded_fields", [CREDENTIAL_FIELDS, CREDENTIAL_FIELDS[:2], ()], ids=["all", "all but the key", "none"]
)
def test_embedded_certificates_are_written_to_no_file(
    tmp_path: Path, mutual_tls_pems: dict[str, str], embedded_fields: Container[str]
) -> None:
    """Check that embedded certificates and keys are not written to files, which a killed process would not delete.

    The test also covers a kubeconfig that refers to files in its directory.
    """
    verified_serial, unverified_serial = asyncio.run(
        request_with_client_certificate(tmp_path, mutual_tls_pems, embedded_fields)
    )

    assert verified_serial == unverified_serial
    assert verified_serial["serial"]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("section", "field", "message"),
    [
        ("clusters", {"certificate-authority-data": "!!!"}, "Only base64 data is allowed"),
        ("clusters", {"certificate-authority-data": "bm90aGluZw=="}, "certificate-authority-data contains no PEM data"),
        ("users", {"client-certificate-data": "bm90aGluZw=="}, "client-certificate-data contains no PEM data"),
        ("users", {"client-certificate": "cert"}, "PEM lib"),
    ],
    ids=["not base64", "not PEM", "not a certificate", "no key"],
)
def test_unusable_certificate_in_kubeconfig_is_reported(
    tmp_path: Path, mutual_tls_pems: dict[str, str], section: str, field: dict[str, str], message: str
) -> None:
    """Check that an invalid CA is an error; otherwise the client would trust the server because of the system's CAs."""
    content = yaml.safe_load(write_kubeconfig(tmp_path / "config", "local").read_text())
    content[section][0][section[:-1]] = {**content[section][0][section[:-1]], **field}
    (tmp_path / "config").write_text(yaml.safe_dump(content))

    with pytest.raises(Unavailable, match=f"no usable kubeconfig at .*{message}.*; correct --kubeconfig"):
        asyncio.run(Api.connect(str(tmp_path / "config")))


def test_key_without_a_certificate_is_ignored(tmp_path: Path, mutual_tls_pems: dict[str, str]) -> None:
    """Check that a client key without a certificate is ignored, as by kubectl, and that the user's token is used."""
    content = yaml.safe_load(write_kubeconfig(tmp_path / "config", "local").read_text())
    content["users"][0]["user"] = {"token": "mine", "client-key": "key"}
    (tmp_path / "config").write_text(yaml.safe_dump(content))

    async def can_connect() -> bool:
        api = await Api.connect(str(tmp_path / "config"))
        await api.close()
        return True

    assert asyncio.run(can_connect())
