"""Tests that deferred loading of the system's certificates does not change which servers are trusted."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from kube.client.lazy_aiohttp import LateContext, reading_late
from localcluster.cluster import LocalCluster
from tests.sources import ROOT

ASK = """
import asyncio, sys
from kube.client.lazy_aiohttp import aiohttp

async def ask():
    try:
        async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as answer:
            print(answer.status)
    except aiohttp.ClientConnectorCertificateError:
        print("untrusted")

asyncio.run(ask())
"""


def late() -> ssl.SSLContext:
    with reading_late():
        return ssl.create_default_context()


def test_a_late_context_trusts_what_an_early_one_does() -> None:
    """Load the certificates at first use; afterwards the context is an ordinary one."""
    early, context = ssl.create_default_context(), late()

    assert type(context) is LateContext
    assert context.cert_store_stats() == early.cert_store_stats()
    assert type(context) is ssl.SSLContext
    assert sorted(map(str, late().get_ca_certs())) == sorted(map(str, early.get_ca_certs()))
    assert (context.verify_mode, context.check_hostname) == (early.verify_mode, early.check_hostname)


def test_contexts_made_afterwards_are_as_ever() -> None:
    """Restore the methods of `ssl.SSLContext` at the end of the block."""
    late()
    names = {"load_default_certs", "set_default_verify_paths"}

    assert type(ssl.create_default_context()) is ssl.SSLContext
    assert names & vars(ssl.SSLContext).keys() == {"load_default_certs"}
    assert ssl.SSLContext.load_default_certs.__module__ == "ssl"


@pytest.mark.parametrize(("trusted", "said"), [(True, "403"), (False, "untrusted")])
def test_a_connection_trusts_the_systems_certificates(
    cluster: LocalCluster, tmp_path: Path, trusted: bool, said: str
) -> None:
    """Accept a server, such as an https sink, only if the system's certificates contain its CA."""
    system = tmp_path / "system.crt"
    system.write_text(cluster.certificate)
    file = {"SSL_CERT_FILE": str(system)} if trusted else {}
    words = [sys.executable, "-c", ASK, f"{cluster.url}/api/v1/nodes"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **file}, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == said
