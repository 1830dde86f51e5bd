"""The functions and the local delivery as processes that tests can kill and start again."""

from __future__ import annotations

import pytest

from localcluster.processes import Server, await_ready
from localcluster.product import Product
from localcluster.readiness import is_ready
from localcluster.errors import LocalClusterError


def test_both_answer_when_the_product_is_started(product: Product) -> None:
    """Check that both readiness endpoints respond after the start."""
    assert is_ready(product.functions_url)
    assert is_ready(product.broker_url)


@pytest.mark.slow
def test_the_functions_come_back_after_a_crash(product: Product) -> None:
    """Check that killed functions stop with their workers, and restart at the same address."""
    product.kill_functions()
    gone = not is_ready(product.functions_url)
    product.start_functions()

    assert gone
    assert is_ready(product.functions_url)


@pytest.mark.slow
def test_the_delivery_comes_back_after_a_crash(product: Product) -> None:
    """Check that a killed delivery stops, and restarts at the same address with the same database."""
    product.kill_delivery()
    gone = not is_ready(product.broker_url)
    product.start_delivery()

    assert gone
    assert is_ready(product.broker_url)
    assert product.database.exists()


def test_a_server_that_is_never_ready_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that waiting for a server that never gets ready ends with an error with its name and its log."""
    log = tmp_path_factory.mktemp("sleeper") / "sleeper.log"
    server = Server("sleeper", ["sh", "-c", "echo asleep; sleep 60"], log)
    server.start()

    await_ready("its word", lambda: "asleep" in server.tail(), [server])
    with pytest.raises(LocalClusterError, match=r"sleeper was not ready after 0 s; .*sleeper\.log ends:\n  asleep"):
        await_ready("sleeper", lambda: False, [server], seconds=0.1)

    server.stop()
    assert not server.alive
