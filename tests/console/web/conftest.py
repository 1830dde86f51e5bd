"""Fixtures for a separate cluster with the console, so that its pages show only objects of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from localcluster.product import Product
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.console.web.site import Browser, Site, start_browser


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a cluster with all three NodeMaintenance API groups, the product and its console."""
    folder = tmp_path_factory.mktemp("site")
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install_manifests(cluster, with_v1alpha1=True)
        with Product(cluster, folder / "product") as product:
            environment = EventChainEnvironment(cluster, product)
            journal_option = ("--journal", product.journal)
            urls = {"functions_url": product.functions_url, "broker_url": product.broker_url}
            # Until `record` has created the journal, pages show an error instead of recorded events.
            environment.send_tick()
            wait_until_ready("the journal", product.journal.exists, [])
            with WebConsole(cluster, folder / "product", *journal_option, **urls) as console:
                yield Site(environment, console)
            environment.client.close()
            product.kill()


@pytest.fixture(scope="package")
def chrome_driver() -> Iterator[Chrome]:
    """Yield a browser that all tests share."""
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome_driver: Chrome, site: Site) -> Browser:
    """Return the shared browser with a desktop viewport, a light theme and no cookies."""
    chrome_driver.delete_all_cookies()
    chrome_driver.get("about:blank")  # This stops the requests of an earlier test's page, which could fail later.
    browser = Browser(chrome_driver, site.console)
    browser.emulate_display()
    browser.take_errors()
    return browser
