"""Tests that no client fails while certificates are renewed, on a real API server with a real HTTPS server."""

from __future__ import annotations

import asyncio
import http.client
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from functions.certificates.settings import Settings
from functions.certificates.renewal_pass import renewed
from kube.certificates.components import COMPONENTS
from kube.client.api_errors import ApiError
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE
from localcluster import access
from localcluster.admission.mounted_secret import MountedSecret
from localcluster.cluster import LocalCluster
from tests.functions.certificates.conftest import PAUSE, SETTINGS, Certificates
from tests.functions.certificates.tls_server import HOST, server
from tests.functions.conftest import Functions
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Workload

pytestmark = pytest.mark.slow

AUTHORITY = COMPONENTS["kubevirt"].authority
ACCOUNT = access.service_account("renew-certificates")
PATIENCE = 30
PER_SECOND = 200
READ_EVERY = 1.0
"""Seconds between two reads of the bundle by a client."""
REQUEST = b"GET / HTTP/1.1\r\nHost: api\r\n\r\n"


def trusting(bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=bundle)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


class Client(threading.Thread):
    """A client that keeps reading the published bundle, connects with it, and records failures."""

    def __init__(self, certificates: Certificates, port: int) -> None:
        super().__init__(daemon=True)
        self._certificates, self._port = certificates, port
        self._ends = threading.Event()
        self.failures: list[str] = []
        self.rounds = 0
        self._done = threading.Condition()

    def run(self) -> None:
        while not self._ends.is_set():
            bundle = self._certificates.trusted()
            connection = http.client.HTTPSConnection(HOST, self._port, timeout=PATIENCE, context=trusting(bundle))
            try:
                connection.request("GET", "/")
                assert connection.getresponse().status == 200
            except OSError as error:  # ssl.SSLError is one
                self.failures.append(str(error))
            finally:
                connection.close()
            with self._done:
                self.rounds += 1
                self._done.notify_all()

    def connects(self, times: int = 2) -> None:
        """Wait for `times` more connections, after which the client has read what is published now."""
        with self._done:
            wanted = self.rounds + times
            assert self._done.wait_for(lambda: self.rounds >= wanted, PATIENCE)

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextmanager
def client_at_work(certificates: Certificates, port: int) -> Iterator[Client]:
    client = Client(certificates, port)
    client.start()
    try:
        yield client
    finally:
        client.end()


class Mortal:
    """A process that runs each pass in a child process, which is killed at its first write."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.kills = 0

    def is_killed(self, moment: datetime) -> bool:
        """Return whether the pass at this time had something to write, and so was killed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{moment.isoformat()}\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        assert ended in (0, -signal.SIGKILL)
        self.kills += ended != 0
        return ended != 0


