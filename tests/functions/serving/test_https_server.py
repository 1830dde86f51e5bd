"""Tests of the HTTPS server when its certificate changes: new clients get the new one, open connections keep theirs."""

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

from functions.serving.certificate import Certificate
from functions.serving.https_server import serving
from tests.functions.certificate_authority import Authority
from tests.proofs import proves

NAME = "127.0.0.1"


def application() -> web.Application:
    """Build an application that responds with the client's port, which identifies the connection."""

    async def who(request: web.Request) -> web.Response:
        return web.Response(text=str(request.transport.get_extra_info("peername")[1] if request.transport else 0))

    pages = web.Application()
    pages.router.add_get("/", who)
    return pages


def trusting(*authorities: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata="\n".join(authority.certificate for authority in authorities))


async def asked(session: ClientSession, port: int) -> str:
    async with session.get(f"https://{NAME}:{port}/") as response:
        return await response.text()


async def asked_anew(port: int, *authorities: Authority) -> str:
    """Return the response on a new connection of a client that trusts these CAs."""
    async with ClientSession(connector=TCPConnector(ssl=trusting(*authorities))) as session:
        return await asked(session, port)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


@proves("NMO-18")
def test_a_changed_certificate_is_the_next_clients_and_the_open_connection_stays(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    old.write_certificate(tmp_path, [NAME])

    async def rotate() -> None:
        session = ClientSession(connector=TCPConnector(ssl=trusting(old)))
        async with serving(application(), tmp_path, 0, NAME) as port, session:
            before = await asked(session, port)
            new.write_certificate(tmp_path, [NAME])
            with pytest.raises(ClientConnectorError):
                await asked_anew(port, old)
            assert await asked_anew(port, new)
            assert await asked(session, port) == before

    run(rotate())


def test_without_a_certificate_nobody_is_answered_until_it_comes(tmp_path: Path) -> None:
    authority = Authority("late")

    async def come_late() -> None:
        async with serving(application(), tmp_path, 0, NAME) as port:
            with pytest.raises(ClientConnectorError):
                await asked_anew(port, authority)
            authority.write_certificate(tmp_path, [NAME])
            assert await asked_anew(port, authority)

    run(come_late())


@pytest.mark.parametrize("broken", ["tls.crt", "tls.key"])
@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_cannot_be_used_leaves_the_certificate_before_in_place(tmp_path: Path, broken: str, text: str) -> None:
    authority = Authority("kept")
    authority.write_certificate(tmp_path, [NAME])

    async def break_it() -> None:
        async with serving(application(), tmp_path, 0, NAME) as port:
            assert await asked_anew(port, authority)
            (tmp_path / broken).write_text(text)
            assert await asked_anew(port, authority)

    run(break_it())


def test_a_key_of_another_certificate_is_not_shown(tmp_path: Path) -> None:
    """Check that the server never uses a key with another key's certificate.

    A client may connect between the writes of the two files.
    """
    first, second = Authority("first"), Authority("second")
    first.write_certificate(tmp_path, [NAME])
    second.write_certificate(tmp_path / "other", [NAME])

    async def half_written() -> None:
        async with serving(application(), tmp_path, 0, NAME) as port:
            assert await asked_anew(port, first)
            (tmp_path / "other/tls.key").replace(tmp_path / "tls.key")
            assert await asked_anew(port, first)
            (tmp_path / "other/tls.crt").replace(tmp_path / "tls.crt")
            assert await asked_anew(port, second)

    run(half_written())


def test_a_secret_as_the_kubelet_mounts_it_is_followed(tmp_path: Path) -> None:
    """Check that the server uses a new version of a mounted Secret.

    The kubelet writes a new folder and then moves the symlink `..data` to it.
    """
    old, new = Authority("old"), Authority("new")
    old.write_certificate(tmp_path / "..1", [NAME])
    new.write_certificate(tmp_path / "..2", [NAME])
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")

    async def move() -> None:
        async with serving(application(), tmp_path, 0, NAME) as port:
            assert await asked_anew(port, old)
            (tmp_path / "..new").symlink_to("..2")
            (tmp_path / "..new").replace(tmp_path / "..data")
            assert await asked_anew(port, new)

    run(move())


def test_a_certificate_that_could_not_be_read_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    """Check that an unchanged certificate is read again after a transient error, such as too many open files."""
    Authority("one").write_certificate(tmp_path, [NAME])
    found = Certificate(tmp_path)

    with no_more_files():
        before = found.current()
    after = found.current()

    assert before is None
    assert after is not None
    assert found.current() is after


@contextmanager
def no_more_files() -> Iterator[None]:
    """Lower the limit so that the process cannot open another file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryFile() as next_one:
        number = next_one.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@proves("NMO-18")
def test_no_handshake_fails_while_certificates_change(tmp_path: Path) -> None:
    """Check that no handshake fails while the certificate changes twenty times and clients keep connecting.

    The clients trust both CAs.
    """
    pair = Authority("one"), Authority("two")
    pair[0].write_certificate(tmp_path, [NAME])

    async def clients(port: int, stop: asyncio.Event) -> int:
        count = 0
        while not stop.is_set():
            assert await asked_anew(port, *pair)
            count += 1
        return count

    async def many() -> None:
        stop = asyncio.Event()
        async with serving(application(), tmp_path, 0, NAME) as port:
            tasks = [asyncio.create_task(clients(port, stop)) for _ in range(4)]
            for turn in range(20):
                await asked_anew(port, *pair)
                await asyncio.to_thread(pair[turn % 2].write_certificate, tmp_path, [NAME])
            stop.set()
            assert sum(await asyncio.gather(*tasks)) > 20

    run(many())
