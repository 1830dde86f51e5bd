"""Fixtures: a separate cluster for the console, so that its list shows only the objects of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.web_console import Console
from tests.chain.environment import Scene
from tests.console.web.site import Browser, Site, start_browser


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a cluster with all three NodeMaintenance API groups, the product and its console."""
    folder = tmp_path_factory.mktemp("site")
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install(cluster, v1alpha1=True)
        with Product(cluster, folder / "product") as product:
            scene = Scene(cluster, product)
            journal = ("--journal", product.journal)
            where = {"functions": product.functions_url, "broker": product.broker_url}
            with Console(cluster, folder / "product", *journal, **where) as console:
                yield Site(scene, console)
            scene.admin.close()
            product.kill()


@pytest.fixture(scope="package")
def driver() -> Iterator[Chrome]:
    """Yield one browser for all tests."""
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: Chrome, site: Site) -> Browser:
    """Return that browser with a desktop viewport, a light theme and no cookies."""
    driver.delete_all_cookies()
    browser = Browser(driver, site.console)
    browser.look()
    browser.errors()
    return browser
