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

from functions.certificates.renewal import renew_all
from functions.certificates.settings import Settings
from kube.certificates.components import COMPONENTS
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE
from localcluster import access
from localcluster.admission.webhook import MountedSecret
from localcluster.cluster import LocalCluster
from tests.functions.certificates.conftest import PROPAGATION_DELAY, SETTINGS, NamespaceCertificates
from tests.functions.certificates.tls_server import HOST, run_tls_server
from tests.functions.conftest import Functions
from tests.proofs import proves
from tests.sources import ROOT
from tests.workload import Workload

pytestmark = pytest.mark.slow

CA_SECRET_NAME = COMPONENTS["kubevirt"].ca_secret_name
STEP_ACCOUNT = access.make_username("renew-certificates")
TIMEOUT_SECONDS = 30
CONNECTIONS_PER_SECOND = 200
BUNDLE_READ_INTERVAL_SECONDS = 1.0
"""Interval at which each client reads the CA bundle."""
REQUEST = b"GET / HTTP/1.1\r\nHost: api\r\n\r\n"


def create_client_context(bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=bundle)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


class PollingClient(threading.Thread):
    """Thread that repeatedly reads the published CA bundle, connects to the server with it, and records failures."""

    def __init__(self, certificates: NamespaceCertificates, port: int) -> None:
        super().__init__(daemon=True)
        self._certificates, self._port = certificates, port
        self._stop_requested = threading.Event()
        self.failures: list[str] = []
        self.connection_count = 0
        self._connected = threading.Condition()

    def run(self) -> None:
        while not self._stop_requested.is_set():
            bundle = self._certificates.get_trusted_bundle()
            connection = http.client.HTTPSConnection(
                HOST, self._port, timeout=TIMEOUT_SECONDS, context=create_client_context(bundle)
            )
            try:
                connection.request("GET", "/")
                assert connection.getresponse().status == 200
            except OSError as error:  # `ssl.SSLError` is an `OSError`.
                self.failures.append(str(error))
            finally:
                connection.close()
            with self._connected:
                self.connection_count += 1
                self._connected.notify_all()

    def wait_for_connections(self, count: int = 2) -> None:
        """Wait for `count` more connections, so that the client has read the current CA bundle."""
        with self._connected:
            target_count = self.connection_count + count
            assert self._connected.wait_for(lambda: self.connection_count >= target_count, TIMEOUT_SECONDS)

    def stop(self) -> None:
        self._stop_requested.set()
        self.join()


@contextmanager
def run_polling_client(certificates: NamespaceCertificates, port: int) -> Iterator[PollingClient]:
    client = PollingClient(certificates, port)
    client.start()
    try:
        yield client
    finally:
        client.stop()


class KilledPassRunner:
    """Client of the program `killed_pass`, which kills each renewal pass after its first write."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.kill_count = 0

    def run_pass(self, now: datetime) -> bool:
        """Run a pass with this current time, and return whether the pass wrote something and was killed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{now.isoformat()}\n")
        self._process.stdin.flush()
        exit_code = int(self._process.stdout.readline())
        assert exit_code in (0, -signal.SIGKILL)
        self.kill_count += exit_code != 0
        return exit_code != 0


