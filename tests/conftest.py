"""One real cluster, and one product on it, for all tests of a worker; how tests share the machine."""

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
from localcluster.product import Product
from localcluster.readiness import CRDS
from tests.abreast import pytest_pyfunc_call as pytest_pyfunc_call
from tests.failure_report import pytest_configure as pytest_configure
from tests.postgresql import PostgreSQL
from tests.proofs import COLLECTED, collection, collects_all
from tests.receiver import Receiver
from tests.sharing import GroupScheduling, Machine, group_of

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # real servers share these cores: a slow draw says nothing of the test
os.environ.pop("DATABASE_URL", None)  # somebody's journal is none of ours
ROOT = Path(__file__).parents[1]
LEFTOVER = "nodemaintenances.kubevirt.io"
signal.signal(signal.SIGINT, signal.default_int_handler)
# A shell makes what it starts in the background deaf to Ctrl-C, and so the children that tests interrupt.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Hand out the work by groups."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: the longest group first, and at the end of each file what runs alone; its fixtures stay whole.

    What the tests prove is noted before any is left out.
    """
    if collects_all(config):
        config.stash[COLLECTED] = collection(items)
    if hasattr(config, "workerinput"):
        files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: (group_of(item.nodeid), files[item.path], is_alone(item)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Share the machine from the set-up to the end; waiting for it is on nobody's timeout."""
    with nullcontext() if is_alone(item) else machine(item).shared():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Set up beside others what is measured alone."""
    with machine(item).shared() if is_alone(item) else nullcontext():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Have the machine alone where time is measured."""
    with machine(item).alone() if is_alone(item) else nullcontext():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Clear up beside others."""
    with machine(item).shared() if is_alone(item) else nullcontext():
        yield


def is_alone(item: pytest.Item) -> bool:
    """Tell whether a test measures time."""
    return item.get_closest_marker("alone") is not None


def machine(item: pytest.Item) -> Machine:
    """Give the machine that the workers share."""
    assert item.config.cache
    return Machine(item.config.cache.mkdir("machine"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Give a cluster of three nodes, node-1 to node-3; nothing of the product is on it."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: LocalCluster) -> LocalCluster:
    """Give that cluster with the custom resources and the access rules on it."""
    localproduct.install(cluster)
    return cluster


@pytest.fixture
def leftover(installed: LocalCluster) -> Iterator[None]:
    """Give the oldest group's CRD as an operator of before selectable fields left it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"kind": "NodeMaintenance", "plural": "nodemaintenances", "singular": "nodemaintenance"}
    spec = {"group": "kubevirt.io", "scope": "Cluster", "names": names, "versions": [version]}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    installed.door().create(CRDS, {**body, "metadata": {"name": LEFTOVER}})
    installed.await_kinds(LEFTOVER)
    installed.kubectl("get", LEFTOVER)
    yield
    installed.kubectl("delete", "crd", LEFTOVER, "--timeout=30s")


@pytest.fixture(scope="session")
def product(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Give the functions and the delivery at work on that cluster."""
    with Product(installed, Path(tmp_path_factory.mktemp("product"))) as running:
        yield running
        running.kill()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """Give a PostgreSQL server; without its programs this fails and says what to install."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Give somebody who takes requests by HTTP, as a subscriber, a function or a broker does."""
    with closing(Receiver()) as playing:
        yield playing


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty journal is, on each of the databases."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.database()