@contextmanager
def mortal(quiet: LocalCluster) -> Iterator[Mortal]:
    words = (str(quiet.kubeconfig_for(ACCOUNT)), str(SETTINGS.pause.total_seconds()))
    command = [sys.executable, "-m", "tests.functions.certificates.killed_pass", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield Mortal(process)
        process.kill()


@proves("OSV-20", "OSV-22", "X-2")
def test_kill_between_each_two_writes_locks_no_client_out(
    quiet: LocalCluster, certificates: Certificates, tmp_path: Path
) -> None:
    """Check that clients can connect while a renewal is killed after each single write.

    The renewal starts without certificates, at the due time, and at the end of the waiting period. Each pass is killed
    after its first write, until nothing is left to write. Meanwhile a client keeps connecting with the published
    bundle.
    """
    today = datetime.now(timezone.utc).replace(microsecond=0)
    begun = today - timedelta(days=1) - PAUSE
    certificates.add("api")
    certificates.add("handler")
    certificates.add_webhook("nodemaintenance-validate", "api")
    with mortal(quiet) as looks:
        while looks.is_killed(begun):
            pass
        first = certificates.serial("api")
        with (
            MountedSecret(quiet.kubeconfig, tmp_path, NAMESPACE, "api") as mount,
            server(tmp_path) as port,
        ):
            assert mount.came.wait(PATIENCE)
            with client_at_work(certificates, port) as client:
                for moment in (today - PAUSE, today):
                    while looks.is_killed(moment):
                        client.connects()
                    client.connects()

    assert certificates.serial("api") != first
    assert len(mount.shown) > 1
    assert looks.kills >= 14
    assert client.failures == []


@proves("OSV-22")
@pytest.mark.alone
def test_rotations_under_two_hundred_connections_a_second_fail_none(
    quiet: LocalCluster, functions: Functions, certificates: Certificates, tmp_path: Path
) -> None:
    """Check that no connection fails during rotations of CA and certificate, at 200 new connections per second.

    There is one rotation, then two within one waiting period. Clients read the bundle every second, and the server's
    certificate changes at least two seconds after the bundle. Connections that are already open stay open to the end.
    """
    door = functions.clusters["renew-certificates"]
    settings = Settings(pause=timedelta(seconds=2 * READ_EVERY))
    certificates.add("api")
    door.run(renewed(door.api, settings, datetime.now(timezone.utc)))
    with (
        MountedSecret(quiet.kubeconfig, tmp_path, NAMESPACE, "api") as mount,
        server(tmp_path) as port,
    ):
        assert mount.came.wait(PATIENCE)
        crowd = Crowd(certificates.admin, port, certificates.trusted())
        asyncio.run(crowd.run(Rotations(door, settings, certificates, mount)))

    assert crowd.failures == []
    assert crowd.answered >= PER_SECOND * crowd.seconds
    assert [len(set(ports)) for ports in crowd.open.values()] == [1] * len(crowd.open)
    assert all(len(ports) > crowd.seconds for ports in crowd.open.values())
    assert len(mount.shown) == 3  # the second of the two rotations within one waiting period replaced the first one
    assert len(certificates.trusted().split("BEGIN CERTIFICATE")) == 5


@proves("OSV-22", "OSV-23")
def test_a_webhooks_certificate_changes_while_objects_are_created_and_none_is_refused(
    quiet: LocalCluster, functions: Functions, certificates: Certificates, work: Workload, tmp_path: Path
) -> None:
    """Check that the API server rejects no object while the webhook's CA and certificate are rotated twice.

    The webhook has `failurePolicy: Fail`, so the API server would reject each object that the webhook does not admit.
    """
    door = functions.clusters["renew-certificates"]
    settings = Settings(pause=timedelta(seconds=1))
    certificates.add("api")
    door.run(renewed(door.api, settings, datetime.now(timezone.utc)))
    creator = Creator(certificates.admin, work.namespace)
    with MountedSecret(quiet.kubeconfig, tmp_path, NAMESPACE, "api") as mount, server(tmp_path) as port:
        assert mount.came.wait(PATIENCE)
        certificates.add_webhook("nodemaintenance-validate", "api", f"https://{HOST}:{port}/admit")
        creator.until(allowed=False)  # the API server calls the webhook, and without a CA trusts none of its responses
        rotations = Rotations(door, settings, certificates, mount)
        rotations.tick()
        creator.until(allowed=True)
        with creator.at_work():
            rotations.rotate_until_shown(2)
            rotations.rotate_until_shown(3)

    assert creator.refused == []
    assert creator.created > 50
    assert len(mount.shown) == 3


class Creator:
    """A client that creates ConfigMaps one after another, each of which the API server sends to the webhook."""

    def __init__(self, admin: Cluster, namespace: str) -> None:
        self._admin, self._path = admin, f"/api/v1/namespaces/{namespace}/configmaps"
        self.created = 0
        self.refused: list[str] = []
        self._ends = threading.Event()

    def create(self) -> str:
        """Create a ConfigMap and return the API server's error message, "" if it was created."""
        try:
            self._admin.create(self._path, {"metadata": {"generateName": "admitted-", "labels": {"test": "admitted"}}})
        except ApiError as error:
            return error.message
        return ""

    def until(self, *, allowed: bool) -> None:
        """Create ConfigMaps until one is allowed or rejected as wanted.

        The API server uses a changed webhook configuration only when its watch delivers it.
        """
        end = time.monotonic() + PATIENCE
        while (self.create() == "") is not allowed:
            assert time.monotonic() < end

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Create ConfigMaps continuously within the block, and record each rejection."""
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _work(self) -> None:
        while not self._ends.is_set():
            if message := self.create():
                self.refused.append(message)
            self.created += 1


class Rotations:
    """Runs ticks, and requests a new CA before some of them."""

    def __init__(self, door: Cluster, settings: Settings, certificates: Certificates, mount: MountedSecret) -> None:
        self._door, self._settings, self._certificates, self._mount = door, settings, certificates, mount

    def run(self) -> None:
        """Make three rotations in total, and return when the server has the certificate of the last one."""
        self.rotate_until_shown(2)
        self._rotate()
        time.sleep(self._settings.pause.total_seconds() / 2)  # within the waiting period: the test measures real time
        self.rotate_until_shown(3)

    def rotate_until_shown(self, count: int) -> None:
        """Request a new CA, and run ticks until the server has used `count` different certificates."""
        self._rotate()
        end = time.monotonic() + PATIENCE
        while len(self._mount.shown) < count:
            assert time.monotonic() < end
            self._mount.came.clear()
            self.tick()
            self._mount.came.wait(0.2)

    def _rotate(self) -> None:
        self._certificates.ask(AUTHORITY)
        self.tick()

    def tick(self) -> None:
        """Run one pass of the step."""
        errors = self._door.run(renewed(self._door.api, self._settings, datetime.now(timezone.utc))).errors
        assert errors == []


class Crowd:
    """Clients that open 200 connections a second with a bundle at most one second old.

    A few further clients keep their connection open.
    """

    def __init__(self, admin: Cluster, port: int, bundle: str) -> None:
        self._admin, self._port = admin, port
        self._contexts = [trusting(bundle)] * 5
        self._ends = asyncio.Event()
        self.failures: list[str] = []
        self.answered = 0
        self.seconds = 0.0
        self.open: dict[int, list[str]] = {number: [] for number in range(4)}

    async def run(self, rotations: Rotations) -> None:
        began = time.monotonic()
        stays = [asyncio.create_task(self._stay(number)) for number in self.open]
        reads = [asyncio.create_task(self._read(number)) for number in range(len(self._contexts))]
        comes = asyncio.create_task(self._come())
        await asyncio.to_thread(rotations.run)
        await asyncio.sleep(READ_EVERY)  # also connect with the last certificate
        self.seconds = time.monotonic() - began
        self._ends.set()
        await asyncio.gather(comes, *stays, *reads)

    async def _read(self, number: int) -> None:
        """Read the bundle periodically, with a different offset for each client."""
        path = f"/api/v1/namespaces/node-maintenance/configmaps/{COMPONENTS['kubevirt'].publication}"
        await asyncio.sleep(number * READ_EVERY / len(self._contexts))
        while not self._ends.is_set():
            read = await asyncio.to_thread(self._admin.get, path)
            self._contexts[number] = trusting(read["data"]["ca-bundle.crt"])
            await asyncio.sleep(READ_EVERY)

    async def _come(self) -> None:
        """Open a connection every two-hundredth of a second, without waiting for earlier ones.

        Connections that a busy machine opens too late are made up for, so that the total stays the same.
        """
        began, tasks = time.monotonic(), list[asyncio.Task[None]]()
        while not self._ends.is_set() or len(tasks) < PER_SECOND * self.seconds:
            due = began + len(tasks) / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(self._connect(self._contexts[len(tasks) % len(self._contexts)])))
        await asyncio.gather(*tasks)

    async def _connect(self, context: ssl.SSLContext) -> None:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port, ssl=context)
            await self._asked(reader, writer)
            writer.close()
            self.answered += 1
        except OSError as error:
            self.failures.append(str(error))

    async def _stay(self, number: int) -> None:
        """Send requests over a single connection until the end."""
        reader, writer = await asyncio.open_connection(HOST, self._port, ssl=self._contexts[0])
        while not self._ends.is_set():
            self.open[number].append(await self._asked(reader, writer))
            await asyncio.sleep(0.25)
        writer.close()

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Send a request, and return the client port that the server sees."""
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return (await reader.readexactly(length)).decode()
