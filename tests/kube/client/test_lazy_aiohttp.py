"""Tests that deferred loading of the system's certificates does not change which servers are trusted."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from kube.client.lazy_aiohttp import LazySSLContext, defer_certificate_loading
from localcluster.cluster import LocalCluster
from tests.sources import ROOT

REQUEST_SCRIPT = """
import asyncio, sys
from kube.client.lazy_aiohttp import aiohttp

async def request():
    try:
        async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as response:
            print(response.status)
    except aiohttp.ClientConnectorCertificateError:
        print("untrusted")

asyncio.run(request())
"""


def create_lazy_context() -> ssl.SSLContext:
    with defer_certificate_loading():
        return ssl.create_default_context()


def test_lazy_context_trusts_the_same_certificates() -> None:
    """Check that the certificates are loaded at first use, and that the context is then an ordinary `SSLContext`."""
    default_context, context = ssl.create_default_context(), create_lazy_context()

    assert type(context) is LazySSLContext
    assert context.cert_store_stats() == default_context.cert_store_stats()
    assert type(context) is ssl.SSLContext
    assert sorted(map(str, create_lazy_context().get_ca_certs())) == sorted(map(str, default_context.get_ca_certs()))
    assert (context.verify_mode, context.check_hostname) == (
        default_context.verify_mode,
        default_context.check_hostname,
    )


def test_contexts_are_ordinary_after_deferred_certificate_loading() -> None:
    """Check that the methods of `ssl.SSLContext` are restored after `defer_certificate_loading`."""
    create_lazy_context()
    names = {"load_default_certs", "set_default_verify_paths"}

    assert type(ssl.create_default_context()) is ssl.SSLContext
    assert names & vars(ssl.SSLContext).keys() == {"load_default_certs"}
    assert ssl.SSLContext.load_default_certs.__module__ == "ssl"


@pytest.mark.parametrize(("is_trusted", "output"), [(True, "403"), (False, "untrusted")])
def test_connection_trusts_only_the_systems_certificates(
    cluster: LocalCluster, tmp_path: Path, is_trusted: bool, output: str
) -> None:
    """Check that a server, such as an HTTPS sink, is accepted only if the system's certificates contain its CA."""
    system_certificates = tmp_path / "system.crt"
    system_certificates.write_text(cluster.certificate)
    variables = {"SSL_CERT_FILE": str(system_certificates)} if is_trusted else {}
    command = [sys.executable, "-c", REQUEST_SCRIPT, f"{cluster.url}/api/v1/nodes"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == output
