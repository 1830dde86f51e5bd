"""Tests for certificate changes of the HTTPS server, which uses a new certificate only for new connections."""

from __future__ import annotations

import asyncio
import resource
import ssl
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientSession, TCPConnector, web

from functions.serving.https_server import ReloadingCertificate, serve_https
from tests.functions.certificate_authority import CertificateAuthority
from tests.proofs import proves

SERVER_NAME = "127.0.0.1"


def build_application() -> web.Application:
    """Build an application that responds with the client's port, which identifies the connection."""

    async def get_peer_port(request: web.Request) -> web.Response:
        return web.Response(text=str(request.transport.get_extra_info("peername")[1] if request.transport else 0))

    pages = web.Application()
    pages.router.add_get("/", get_peer_port)
    return pages


def create_client_context(*trusted_cas: CertificateAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata="\n".join(ca.ca_certificate for ca in trusted_cas))


async def fetch_client_port(session: ClientSession, port: int) -> str:
    async with session.get(f"https://{SERVER_NAME}:{port}/") as response:
        return await response.text()


async def fetch_peer_port_of_new_connection(port: int, *trusted_cas: CertificateAuthority) -> str:
    """Return the client port that the server reports for a new connection of a client that trusts these CAs."""
    async with ClientSession(connector=TCPConnector(ssl=create_client_context(*trusted_cas))) as session:
        return await fetch_client_port(session, port)


def run_with_timeout(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 30))


@proves("NMO-18")
def test_changed_certificate_is_used_for_new_connections_only(tmp_path: Path) -> None:
    old, new = CertificateAuthority("old"), CertificateAuthority("new")
    old.write_serving_certificate(tmp_path, [SERVER_NAME])

    async def rotate_certificate() -> None:
        session = ClientSession(connector=TCPConnector(ssl=create_client_context(old)))
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port, session:
            before = await fetch_client_port(session, port)
            new.write_serving_certificate(tmp_path, [SERVER_NAME])
            with pytest.raises(ClientConnectorError):
                await fetch_peer_port_of_new_connection(port, old)
            assert await fetch_peer_port_of_new_connection(port, new)
            assert await fetch_client_port(session, port) == before

    run_with_timeout(rotate_certificate())


def test_handshakes_fail_until_certificate_exists(tmp_path: Path) -> None:
    ca = CertificateAuthority("late")

    async def issue_certificate_late() -> None:
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port:
            with pytest.raises(ClientConnectorError):
                await fetch_peer_port_of_new_connection(port, ca)
            ca.write_serving_certificate(tmp_path, [SERVER_NAME])
            assert await fetch_peer_port_of_new_connection(port, ca)

    run_with_timeout(issue_certificate_late())


@pytest.mark.parametrize("broken_file", ["tls.crt", "tls.key"])
@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_previous_certificate_is_used_if_new_certificate_is_unusable(
    tmp_path: Path, broken_file: str, text: str
) -> None:
    ca = CertificateAuthority("kept")
    ca.write_serving_certificate(tmp_path, [SERVER_NAME])

    async def write_unusable_file() -> None:
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port:
            assert await fetch_peer_port_of_new_connection(port, ca)
            (tmp_path / broken_file).write_text(text)
            assert await fetch_peer_port_of_new_connection(port, ca)

    run_with_timeout(write_unusable_file())


def test_key_that_does_not_match_certificate_is_not_used(tmp_path: Path) -> None:
    """Check that the server never uses a key with another key's certificate.

    A client may connect between the writes of the two files.
    """
    first, second = CertificateAuthority("first"), CertificateAuthority("second")
    first.write_serving_certificate(tmp_path, [SERVER_NAME])
    second.write_serving_certificate(tmp_path / "other", [SERVER_NAME])

    async def replace_key_before_certificate() -> None:
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port:
            assert await fetch_peer_port_of_new_connection(port, first)
            (tmp_path / "other/tls.key").replace(tmp_path / "tls.key")
            assert await fetch_peer_port_of_new_connection(port, first)
            (tmp_path / "other/tls.crt").replace(tmp_path / "tls.crt")
            assert await fetch_peer_port_of_new_connection(port, second)

    run_with_timeout(replace_key_before_certificate())


def test_certificate_in_updated_secret_mount_is_used(tmp_path: Path) -> None:
    """Check that the server uses a new version of a mounted Secret.

    The kubelet writes a new folder and then moves the symlink `..data` to it.
    """
    old, new = CertificateAuthority("old"), CertificateAuthority("new")
    old.write_serving_certificate(tmp_path / "..1", [SERVER_NAME])
    new.write_serving_certificate(tmp_path / "..2", [SERVER_NAME])
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")

    async def move_symlink() -> None:
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port:
            assert await fetch_peer_port_of_new_connection(port, old)
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").replace(tmp_path / "..data")
            assert await fetch_peer_port_of_new_connection(port, new)

    run_with_timeout(move_symlink())


def test_certificate_is_read_again_after_transient_error(tmp_path: Path) -> None:
    """Check that an unchanged certificate is read again after a transient error, such as too many open files."""
    CertificateAuthority("one").write_serving_certificate(tmp_path, [SERVER_NAME])
    certificate = ReloadingCertificate(tmp_path)

    with exhaust_file_descriptors():
        before = certificate.reload_if_changed()
    after = certificate.reload_if_changed()

    assert before is None
    assert after is not None
    assert certificate.reload_if_changed() is after


@contextmanager
def exhaust_file_descriptors() -> Iterator[None]:
    """Lower the limit of open files so that the process cannot open another file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryFile() as probe:
        number = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@proves("NMO-18")
def test_no_handshake_fails_during_certificate_changes(tmp_path: Path) -> None:
    """Check that no handshake fails while the certificate changes twenty times and clients keep connecting.

    The clients trust the CAs of all certificates.
    """
    cas = CertificateAuthority("one"), CertificateAuthority("two")
    cas[0].write_serving_certificate(tmp_path, [SERVER_NAME])

    async def connect_until_stopped(port: int, stop: asyncio.Event) -> int:
        count = 0
        while not stop.is_set():
            assert await fetch_peer_port_of_new_connection(port, *cas)
            count += 1
        return count

    async def rotate_with_clients() -> None:
        stop = asyncio.Event()
        async with serve_https(build_application(), tmp_path, 0, SERVER_NAME) as port:
            tasks = [asyncio.create_task(connect_until_stopped(port, stop)) for _ in range(4)]
            for number in range(20):
                await fetch_peer_port_of_new_connection(port, *cas)
                await asyncio.to_thread(cas[number % 2].write_serving_certificate, tmp_path, [SERVER_NAME])
            stop.set()
            assert sum(await asyncio.gather(*tasks)) > 20

    run_with_timeout(rotate_with_clients())