@contextmanager
def run_killed_passes(cluster: LocalCluster) -> Iterator[KilledPassRunner]:
    arguments = (str(cluster.ensure_kubeconfig(STEP_ACCOUNT)), str(SETTINGS.propagation_delay.total_seconds()))
    command = [sys.executable, "-m", "tests.functions.certificates.killed_pass", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield KilledPassRunner(process)
        process.kill()


@proves("OSV-20", "OSV-22", "X-2")
def test_no_client_fails_if_renewal_is_killed_after_each_write(
    idle_cluster: LocalCluster, certificates: NamespaceCertificates, tmp_path: Path
) -> None:
    """Check that clients can connect while a renewal is killed after every single write.

    The test runs without certificates, when a renewal is due, and at the end of the waiting period. Each pass is killed
    after its first write, until nothing is left to write. During all passes, a client keeps connecting with the
    published CA bundle.
    """
    today = datetime.now(timezone.utc).replace(microsecond=0)
    start_time = today - timedelta(days=1) - PROPAGATION_DELAY
    certificates.create_secret("api")
    certificates.create_secret("handler")
    certificates.create_webhook_configuration("nodemaintenance-validate", "api")
    with run_killed_passes(idle_cluster) as pass_runner:
        while pass_runner.run_pass(start_time):
            pass
        first_serial = certificates.get_serial("api")
        with (
            MountedSecret(idle_cluster.kubeconfig, tmp_path, DEFAULT_NAMESPACE, "api") as mount,
            run_tls_server(tmp_path) as port,
        ):
            assert mount.updated.wait(TIMEOUT_SECONDS)
            with run_polling_client(certificates, port) as client:
                for now in (today - PROPAGATION_DELAY, today):
                    while pass_runner.run_pass(now):
                        client.wait_for_connections()
                    client.wait_for_connections()

    assert certificates.get_serial("api") != first_serial
    assert len(mount.certificates) > 1
    assert pass_runner.kill_count >= 14
    assert client.failures == []


@proves("OSV-22")
@pytest.mark.alone
def test_no_connection_fails_during_rotations(
    idle_cluster: LocalCluster, functions: Functions, certificates: NamespaceCertificates, tmp_path: Path
) -> None:
    """Check that no connection fails during rotations of CA and certificate, at 200 new connections per second.

    The test runs one rotation, and then two within one waiting period. Clients read the CA bundle every second, and the
    server's certificate changes at least two seconds after the bundle. Open connections stay open until the end.
    """
    client = functions.clusters["renew-certificates"]
    settings = Settings(propagation_delay=timedelta(seconds=2 * BUNDLE_READ_INTERVAL_SECONDS))
    certificates.create_secret("api")
    client.run(renew_all(client.api, settings, datetime.now(timezone.utc)))
    with (
        MountedSecret(idle_cluster.kubeconfig, tmp_path, DEFAULT_NAMESPACE, "api") as mount,
        run_tls_server(tmp_path) as port,
    ):
        assert mount.updated.wait(TIMEOUT_SECONDS)
        load = ConnectionLoad(certificates.administrator_client, port, certificates.get_trusted_bundle())
        asyncio.run(load.run_during_rotations(RotationRunner(client, settings, certificates, mount)))

    assert load.failures == []
    assert load.successes >= CONNECTIONS_PER_SECOND * load.elapsed_seconds
    assert [len(set(ports)) for ports in load.ports_by_connection.values()] == [1] * len(load.ports_by_connection)
    assert all(len(ports) > load.elapsed_seconds for ports in load.ports_by_connection.values())
    assert (
        len(mount.certificates) == 3
    )  # The second of the two rotations within one waiting period replaces the first one.
    assert len(certificates.get_trusted_bundle().split("BEGIN CERTIFICATE")) == 5


@proves("OSV-22", "OSV-23")
def test_no_object_is_rejected_during_rotations_of_webhook_certificate(
    idle_cluster: LocalCluster,
    functions: Functions,
    certificates: NamespaceCertificates,
    workload: Workload,
    tmp_path: Path,
) -> None:
    """Check that the API server rejects no object while the webhook's CA and certificate are rotated twice.

    With `failurePolicy: Fail`, the API server rejects each object if the TLS connection to the webhook fails.
    """
    client = functions.clusters["renew-certificates"]
    settings = Settings(propagation_delay=timedelta(seconds=1))
    certificates.create_secret("api")
    client.run(renew_all(client.api, settings, datetime.now(timezone.utc)))
    creator = ConfigMapCreator(certificates.administrator_client, workload.namespace)
    with (
        MountedSecret(idle_cluster.kubeconfig, tmp_path, DEFAULT_NAMESPACE, "api") as mount,
        run_tls_server(tmp_path) as port,
    ):
        assert mount.updated.wait(TIMEOUT_SECONDS)
        certificates.create_webhook_configuration("nodemaintenance-validate", "api", f"https://{HOST}:{port}/admit")
        # Without a CA bundle, the API server does not trust the webhook's certificate, and rejects the ConfigMaps.
        creator.create_until(is_allowed=False)
        rotations = RotationRunner(client, settings, certificates, mount)
        rotations.run_pass()
        creator.create_until(is_allowed=True)
        with creator.create_continuously():
            rotations.rotate_until_certificate_count(2)
            rotations.rotate_until_certificate_count(3)

    assert creator.rejections == []
    assert creator.created_count > 50
    assert len(mount.certificates) == 3


class ConfigMapCreator:
    """Client that repeatedly creates ConfigMaps, for each of which the API server calls the webhook."""

    def __init__(self, client: SyncClient, namespace: str) -> None:
        self._client, self._path = client, f"/api/v1/namespaces/{namespace}/configmaps"
        self.created_count = 0
        self.rejections: list[str] = []
        self._stop_requested = threading.Event()

    def try_create(self) -> str:
        """Create a ConfigMap, and return the API server's error message, or "" if there is none."""
        try:
            self._client.create(self._path, {"metadata": {"generateName": "admitted-", "labels": {"test": "admitted"}}})
        except ApiError as error:
            return error.message
        return ""

    def create_until(self, *, is_allowed: bool) -> None:
        """Create ConfigMaps until the API server allows one or, with `is_allowed=False`, rejects one.

        The API server applies a changed webhook configuration only after its watch has delivered the change.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (self.try_create() == "") is not is_allowed:
            assert time.monotonic() < deadline

    @contextmanager
    def create_continuously(self) -> Iterator[None]:
        """Create ConfigMaps in a thread during the `with` block, and record each rejection."""
        thread = threading.Thread(target=self._create_until_stopped)
        thread.start()
        try:
            yield
        finally:
            self._stop_requested.set()
            thread.join()

    def _create_until_stopped(self) -> None:
        while not self._stop_requested.is_set():
            if message := self.try_create():
                self.rejections.append(message)
            self.created_count += 1


class RotationRunner:
    """Rotates the CA and the server's certificate by requesting a new CA and running `renew-certificates`."""

    def __init__(
        self, client: SyncClient, settings: Settings, certificates: NamespaceCertificates, mount: MountedSecret
    ) -> None:
        self._client, self._settings, self._certificates, self._mount = client, settings, certificates, mount

    def rotate_three_times(self) -> None:
        """Rotate three times, and return once the server has the certificate of the last rotation."""
        self.rotate_until_certificate_count(2)
        self._request_rotation()
        # The next rotation starts within the waiting period, which passes in real time in this test.
        time.sleep(self._settings.propagation_delay.total_seconds() / 2)
        self.rotate_until_certificate_count(3)

    def rotate_until_certificate_count(self, count: int) -> None:
        """Request a new CA, and run renewal passes until the server has used `count` different certificates."""
        self._request_rotation()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(self._mount.certificates) < count:
            assert time.monotonic() < deadline
            self._mount.updated.clear()
            self.run_pass()
            self._mount.updated.wait(0.2)

    def _request_rotation(self) -> None:
        self._certificates.request_renewal(CA_SECRET_NAME)
        self.run_pass()

    def run_pass(self) -> None:
        """Run one pass of `renew-certificates` over all certificates."""
        errors = self._client.run(renew_all(self._client.api, self._settings, datetime.now(timezone.utc))).errors
        assert errors == []


class ConnectionLoad:
    """Load test whose clients open 200 connections per second with a CA bundle that is at most one second old.

    A few further clients keep their connection open.
    """

    def __init__(self, client: SyncClient, port: int, bundle: str) -> None:
        self._api_client, self._port = client, port
        self._contexts = [create_client_context(bundle)] * 5
        self._stop_requested = asyncio.Event()
        self.failures: list[str] = []
        self.successes = 0
        self.elapsed_seconds = 0.0
        self.ports_by_connection: dict[int, list[str]] = {number: [] for number in range(4)}

    async def run_during_rotations(self, rotations: RotationRunner) -> None:
        start_time = time.monotonic()
        permanent_tasks = [
            asyncio.create_task(self._keep_connection_open(number)) for number in self.ports_by_connection
        ]
        bundle_tasks = [asyncio.create_task(self._poll_ca_bundle(number)) for number in range(len(self._contexts))]
        opening_task = asyncio.create_task(self._open_connections())
        await asyncio.to_thread(rotations.rotate_three_times)
        await asyncio.sleep(BUNDLE_READ_INTERVAL_SECONDS)  # Clients must also connect with the last certificate.
        self.elapsed_seconds = time.monotonic() - start_time
        self._stop_requested.set()
        await asyncio.gather(opening_task, *permanent_tasks, *bundle_tasks)

    async def _poll_ca_bundle(self, client_number: int) -> None:
        """Read the CA bundle periodically, at a different time offset for each client."""
        path = f"/api/v1/namespaces/node-maintenance/configmaps/{COMPONENTS['kubevirt'].bundle_configmap_name}"
        await asyncio.sleep(client_number * BUNDLE_READ_INTERVAL_SECONDS / len(self._contexts))
        while not self._stop_requested.is_set():
            configmap = await asyncio.to_thread(self._api_client.get, path)
            self._contexts[client_number] = create_client_context(configmap["data"]["ca-bundle.crt"])
            await asyncio.sleep(BUNDLE_READ_INTERVAL_SECONDS)

    async def _open_connections(self) -> None:
        """Open a connection every 5 ms, without waiting for earlier ones.

        Connections that a busy machine delays are opened later, so that their total number stays the same.
        """
        start_time, tasks = time.monotonic(), list[asyncio.Task[None]]()
        while not self._stop_requested.is_set() or len(tasks) < CONNECTIONS_PER_SECOND * self.elapsed_seconds:
            next_start = start_time + len(tasks) / CONNECTIONS_PER_SECOND
            await asyncio.sleep(max(0.0, next_start - time.monotonic()))
            tasks.append(asyncio.create_task(self._connect(self._contexts[len(tasks) % len(self._contexts)])))
        await asyncio.gather(*tasks)

    async def _connect(self, context: ssl.SSLContext) -> None:
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port, ssl=context)
            await self._request_peer_port(reader, writer)
            writer.close()
            self.successes += 1
        except OSError as error:
            self.failures.append(str(error))

    async def _keep_connection_open(self, connection_number: int) -> None:
        """Send requests over a single connection until the load test stops."""
        reader, writer = await asyncio.open_connection(HOST, self._port, ssl=self._contexts[0])
        while not self._stop_requested.is_set():
            self.ports_by_connection[connection_number].append(await self._request_peer_port(reader, writer))
            await asyncio.sleep(0.25)
        writer.close()

    async def _request_peer_port(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Send a request, and return the client port that the server sees."""
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return (await reader.readexactly(length)).decode()
