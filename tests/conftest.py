"""One real cluster, and one product on it, for all tests of a worker; how tests share the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.postgresql import PostgreSQL
from tests.sharing import Machine, group_of

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # real servers share these cores: a slow draw says nothing of the test
os.environ.pop("DATABASE_URL", None)  # somebody's journal is none of ours
ROOT = Path(__file__).parents[1]
signal.signal(signal.SIGINT, signal.default_int_handler)
# A shell makes what it starts in the background deaf to Ctrl-C, and so the children that tests interrupt.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell each test's group to whoever hands out the work: the longest first, those that run alone at its end."""
    groups = {path: group_of(path.relative_to(ROOT)) for path in {item.path for item in items}}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(f"group-{groups[item.path]}"))
    items.sort(key=lambda item: (groups[item.path], item.get_closest_marker("alone") is not None))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have the machine alone, or share it, from the fixtures' set-up to their end; waiting is nobody's timeout."""
    assert item.config.cache
    machine = Machine(item.config.cache.mkdir("machine"))
    with machine.alone() if item.get_closest_marker("alone") else machine.shared():
        return (yield)


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


@pytest.fixture(scope="session")
def product(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Give the functions and the delivery at work on that cluster."""
    with Product(installed, Path(tmp_path_factory.mktemp("product"))) as running:
        yield running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """Give a PostgreSQL server; without its programs this fails and says what to install."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty journal is, on each of the databases."""
    if request.param == "sqlite":
        return str(tmp_path / "journal.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.database()
