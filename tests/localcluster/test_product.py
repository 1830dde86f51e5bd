"""Tests for the product's processes, which tests can kill and restart."""

from __future__ import annotations

import pytest

from localcluster.errors import LocalClusterError
from localcluster.processes import Server, wait_until_ready
from localcluster.product import Product
from localcluster.readiness import is_ready


def test_started_product_is_ready(product: Product) -> None:
    """Check that the readiness endpoints of functions and delivery respond after the start."""
    assert is_ready(product.functions_url)
    assert is_ready(product.broker_url)


@pytest.mark.slow
def test_functions_restart_after_crash(product: Product) -> None:
    """Check that killing the functions also ends their workers, and that they restart at the same address."""
    product.kill_functions()
    is_down = not is_ready(product.functions_url)
    product.start_functions()

    assert is_down
    assert is_ready(product.functions_url)


@pytest.mark.slow
def test_delivery_restarts_after_crash(product: Product) -> None:
    """Check that a killed delivery exits, and restarts at the same address with the same database."""
    product.kill_delivery()
    is_down = not is_ready(product.broker_url)
    product.start_delivery()

    assert is_down
    assert is_ready(product.broker_url)
    assert product.database.exists()


def test_timeout_error_names_server_and_its_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that the error about a server that does not become ready names the server and shows the end of its log."""
    log = tmp_path_factory.mktemp("sleeper") / "sleeper.log"
    server = Server("sleeper", ["sh", "-c", "echo asleep; sleep 60"], log)
    server.start()

    wait_until_ready("its output", lambda: "asleep" in server.describe_log_tail(), [server])
    with pytest.raises(
        LocalClusterError, match=r"sleeper: not ready after 0 s; last lines of .*sleeper\.log:\n  asleep"
    ):
        wait_until_ready("sleeper", lambda: False, [server], timeout=0.1)

    server.stop()
    assert not server.is_alive
