"""Fixtures with one real cluster and one product per xdist worker, and hooks that coordinate the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import Receiver
from localcluster.product import Product
from localcluster.readiness import CRDS_PATH
from tests.concurrent_tests import pytest_pyfunc_call as pytest_pyfunc_call
from tests.failure_report import pytest_configure as pytest_configure
from tests.postgresql import PostgreSQL
from tests.proofs import COLLECTION_KEY, build_collection, collects_all_tests
from tests.scheduling import GroupScheduling, MachineLock, find_group_index

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Real servers use the same cores, so Hypothesis must not treat slow data generation as an error.
settings.load_profile("busy")
os.environ.pop("DATABASE_URL", None)  # Tests must not use a journal that the user's environment variables select.
ROOT = Path(__file__).parents[1]
LEGACY_CRD_NAME = "nodemaintenances.kubevirt.io"
signal.signal(signal.SIGINT, signal.default_int_handler)
# A shell starts background processes with SIGINT ignored, and the child processes of the tests would inherit that.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Return the scheduler that assigns tests to workers in groups."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort a worker's tests: put the longest group first, and tests marked `alone` at the end of each file.

    The order of files is kept, so that module fixtures are set up only once. The hook collects the requirements that
    the tests prove before pytest deselects any test.
    """
    if collects_all_tests(config):
        config.stash[COLLECTION_KEY] = build_collection(items)
    if hasattr(config, "workerinput"):
        files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: (find_group_index(item.nodeid), files[item.path], requires_exclusive_machine(item)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hold the machine's shared lock during the whole test; waiting for it does not count towards the timeout."""
    with nullcontext() if requires_exclusive_machine(item) else get_machine_lock(item).hold_shared_lock():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Hold the machine's shared lock during the setup of a test marked `alone`."""
    with get_machine_lock(item).hold_shared_lock() if requires_exclusive_machine(item) else nullcontext():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Hold the machine's exclusive lock while a test marked `alone` runs."""
    with get_machine_lock(item).hold_exclusive_lock() if requires_exclusive_machine(item) else nullcontext():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Hold the machine's shared lock during the teardown of a test marked `alone`."""
    with get_machine_lock(item).hold_shared_lock() if requires_exclusive_machine(item) else nullcontext():
        yield


def requires_exclusive_machine(item: pytest.Item) -> bool:
    """Return whether a test is marked `alone`, because it measures time or needs all cores."""
    return item.get_closest_marker("alone") is not None


def get_machine_lock(item: pytest.Item) -> MachineLock:
    """Return the machine lock that all workers share."""
    assert item.config.cache
    return MachineLock(item.config.cache.mkdir("machine"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the nodes node-1 to node-3, without the product."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        yield running


@pytest.fixture(scope="session")
def installed_cluster(cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with the CRDs and RBAC rules installed."""
    localproduct.install_manifests(cluster)
    return cluster


@pytest.fixture
def legacy_crd(installed_cluster: LocalCluster) -> Iterator[None]:
    """Install the CRD of the oldest API group without selectable fields, as an earlier operator would have left it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"kind": "NodeMaintenance", "plural": "nodemaintenances", "singular": "nodemaintenance"}
    spec = {"group": "kubevirt.io", "scope": "Cluster", "names": names, "versions": [version]}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    installed_cluster.get_client().create(CRDS_PATH, {**body, "metadata": {"name": LEGACY_CRD_NAME}})
    installed_cluster.wait_for_crds(LEGACY_CRD_NAME)
    installed_cluster.kubectl("get", LEGACY_CRD_NAME)
    yield
    installed_cluster.kubectl("delete", "crd", LEGACY_CRD_NAME, "--timeout=30s")


@pytest.fixture(scope="session")
def product(installed_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Yield the product, that is, the functions and the local delivery, running on the installed cluster."""
    with Product(installed_cluster, Path(tmp_path_factory.mktemp("product"))) as running:
        yield running
        running.kill()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """Yield a running PostgreSQL server. Raises an error that names the missing package if it is not installed."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield an HTTP server that records requests; it acts as a subscriber, a function or a broker."""
    with closing(Receiver()) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path or URL of an empty journal; tests run once with SQLite and once with PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.create_database()
